"""Write safetensors: one file, or shards with their index, in the order and alignment of the library's own writer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from types import MappingProxyType

from paramtool.errors import PlanError, UsageError
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.formats.output import OutputFile, is_utf8, refuse_tensors
from paramtool.formats.record import codec as record
from paramtool.formats.record import layouts
from paramtool.formats.safetensors import CODE_OF, index
from paramtool.formats.safetensors.read import HEADER_LENGTH, METADATA
from paramtool.formats.sniff import MAX_SAFETENSORS_HEADER
from paramtool.model.plan import Plan, Target

SHARD_HEADER_NBYTES = 80_000_000
"""The largest header of a shard, well below the format's limit."""
ALIGN = 8
"""The alignment of tensor data in bytes, as in the safetensors library's own writer."""
MAX_ALIGN = 65536
"""The largest page size of current processors."""


def refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that safetensors cannot store."""
    reasons = {}
    for name, dtype in dtypes.items():
        if dtype not in CODE_OF:
            reasons[name] = f"safetensors has no {dtype}"
        elif name == METADATA:
            reasons[name] = "safetensors reserves this name"
        elif not is_utf8(name):
            reasons[name] = "the name cannot be written in UTF-8"
    return reasons


def lay_out(plan: Plan, align: int = ALIGN) -> tuple[OutputFile, ...]:
    """One safetensors file for a plan; `align` as for `shard`."""
    refuse(plan)
    return (shard("", plan.targets, _metadata_for(plan, plan.targets, shard=None), align),)


def lay_out_sharded(plan: Plan, max_shard_size: int, name: WeightsName, align: int) -> tuple[OutputFile, ...]:
    """Shards of at most `max_shard_size` of tensor data (one tensor may be larger), and their index, last.

    The names, `weight_map` and `total_size` are what transformers, accelerate and huggingface_hub read.
    """
    refuse(plan)
    # {target: estimated bytes of its aliases in the header}
    cost: dict[str, int] = {}
    for alias in plan.aliases:
        cost[alias.owner] = cost.get(alias.owner, 0) + 2 * len(alias.name) + len(alias.owner) + 400
    shards = list(split(plan.targets, max_shard_size, cost))
    files = []
    weight_map: dict[str, str] = {}
    for k, targets in enumerate(shards):
        file = name.shard(k, len(shards))
        files.append(shard(file, targets, _metadata_for(plan, targets, shard=k), align))
        weight_map |= {target.name: file for target in targets}
    return (*files, index.over_shards(plan, weight_map, name.index))


def split(
    targets: Iterable[Target], max_nbytes: int, alias_cost: Mapping[str, int] = MappingProxyType({})
) -> Iterable[tuple[Target, ...]]:
    """Targets in order, split so that no shard exceeds its size and no header its limit."""
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
    """A file's metadata: the user's own, `format`, flat pairs whose key is free, and the record."""
    record.refuse_own_keys(plan)
    stored = {target.name for target in targets}
    aliases = [alias for alias in plan.aliases if alias.owner in stored]
    metadata = ({} if plan.is_bare else {"format": "pt"}) | dict(plan.metadata)
    taken = metadata.keys() | record.RESERVED
    metadata |= {k: v for k, v in record.flat_pairs(plan, aliases).items() if k not in taken}
    objects = {None: "runs", 0: "explicit"}.get(shard, "")
    text = record.encode(plan, stored, objects, first=not shard)
    if text or record.reads_as_pairs(metadata, stored):
        metadata[record.KEY] = text or record.NOTHING
    if not shard and (text := layouts.encode(plan.modules)):
        metadata[layouts.KEY] = text
    return metadata


def taken_flat_pairs(plan: Plan) -> list[str]:
    """Aliases whose flat pair is omitted because the user's metadata has that key."""
    taken = plan.metadata.keys() | record.RESERVED
    return [alias for alias in record.flat_pairs(plan, plan.aliases) if alias in taken]


def refuse(plan: Plan) -> None:
    """PlanError if a plan holds tensors that safetensors cannot store."""
    hint = "dedup --skip-unsupported omits them; -o NAME.pt can store every type of torch"
    refuse_tensors(plan, "safetensors", refusals(plan.dtypes()), hint)


def shard(name: str, targets: Iterable[Target], metadata: Mapping[str, str], align: int = ALIGN) -> OutputFile:
    """Header and data of one file: the header in the order of the targets.

    The data begins at a multiple of `align` bytes of the file.  It is sorted by descending element size, so that every
    tensor is aligned for its type.  If `align` is a page size, tensors of whole pages come first, each at a page.
    """
    targets = tuple(targets)
    placed = sorted(targets, key=lambda target: _rank(target, align))
    begin = {}
    reach = 0
    for target in placed:
        begin[target.name] = reach
        reach += target.nbytes
    header = _header(targets, metadata, begin, align)
    nbytes = len(header) - HEADER_LENGTH.size
    if nbytes > MAX_SAFETENSORS_HEADER:
        raise PlanError(
            f"the header would have {nbytes} bytes; safetensors allows {MAX_SAFETENSORS_HEADER}",
            hint="--max-shard-size 5GB splits it",
        )
    return OutputFile(name, (header, *placed))


STEP = 1 << 20
"""How many characters of a record are encoded at once."""


def _header(targets: Sequence[Target], metadata: Mapping[str, str], begin: Mapping[str, int], align: int) -> bytes:
    """The length of a header and its JSON text, made tensor by tensor: the objects of all take much more memory."""
    encoded = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    text = BytesIO()
    text.write(HEADER_LENGTH.pack(0) + b"{")
    if metadata:
        text.write(f"{encoded(METADATA)}:{{".encode())
        for k, (key, value) in enumerate(metadata.items()):
            text.write(f'{"," if k else ""}{encoded(key)}:"'.encode())
            for at in range(0, len(value), STEP):
                text.write(encoded(value[at : at + STEP])[1:-1].encode())
            text.write(b'"')
        text.write(b"}," if targets else b"}")
    for k, target in enumerate(targets):
        start, shape = begin[target.name], ",".join(map(str, target.shape))
        text.write(
            f'{"," if k else ""}{encoded(target.name)}:{{"dtype":"{CODE_OF[target.dtype.name]}",'
            f'"shape":[{shape}],"data_offsets":[{start},{start + target.nbytes}]}}'.encode()
        )
    text.write(b"}")
    text.write(b" " * (-text.tell() % align))
    nbytes = text.tell()
    text.seek(0)
    text.write(HEADER_LENGTH.pack(nbytes - HEADER_LENGTH.size))
    return text.getvalue()


def _rank(target: Target, align: int) -> tuple[bool, int]:
    """The sort key of a tensor: whole pages first, then by descending element size."""
    in_pages = align > ALIGN and target.nbytes % align == 0
    return not in_pages, -target.dtype.block_bytes if target.dtype.block_elements == 1 else 0


def check_align(align: int) -> None:
    """UsageError if `align` is not a valid alignment of tensor data."""
    if not ALIGN <= align <= MAX_ALIGN or align & (align - 1):
        raise UsageError(
            f"--align is {align}; expected a power of two from {ALIGN} to {MAX_ALIGN}",
            hint="--align 4096 is the page size of most machines, and the block size of most file systems",
        )
