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
from functools import lru_cache
from struct import Struct
from types import MappingProxyType
from typing import Any, BinaryIO

from paramtool.errors import Defects, FormatError, PlanError, UsageError, listed, plural
from paramtool.formats import _index, _json, _tree, record
from paramtool.formats._codes import CODE_OF, DTYPE_CODES
from paramtool.formats._output import OutputFile
from paramtool.formats._sniff import MAX_SAFETENSORS_HEADER
from paramtool.formats._weights import WeightsName
from paramtool.formats.files import open_source
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import EMPTY
from paramtool.model.plan import Plan, Target
from paramtool.model.storage import Ranges, SourceFile
from paramtool.model.view import View, contiguous

NAME = "safetensors"
HEADER_LENGTH = Struct("<Q")
SHARD_HEADER_NBYTES = 80_000_000
"""A shard is closed before its header comes near the limit."""
METADATA = "__metadata__"
MAX_DEPTH = 126
"""Of an entry with members that nobody knows: serde_json takes 127 with the header around it."""
ALIGN = 8
"""Tensor data begins at a multiple of so many bytes, as the safetensors library's own writer has it."""
MAX_ALIGN = 65536
"""The largest page that processors in use have."""


# --- reading ---------------------------------------------------------------------------------------------------


def read(path: str) -> Checkpoint:
    """Describe a safetensors file; FormatError, or Defects where there are several."""
    file, source = open_source(path)
    with file:
        header, data_start = _read_header(file, source)
    metadata = _metadata(path, header.pop(METADATA, None))
    stored, storages = _tensors(source, header, data_start)
    names = record.decode(path, stored, metadata)
    objects = names.objects if names.objects is not None else EMPTY
    return Checkpoint(
        format=NAME,
        files=(source,),
        storages={**storages, **names.storages} if names.storages else storages,
        entries=_tree.with_roles(names.entries, objects),
        objects=objects,
        sections=_tree.sections(objects),
        metadata=names.leftover,
        modules=record.decode_modules(path, metadata),
        producer="paramtool" if record.KEY in metadata else "",
    )


def _read_header(file: BinaryIO, source: SourceFile) -> tuple[dict[str, Any], int]:
    path = source.path
    start = file.read(HEADER_LENGTH.size)
    if len(start) < HEADER_LENGTH.size:
        raise FormatError(
            f"{path}: has {plural(len(start), 'byte')}; a safetensors file begins with 8 bytes of header length"
        )
    (length,) = HEADER_LENGTH.unpack(start)
    if length > MAX_SAFETENSORS_HEADER:
        raise FormatError(f"{path}: byte 0: header length {length}; the specification allows {MAX_SAFETENSORS_HEADER}")
    if HEADER_LENGTH.size + length > source.nbytes:
        raise FormatError(
            f"{path}: byte 0: header length {length}, but the file has {source.nbytes} bytes; "
            "it is truncated or no safetensors file"
        )
    read = file.read(length)
    if read[:1] != b"{":
        raise FormatError(f"{path}: byte 8: the header begins with {read[:1]!r}; expected '{{'")
    try:
        text = read.decode("utf-8")
        del read  # a million names are a hundred megabytes
        header = _json.strict(text, _compact, finite=True)
    except ValueError as error:
        raise FormatError(f"{path}: byte 8: the header is no JSON: {error}") from None
    return header, HEADER_LENGTH.size + length


def _metadata(path: str, found: Any) -> dict[str, str]:
    if found is None:  # absent, or null
        return {}
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise FormatError(f"{path}: {METADATA} must map texts to texts")
    return found


def _compact(item: dict[str, Any]) -> Any:
    """What is kept of an object of the header: of the entry of a tensor the values alone, else all of it."""
    try:
        return _entry(item)
    except ValueError:
        return item


def _tensors(source: SourceFile, header: dict[str, Any], data_start: int) -> tuple[dict[str, View], Ranges]:
    """Every stored tensor with a storage of its own; all defects of the header together.  Takes the header apart."""
    defects: list[str] = []
    stored: dict[str, View] = {}
    begins, ends = [], []
    for number, (name, item) in enumerate(header.items()):
        header[name] = None  # entries and windows are never there at once
        try:
            dtype, shape, begin, end = item if isinstance(item, tuple) else _entry(item)
            view = contiguous(number, dtype, shape)
            if view.nbytes != end - begin:
                raise ValueError(f"data_offsets hold {end - begin} bytes; {dtype.name} {list(shape)} has {view.nbytes}")
        except ValueError as error:
            defects.append(f"{name!r:.200}: {error}")
            continue
        stored[name] = view
        begins.append(begin)
        ends.append(end)
    if not defects:
        defects = list(_layout_defects(zip(begins, ends, stored, strict=True), source.nbytes - data_start))
    if defects:
        raise Defects(source.path, defects)
    return stored, Ranges(source.path, (data_start + n for n in begins), (data_start + n for n in ends))


def _entry(item: Any) -> tuple[DType, tuple[int, ...], int, int]:
    """dtype, shape, begin and end of one header entry; ValueError says what is wrong."""
    if not isinstance(item, dict) or not {"dtype", "shape", "data_offsets"} <= item.keys():
        raise ValueError("expected an object with dtype, shape and data_offsets")
    if len(item) > 3 and _json.depth(item) > MAX_DEPTH:
        raise ValueError("has a member that is nested too deep")
    code, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(code, str) or code not in DTYPE_CODES:
        raise ValueError(f"unknown dtype {code!r:.60}")
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(offsets) != 2:
        raise ValueError(f"shape {shape!r:.60} and data_offsets {offsets!r:.60} must be whole numbers")
    if offsets[0] > offsets[1]:
        raise ValueError(f"data_offsets {offsets!r:.60} end before they begin")
    return DTYPES[DTYPE_CODES[code]], _one_of_equal(tuple(shape)), offsets[0], offsets[1]


@lru_cache(4096)
def _one_of_equal(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The same tuple for equal shapes: many tensors have few."""
    return shape


def _layout_defects(ranges: Iterable[tuple[int, int, str]], data_nbytes: int) -> Iterable[str]:
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


def refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """Of {name: dtype} the names that this format has no form for, each with the reason."""
    reasons = {}
    for name, dtype in dtypes.items():
        if dtype not in CODE_OF:
            reasons[name] = f"safetensors has no {dtype}"
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


def lay_out(plan: Plan, align: int = ALIGN) -> tuple[OutputFile, ...]:
    """One safetensors file for a plan; `align` as for `shard`."""
    refuse(plan)
    return (shard("", plan.targets, _metadata_for(plan, plan.targets, shard=None), align),)


def lay_out_sharded(plan: Plan, max_shard_nbytes: int, name: WeightsName, align: int = ALIGN) -> tuple[OutputFile, ...]:
    """Shards of at most `max_shard_nbytes` of tensor data (one tensor may be larger), and their index, last.

    The names, `weight_map` and `total_size` are what transformers, accelerate and huggingface_hub read.
    """
    refuse(plan)
    shards = list(split(plan.targets, max_shard_nbytes, _alias_cost(plan)))
    files = []
    weight_map: dict[str, str] = {}
    for k, targets in enumerate(shards):
        file = name.shard(k, len(shards))
        files.append(shard(file, targets, _metadata_for(plan, targets, shard=k), align))
        weight_map |= {target.name: file for target in targets}
    return (*files, _index.over_shards(plan, weight_map, name.index))


def _alias_cost(plan: Plan) -> dict[str, int]:
    """{target: about how many bytes of the header its aliases take}."""
    cost: dict[str, int] = {}
    for alias in plan.aliases:
        cost[alias.owner] = cost.get(alias.owner, 0) + 2 * len(alias.name) + len(alias.owner) + 400
    return cost


def split(
    targets: Iterable[Target], max_nbytes: int, alias_cost: Mapping[str, int] = MappingProxyType({})
) -> Iterable[tuple[Target, ...]]:
    """Targets in order, cut where a shard would grow beyond its size or its header beyond the limit."""
    shard: list[Target] = []
    size = header = 0
    for target in targets:
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
    record.refuse_own_keys(plan)
    stored = {target.name for target in targets}
    aliases = [alias for alias in plan.aliases if alias.owner in stored]
    metadata = {"format": "pt"} | dict(plan.metadata)
    taken = metadata.keys() | record.RESERVED
    metadata |= {k: v for k, v in record.flat_pairs(plan, aliases).items() if k not in taken}
    objects = {None: "runs", 0: "explicit"}.get(shard, "")
    text = record.encode(plan, stored, objects, first=not shard)
    if text or record.reads_as_pairs(metadata, stored):
        metadata[record.KEY] = text or record.NOTHING
    if not shard and (text := record.encode_modules(plan.modules)):
        metadata[record.LAYOUTS_KEY] = text
    return metadata


def taken_flat_pairs(plan: Plan) -> list[str]:
    """Aliases whose flat pair is left out, because the user's metadata has that key."""
    taken = plan.metadata.keys() | record.RESERVED
    return [alias for alias in record.flat_pairs(plan, plan.aliases) if alias in taken]


def refuse(plan: Plan) -> None:
    """PlanError where a plan holds what this format has no form for."""
    if refused := refusals(plan.dtypes()):
        lines = [f"{name!r:.200}: {reason}" for name, reason in refused.items()]
        head = f"{plan.source}: no form in safetensors for {plural(len(refused), 'tensor')}:"
        hint = "dedup --skip-unsupported leaves them out; -o NAME.pt has a form for every type of torch"
        raise PlanError(listed(head, lines), hint=hint)


def shard(name: str, targets: Iterable[Target], metadata: Mapping[str, str], align: int = ALIGN) -> OutputFile:
    """Header and data of one file: the header in the order of the targets.

    The data begins at a multiple of `align` bytes of the file.  It stands by falling size of element, so that every
    tensor is aligned for its type; with pages to align for, tensors of whole pages come first and all begin on one.
    """
    targets = tuple(targets)
    placed = sorted(targets, key=lambda target: _rank(target, align))
    begin = {}
    reach = 0
    for target in placed:
        begin[target.name] = reach
        reach += target.nbytes
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for target in targets:
        start = begin[target.name]
        offsets = [start, start + target.nbytes]
        header[target.name] = {
            "dtype": CODE_OF[target.dtype.name],
            "shape": target.shape,
            "data_offsets": offsets,
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(HEADER_LENGTH.size + len(text)) % align)
    if len(text) > MAX_SAFETENSORS_HEADER:
        raise PlanError(
            f"the header would have {len(text)} bytes; safetensors allows {MAX_SAFETENSORS_HEADER}",
            hint="--max-shard-size 5GB splits it",
        )
    return OutputFile(name, (HEADER_LENGTH.pack(len(text)) + text, *placed))


def _rank(target: Target, align: int) -> tuple[bool, int]:
    """Where a tensor stands among the others: whole pages first, then by falling size of element."""
    in_pages = align > ALIGN and target.nbytes % align == 0
    return not in_pages, -target.dtype.block_bytes if target.dtype.block_elements == 1 else 0


def check_align(align: int) -> None:
    """UsageError where tensor data cannot be asked to begin at a multiple of so many bytes."""
    if not ALIGN <= align <= MAX_ALIGN or align & (align - 1):
        raise UsageError(
            f"align is {align}; expected a power of two from {ALIGN} to {MAX_ALIGN}",
            hint="--align 4096: the pages of most machines, and the blocks of most file systems",
        )


def stored_names(path: str) -> list[str]:
    """The names of the stored tensors in the order of the header, which numbers their storages."""
    file, source = open_source(path)
    with file:
        header, _ = _read_header(file, source)
    return [name for name in header if name != METADATA]


def left_out_objects(plan: Plan) -> Iterable[str]:
    """What the record leaves out of the tree of objects."""
    return _tree.left_out(plan.objects)
