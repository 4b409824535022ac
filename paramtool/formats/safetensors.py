"""safetensors: a length, a JSON header, and the tensors' bytes.

    u64 N                        little-endian, at most 100,000,000
    N bytes of JSON              {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
                                  "__metadata__": {"text": "text"}}, may end in spaces
    the data                     row by row, little-endian; no overlap, no hole, nothing behind it

Specification: the "Format" part of the safetensors README; the limit from its reader (safetensors/src/tensor.rs).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, BinaryIO

from paramtool.errors import Defects, FormatError, PlanError, listed
from paramtool.formats import _json, _tree, record
from paramtool.formats._codes import CODE_OF, DTYPE_CODES
from paramtool.formats._files import open_source
from paramtool.formats._output import OutputFile
from paramtool.formats._sniff import MAX_SAFETENSORS_HEADER
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import EMPTY
from paramtool.model.plan import Plan, Target
from paramtool.model.storage import ByteRange, SourceFile, Storage
from paramtool.model.view import View, contiguous

NAME = "safetensors"
HEADER_LENGTH = Struct("<Q")
SHARD_HEADER_NBYTES = 80_000_000
"""A shard is closed before its header comes near the limit."""
METADATA = "__metadata__"


# --- reading ---------------------------------------------------------------------------------------------------


def read(path: str) -> Checkpoint:
    """Describe a safetensors file; FormatError, or Defects where there are several."""
    file, source = open_source(path)
    with file:
        header, data_start = _read_header(file, source)
    metadata = _metadata(path, header.pop(METADATA, None) or {})
    stored, storages = _tensors(source, header, data_start)
    names = record.decode(path, stored, metadata)
    objects = names.objects if names.objects is not None else EMPTY
    return Checkpoint(
        format=NAME,
        files=(source,),
        storages={**storages, **names.storages},
        entries=_with_roles(names.entries, _tree.roles(objects)),
        objects=objects,
        sections=_tree.sections(objects),
        metadata=names.leftover,
        modules=record.decode_modules(path, metadata),
        producer="paramtool" if record.KEY in metadata else "",
    )


def _with_roles(entries: Mapping[str, Entry], roles: Mapping[str, str]) -> dict[str, Entry]:
    from dataclasses import replace

    return {name: replace(e, role=roles.get(name) or _tree.leaf_role(name, "model")) for name, e in entries.items()}


def _read_header(file: BinaryIO, source: SourceFile) -> tuple[dict[str, Any], int]:
    path = source.path
    start = file.read(HEADER_LENGTH.size)
    if len(start) < HEADER_LENGTH.size:
        raise FormatError(f"{path}: has {len(start)} bytes; a safetensors file begins with 8 bytes of header length")
    (length,) = HEADER_LENGTH.unpack(start)
    if length > MAX_SAFETENSORS_HEADER:
        raise FormatError(f"{path}: byte 0: header length {length}; the specification allows {MAX_SAFETENSORS_HEADER}")
    if HEADER_LENGTH.size + length > source.nbytes:
        raise FormatError(
            f"{path}: byte 0: header length {length}, but the file has {source.nbytes} bytes; "
            "it is truncated or no safetensors file"
        )
    text = file.read(length)
    if text[:1] != b"{":
        raise FormatError(f"{path}: byte 8: the header begins with {text[:1]!r}; expected '{{'")
    try:
        header = _json.strict(text.decode("utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: byte 8: the header is no JSON: {error}") from None
    return header, HEADER_LENGTH.size + length


def _metadata(path: str, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise FormatError(f"{path}: {METADATA} must map texts to texts")
    return found


def _tensors(
    source: SourceFile, header: Mapping[str, Any], data_start: int
) -> tuple[dict[str, View], dict[int, Storage]]:
    """Every stored tensor with a storage of its own; all defects of the header together."""
    defects: list[str] = []
    stored: dict[str, View] = {}
    storages: dict[int, Storage] = {}
    ranges = []
    for number, (name, item) in enumerate(header.items()):
        try:
            dtype, shape, begin, end = _entry(item)
            view = contiguous(number, dtype, shape)
            if view.nbytes != end - begin:
                raise ValueError(f"data_offsets hold {end - begin} bytes; {dtype.name} {list(shape)} has {view.nbytes}")
        except ValueError as error:
            defects.append(f"{name!r:.200}: {error}")
            continue
        stored[name] = view
        ranges.append((begin, end, name))
        backing = ByteRange(source.path, data_start + begin, data_start + end)
        storages[number] = Storage(number, view.nbytes, backing)
    if not defects:
        defects = list(_layout_defects(ranges, source.nbytes - data_start))
    if defects:
        raise Defects(source.path, defects)
    return stored, storages


def _entry(item: Any) -> tuple[DType, tuple[int, ...], int, int]:
    """dtype, shape, begin and end of one header entry; ValueError says what is wrong."""
    if not isinstance(item, dict) or not {"dtype", "shape", "data_offsets"} <= item.keys():
        raise ValueError("expected an object with dtype, shape and data_offsets")
    code, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(code, str) or code not in DTYPE_CODES:
        raise ValueError(f"unknown dtype {code!r:.60}")
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(offsets) != 2:
        raise ValueError(f"shape {shape!r:.60} and data_offsets {offsets!r:.60} must be whole numbers")
    if offsets[0] > offsets[1]:
        raise ValueError(f"data_offsets {offsets!r:.60} end before they begin")
    return DTYPES[DTYPE_CODES[code]], tuple(shape), offsets[0], offsets[1]


def _layout_defects(ranges: list[tuple[int, int, str]], data_nbytes: int) -> Iterable[str]:
    """Overlaps, holes, and an end that is not the file's end."""
    reach = 0
    for begin, end, name in sorted(ranges):
        if begin < reach:
            yield f"{name!r:.200}: begins at byte {begin} of the data, inside the one before it, which ends at {reach}"
        elif begin > reach:
            yield f"{name!r:.200}: begins at byte {begin} of the data; the tensor before it ends at {reach}: a hole"
        reach = max(reach, end)
    if reach > data_nbytes:
        yield f"the tensors need {reach} bytes of data, the file has {data_nbytes}: it is truncated"
    elif reach < data_nbytes:
        yield f"{data_nbytes - reach} bytes stand behind the last tensor; expected the end of the file"


# --- writing ---------------------------------------------------------------------------------------------------


def refusals(plan: Plan) -> dict[str, str]:
    """Names that this format has no form for, each with the reason."""
    reasons = {}
    for name, dtype in [
        *((t.name, t.dtype) for t in plan.targets),
        *((a.name, a.view.dtype) for a in plan.aliases),
    ]:
        if dtype.name not in CODE_OF:
            reasons[name] = f"safetensors has no {dtype.name}"
        elif name == METADATA:
            reasons[name] = "safetensors keeps this name for itself"
        elif not _is_utf8(name):
            reasons[name] = "the name cannot be written in UTF-8"
    return reasons


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One safetensors file for a plan."""
    return (_lay_out_file("", plan, plan.targets, _metadata_for(plan, plan.targets, shard=None)),)


def lay_out_sharded(plan: Plan, max_shard_nbytes: int, stem: str = "model") -> tuple[OutputFile, ...]:
    """Shards of at most `max_shard_nbytes` of tensor data (one tensor may be larger), and their index, last.

    The names, `weight_map` and `total_size` are what transformers, accelerate and huggingface_hub read.
    """
    shards = list(_split(plan, max_shard_nbytes))
    files = []
    weight_map: dict[str, str] = {}
    for k, targets in enumerate(shards):
        name = f"{stem}-{k + 1:05d}-of-{len(shards):05d}.safetensors"
        files.append(_lay_out_file(name, plan, targets, _metadata_for(plan, targets, shard=k)))
        weight_map |= {target.name: name for target in targets}
    order = {target.name: weight_map[target.name] for target in plan.targets}
    index = {"metadata": _index_metadata(plan), "weight_map": order}
    text = json.dumps(index, indent=2, ensure_ascii=False) + "\n"
    return (*files, OutputFile(f"{stem}.safetensors.index.json", (text.encode(),)))


MAX_INDEX_NBYTES = 10 << 20
"""huggingface_hub refuses larger index files."""


def _index_metadata(plan: Plan) -> dict[str, Any]:
    """The index's metadata: the total size, and the whole record while the index stays small, else a pointer."""
    text = record.encode(plan, {t.name for t in plan.targets}, objects="")
    names = sum(len(t.name) + 60 for t in plan.targets)
    if text and len(text) + names > MAX_INDEX_NBYTES // 2:
        text = json.dumps({"version": record.VERSION, "in": "shards"}, separators=(",", ":"))
    return {**plan.index_metadata, "total_size": plan.nbytes} | ({record.KEY: text} if text else {})


def _split(plan: Plan, max_nbytes: int) -> Iterable[tuple[Target, ...]]:
    """Targets in order, cut where a shard would grow beyond its size or its header beyond the limit."""
    alias_cost: dict[str, int] = {}
    for alias in plan.aliases:
        owner = str(alias.view.storage)
        alias_cost[owner] = alias_cost.get(owner, 0) + 2 * len(alias.name) + len(owner) + 400
    shard: list[Target] = []
    size = header = 0
    for target in plan.targets:
        cost = len(target.name) + 120 + alias_cost.get(target.name, 0)
        if shard and (size + target.nbytes > max_nbytes or header + cost > SHARD_HEADER_NBYTES):
            yield tuple(shard)
            shard, size, header = [], 0, 0
        shard.append(target)
        size += target.nbytes
        header += cost
    yield tuple(shard)


def _metadata_for(plan: Plan, targets: Iterable[Target], shard: int | None) -> dict[str, str]:
    """A file's metadata: the user's own, `format`, flat pairs where their key is free, and the record."""
    for key in (record.KEY, record.LAYOUTS_KEY):
        if key in plan.metadata:
            raise PlanError(
                f"the input's metadata has a key {key!r} that paramtool did not write",
                hint="rename that key in the input first",
            )
    stored = {target.name for target in targets}
    aliases = [alias for alias in plan.aliases if str(alias.view.storage) in stored]
    metadata = {"format": "pt"} | dict(plan.metadata)
    taken = metadata.keys() | record.RESERVED
    metadata |= {k: v for k, v in record.flat_pairs(plan, aliases).items() if k not in taken}
    objects = {None: "runs", 0: "explicit"}.get(shard, "")
    if text := record.encode(plan, stored, objects, first=not shard):
        metadata[record.KEY] = text
    if not shard and (text := record.encode_modules(plan.modules)):
        metadata[record.LAYOUTS_KEY] = text
    return metadata


def taken_flat_pairs(plan: Plan) -> list[str]:
    """Aliases whose flat pair is left out, because the user's metadata has that key."""
    taken = plan.metadata.keys() | record.RESERVED
    return [alias for alias in record.flat_pairs(plan, plan.aliases) if alias in taken]


def _lay_out_file(name: str, plan: Plan, targets: Iterable[Target], metadata: dict[str, str]) -> OutputFile:
    """Header and data: the data by falling size of element, so that all is aligned, the header in order."""
    targets = tuple(targets)
    if refused := refusals(plan):
        lines = [f"{name!r:.200}: {reason}" for name, reason in refused.items()]
        head = f"{plan.source}: no form in safetensors for {len(refused)} of its tensors:"
        raise PlanError(listed(head, lines), hint="--skip-unsupported leaves them out")
    placed = sorted(targets, key=lambda target: -target.dtype.block_bytes if target.dtype.block_elements == 1 else 0)
    begin = {}
    reach = 0
    for target in placed:
        begin[target.name] = reach
        reach += target.nbytes
    header: dict[str, Any] = {METADATA: metadata} if metadata else {}
    for target in targets:
        start = begin[target.name]
        offsets = [start, start + target.nbytes]
        header[target.name] = {
            "dtype": CODE_OF[target.dtype.name],
            "shape": target.shape,
            "data_offsets": offsets,
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_SAFETENSORS_HEADER:
        raise PlanError(
            f"the header would have {len(text)} bytes; safetensors allows {MAX_SAFETENSORS_HEADER}",
            hint="--max-shard-size 5GB splits it",
        )
    return OutputFile(name, (HEADER_LENGTH.pack(len(text)) + text, *placed))


def stored_names(path: str) -> list[str]:
    """The names of the stored tensors in the order of the header, which numbers their storages."""
    file, source = open_source(path)
    with file:
        header, _ = _read_header(file, source)
    return [name for name in header if name != METADATA]


def left_out_objects(plan: Plan) -> Iterable[str]:
    """What the record leaves out of the tree of objects."""
    return _tree.left_out(plan.objects)
