"""Files into tensors: every name of a checkpoint, names of one alias set as windows on one buffer."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence

import torch

from paramtool.commands.load import read_locked, with_data
from paramtool.commands.pinned import pin
from paramtool.commands.progress import Path
from paramtool.engine.read.load import LoadBuffer, cannot_allocate, fill, load_buffers
from paramtool.engine.read.source import Source
from paramtool.formats.judging import judging
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import reading
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import ByteRange
from paramtool.model.view import View, contiguous
from paramtool.passes.compat.wanted import as_pairs, kind_of


@reading
@judging("path")
def load_file(
    path: Path,
    *,
    only: str | None = None,
    device: str | torch.device = "cpu",
    lock: Path | None = None,
    locked_as: str | None = None,
    content_only: bool = False,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
) -> dict[str, torch.Tensor]:
    """Every name of a checkpoint as a tensor; names that share memory in the source share it here, equal ones do not.

    Conjugated and negated tensors come resolved, once for each window.  Parts of sparse and quantised tensors come as
    `name/part`.  `only` names the section that is loaded, its prefix stripped.  `lock`, `locked_as` and
    `content_only` as of `paramtool.load_file`.
    FormatError names a tensor that has no data; UnsafeError, `allow_class` and `allow_unknown` as of `paramtool.read`.
    """
    pinned = pin(lock, locked_as, content_only)
    checkpoint = with_data(read_locked(path, pinned, only, allow_class, allow_unknown))
    with Source(checkpoint) as source:
        found = read(source, checkpoint, device)
    order = dict.fromkeys([*checkpoint.entries, *(name for name, _ in checkpoint.windows())])
    return {name: found[name] for name in order if name in found}


def read(
    source: Source, checkpoint: Checkpoint, device: str | torch.device, lent: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, each alias set in one buffer.

    Those of the names in `lent` are pages of the file where they can be, mapped privately: a name is lent to somebody
    who copies from it and keeps nothing, since such a page is lost with the file; no CRC of them is compared.  All
    others are in memory.
    """
    graph = alias.build(checkpoint)
    maps: dict[str, mmap.mmap] = {}
    found: dict[str, torch.Tensor] = {}
    for part in load_buffers(graph):
        buffer = _pages(source, part, maps) if all(name in lent for name, _ in part.windows) else None
        if buffer is None:
            try:
                buffer = torch.empty(part.nbytes, dtype=torch.uint8)
            except (MemoryError, RuntimeError):
                raise cannot_allocate(source, part) from None
            fill(source, part, buffer.numpy().data)
        buffer = buffer.to(device)
        found |= {name: window(buffer, view) for name, view in part.windows}
    data = {name: found.pop(f"{name}/data") for name in graph.pending}
    for owner in {*graph.pending.values()}:
        kind, tensor = kind_of(checkpoint.entries[owner].value), data[owner]
        tensor = tensor.conj().resolve_conj() if "conj" in kind else tensor
        data[owner] = -tensor if "neg" in kind else tensor
    return found | {name: data[owner][...] for name, owner in graph.pending.items()}


def _pages(source: Source, part: LoadBuffer, maps: dict[str, mmap.mmap]) -> torch.Tensor | None:
    """The bytes of an alias set where they lie in their file; None where they do not lie there as torch has them."""
    owner = part.owner
    backing = source.checkpoint.storages[int(owner.storage)].backing
    if not (isinstance(backing, ByteRange) and owner.is_contiguous and part.nbytes):
        return None
    start = backing.start + owner.byte_start + part.byte_start
    if any((start + view.byte_start) % view.dtype.block_bytes for _, view in part.windows):
        return None
    file, _ = source.place(int(owner.storage))
    try:
        if backing.file not in maps:
            maps[backing.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(maps[backing.file], dtype=torch.uint8, offset=start, count=part.nbytes)
    except (OSError, ValueError):  # a file that cannot be mapped, or is shorter now: reading says so
        return None


def window(buffer: torch.Tensor, view: View) -> torch.Tensor:
    """A window on a buffer of bytes."""
    view = as_pairs(view)
    if view.dtype.block_elements != 1:
        view = contiguous(view.storage, DTYPES["uint8"], (view.nbytes,), view.byte_start)
    return torch.empty(0, dtype=torch_type(view), device=buffer.device).set_(
        buffer.untyped_storage(), view.offset, view.shape, view.strides
    )


def torch_type(view: View) -> torch.dtype:
    """The type of the tensor that a window becomes: of float4 pairs, of other packed types bytes."""
    dtype = as_pairs(view).dtype
    found: torch.dtype = torch.uint8 if dtype.block_elements != 1 else getattr(torch, dtype.name)
    return _QUANTISED.get(found, found)


_QUANTISED = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
    torch.quint4x2: torch.uint8,
    torch.quint2x4: torch.uint8,
}
"""Integer forms of quantised values: their scales stand in the entry's facts."""
