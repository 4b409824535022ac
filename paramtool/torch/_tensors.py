"""Files into tensors: every name of a checkpoint, names of one memory as windows on one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from paramtool import formats
from paramtool.engine.load import fill, memories
from paramtool.engine.source import Source
from paramtool.engine.verify import as_target
from paramtool.jobs._progress import Path
from paramtool.jobs.loading import refuse_dataless
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Compound, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous
from paramtool.passes import select


def load_file(path: Path, *, section: str | None = None, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Every name of a checkpoint as a tensor; names that share memory in the source share it here, equal ones do not.

    Parts of sparse and quantised tensors come as `name/part`.  FormatError names a tensor that has no data.
    """
    checkpoint = formats.read(path)
    if section is not None:
        checkpoint = select.section(checkpoint, section)
    refuse_dataless(checkpoint)
    with Source(checkpoint) as source:
        found = {name: tensor for batch in batches(source, checkpoint, device) for name, tensor in batch.items()}
    order = dict.fromkeys([*checkpoint.entries, *(name for name, _ in checkpoint.windows())])
    return {name: found[name] for name in order if name in found}


def batches(source: Source, checkpoint: Checkpoint, device: str | torch.device) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of one memory after the other, each memory in one buffer."""
    graph = alias.build(checkpoint)
    pending = {f"{n}/data": (n, e) for n, e in checkpoint.entries.items() if as_compound(e)}
    for memory in memories(graph):
        buffer = torch.empty(memory.nbytes, dtype=torch.uint8)
        fill(source, memory, buffer.numpy().data)
        buffer = buffer.to(device)
        batch = {name: _window(buffer, view) for name, view in memory.windows}
        for part in [part for part in batch if part in pending]:
            name, entry = pending[part]
            batch[name] = _resolved(batch.pop(part), entry)
        yield batch


def as_compound(entry: Entry) -> bool:
    """Whether an entry is one window with a conjugation or negation that was not carried out."""
    return isinstance(entry.value, Compound) and as_target("", entry) is not None


def _resolved(tensor: torch.Tensor, entry: Entry) -> torch.Tensor:
    assert isinstance(entry.value, Compound)
    if "conj" in entry.value.kind:
        tensor = tensor.conj().resolve_conj()
    return -tensor if "neg" in entry.value.kind else tensor


def _window(buffer: torch.Tensor, view: View) -> torch.Tensor:
    """A window on a buffer of bytes."""
    if view.dtype.name == "float4_e2m1fn" and view.shape and view.shape[-1] % 2 == 0:  # torch counts pairs
        pairs = contiguous(view.storage, DTYPES["float4_e2m1fn_x2"], (*view.shape[:-1], view.shape[-1] // 2))
        view = replace(pairs, offset=view.byte_start)
    elif view.dtype.block_elements != 1:
        view = contiguous(view.storage, DTYPES["uint8"], (view.nbytes,), view.byte_start)
    dtype = getattr(torch, view.dtype.name)
    if dtype in _QUANTISED:
        dtype = _QUANTISED[dtype]
    return torch.empty(0, dtype=dtype, device=buffer.device).set_(
        buffer.untyped_storage(), view.offset, view.shape, view.strides
    )


_QUANTISED = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
    torch.quint4x2: torch.uint8,
    torch.quint2x4: torch.uint8,
}
"""Integer forms of quantised values: their scales stand in the entry's facts."""
