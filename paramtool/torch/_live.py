"""Models in memory, described as checkpoints are: names, and windows on storages."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.storage import ByteRange, SourceFile, Storage
from paramtool.model.view import View


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and persistent buffers of a model by their names, the objects themselves."""
    return {n: t for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}


def described(tensors: Mapping[str, torch.Tensor]) -> Checkpoint:
    """Tensors as a checkpoint whose storages are theirs; those on the meta device have storages, too."""
    ids: dict[tuple[str, int], int] = {}
    sizes: dict[int, int] = {}
    entries: dict[str, Entry] = {}
    for name, tensor in tensors.items():
        number = ids.setdefault(_storage(tensor, len(ids)), len(ids))
        sizes[number] = tensor.untyped_storage().nbytes()
        view = View(number, dtype_of(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))
        entries[name] = Entry(view)
    storages = {n: Storage(n, size, ByteRange("", 0, size)) for n, size in sizes.items()}
    return Checkpoint("model", (SourceFile("model", 0, 0),), storages, entries)


def dtype_of(tensor: torch.Tensor) -> DType:
    """The type of a tensor's elements."""
    return DTYPES[str(tensor.dtype).removeprefix("torch.")]


def without_values(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors on the meta device that lie on their storages as others do."""
    bases: dict[tuple[object, torch.dtype], torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        key = (_storage(tensor, len(bases)), tensor.dtype)
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        base = bases.setdefault(key, torch.empty(count, dtype=tensor.dtype, device="meta"))
        found[name] = base.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset()))
    return found


def _storage(tensor: torch.Tensor, otherwise: int) -> tuple[str, int]:
    """What two tensors of one storage have in common, and no others; tensors without elements share nothing.

    Addresses tell storages apart, but all of the meta device's are 0: there, the storage object itself does.
    """
    if not tensor.numel():
        return "empty", otherwise
    storage = tensor.untyped_storage()
    if tensor.is_meta:
        return "meta", storage._cdata
    return str(tensor.device), storage.data_ptr()
