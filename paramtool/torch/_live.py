"""Models in memory, described as checkpoints are: names, and windows on storages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from paramtool.errors import ModelError, listed, plural
from paramtool.model.checkpoint import Checkpoint, Entry, Unreadable
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.storage import ByteRange, SourceFile, Storage
from paramtool.model.view import View
from paramtool.torch.tensors import window

Tensors = Mapping[str, torch.Tensor]
SHARDED = {"FullyShardedDataParallel", "DTensor"}
"""Classes of modules and tensors that hold a part of what a file has."""


SETTINGS = (type(None), bool, int, float, str, torch.dtype)


def tensors_of(model: nn.Module, *, every: bool = False) -> dict[str, torch.Tensor]:
    """The parameters and persistent buffers of a model by their names: the objects themselves, in torch's order.

    With `every`, also buffers that no state dict has.  `state_dict` is no substitute: hooks may put temporaries or
    other names into it.
    """
    found: dict[str, torch.Tensor] = {}
    for at, module in model.named_modules(remove_duplicate=False):
        both = (*module._parameters.items(), *module._buffers.items())
        kept = (one for one in both if every or one[0] not in module._non_persistent_buffers_set)
        found |= {f"{at}.{name}" if at else name: tensor for name, tensor in kept if tensor is not None}
    return found


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a window on a storage, and no more: not lazy, sparse, quantised or made of others.

    A library's class of parameters is, as long as its attributes are mere settings: weights before they are quantised.
    """
    known = type(tensor) is torch.Tensor or isinstance(tensor, nn.Parameter)  # a Buffer has the type torch.Tensor
    if not known or nn.parameter.is_lazy(tensor) or hasattr(tensor, "__tensor_flatten__"):
        return False
    settings = type(tensor) is nn.Parameter or all(isinstance(one, SETTINGS) for one in vars(tensor).values())
    return settings and tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several elements of a plain tensor are one."""
    return is_plain(tensor) and not View(0, DTYPES["uint8"], 0, tuple(tensor.shape), tensor.stride()).is_injective


def refuse_unfit(where: str, model: nn.Module, tensors: Tensors, assign: bool = False) -> None:
    """ModelError that names what in a model torch could not fill with a whole tensor; `assign` fills none."""
    for name, one in (*model.named_modules(), *tensors.items()):
        if (kind := type(one).__name__) in SHARDED:
            raise ModelError(
                f"{where}: {name or 'the model'!r} is a {kind}, which holds a shard of what a file has",
                hint="load the model before it is sharded",
            )
    wrong = [
        f"{name!r}: is nested, which torch loads none of"
        if tensor.is_nested
        else f"{name!r}: is expanded: several of its elements are one; make it .contiguous() first"
        for name, tensor in tensors.items()
        if tensor.is_nested or (is_expanded(tensor) and not assign)
    ]
    if wrong:
        raise ModelError(listed(f"{where}: {plural(len(wrong), 'tensor')} of the model cannot be filled:", wrong))


def refuse_opaque(tensors: Tensors, names: Iterable[str], anew: bool = False) -> None:
    """ModelError that names one of the tensors that are to be made, all if `anew`, and only their library can make."""
    for name in names:
        if not is_plain(one := tensors[name]) and (one.is_meta or anew):
            raise ModelError(
                f"{name!r} is a {type(one).__name__}, which only its library can make anew",
                hint=f"load {'without assign ' * anew}into a model that has memory",
            )


def described(tensors: Tensors) -> Checkpoint:
    """Tensors as a checkpoint whose storages are theirs; those on the meta device have storages, too.

    Of tensors that are not plain, only the name is told.
    """
    ids: dict[object, int] = {}
    sizes: dict[int, int] = {}
    entries: dict[str, Entry] = {}
    for name, tensor in tensors.items():
        if not is_plain(tensor):
            entries[name] = Entry(Unreadable(type(tensor).__name__))
            continue
        number = ids.setdefault(place(tensor), len(ids))
        sizes[number] = tensor.untyped_storage().nbytes()
        dtype, offset = dtype_of(tensor.dtype), int(tensor.storage_offset())
        entries[name] = Entry(View(number, dtype, offset, tuple(tensor.shape), tuple(tensor.stride())))
    storages = {n: Storage(n, size, ByteRange("", 0, size)) for n, size in sizes.items()}
    return Checkpoint("model", (SourceFile("model", 0, 0),), storages, entries)


def dtype_of(dtype: torch.dtype) -> DType:
    """What a type of torch is here."""
    return DTYPES[str(dtype).removeprefix("torch.")]


def without_values(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Tensors on the meta device that lie on their storages as others do; what is not plain is left out."""
    checkpoint = described({name: tensor for name, tensor in tensors.items() if is_plain(tensor)})
    storages = checkpoint.storages.items()
    places = {number: torch.empty(one.nbytes, dtype=torch.uint8, device="meta") for number, one in storages}
    return {name: window(places[int(view.storage)], view) for name, view in checkpoint.views().items()}


def place(tensor: torch.Tensor) -> tuple[str, int]:
    """What two tensors of one storage have in common, and no others; tensors without elements share nothing.

    Addresses tell storages apart, but all of the meta device's are 0: there, the storage object itself does.
    """
    if not is_plain(tensor) or not tensor.numel():
        return "alone", id(tensor)
    storage = tensor.untyped_storage()
    if tensor.is_meta:
        return "meta", storage._cdata
    return str(tensor.device), storage.data_ptr()
