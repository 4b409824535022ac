"""New tensors for a model, which take the places of those that it has: where it is on meta, or with `assign`.

They share memory just as the old ones do: for each alias set of the model, or each storage that is filled as a whole (a
flattened LSTM), one new storage is made, with every window where it was.  What the file ties and the model does not
goes into two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from paramtool.errors import ModelError, UsageError
from paramtool.model import alias
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.view import View
from paramtool.torch._live import described, is_plain
from paramtool.torch.tensors import window

ALIGNMENT = 16
"""The largest element: windows that begin on their elements still do behind a start that is a multiple of it."""
Tensors = Mapping[str, torch.Tensor]
Views = dict[str, View]
Types = dict[str, DType]


def check_request(tensors: Tensors, assign: bool, device: torch.device | None, dtype: torch.dtype | None) -> None:
    """UsageError where `device` or `dtype` ask for what only new tensors could be."""
    if dtype is not None and not dtype.is_floating_point:
        raise UsageError(f"dtype={dtype}: only floating types are cast; expected one such as torch.bfloat16")
    if device is not None and device.type == "meta":
        raise UsageError("device=meta: tensors there have no values; expected a device with memory")
    for name, tensor in tensors.items() if not assign else ():
        if tensor.is_meta:
            continue
        there = tensor.device  # `cuda` means any of them
        if device is not None and (device.type != there.type or device.index not in (None, there.index)):
            raise UsageError(f"{name!r} is on {there} and stays there; device={device} is for new tensors",
                             hint=f"assign=True, or model.to({str(device)!r}) first")  # fmt: skip
        if dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype:
            raise UsageError(f"{name!r} is {tensor.dtype} and stays so; dtype={dtype} is for new tensors",
                             hint=f"assign=True, or model.to({dtype}) first")  # fmt: skip


def renewed(
    tensors: Tensors,
    found: Mapping[str, torch.dtype | None],
    *,
    assign: bool,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> dict[str, torch.Tensor]:
    """New tensors without values for the names of `found`, and for those that stand on one alias set with them.

    All are new with `assign`, else those that are on the meta device.  `found` are the names that get values, with
    their types in the file, if these are known.  ModelError where a tensor cannot be replaced.
    """
    old = {name: tensor for name, tensor in tensors.items() if assign or tensor.is_meta}
    if strange := [name for name in old if name in found and not is_plain(old[name])]:
        raise ModelError(
            f"{strange[0]!r} is a {type(old[strange[0]]).__name__}, which only its library can make anew",
            hint="load without assign into a model that has memory",
        )
    new: dict[str, torch.Tensor] = {}
    for views, types in _shared({n: t for n, t in old.items() if is_plain(t)}, found, assign, dtype):
        first = tensors[next(iter(views))]
        moved, nbytes = _moved(views, types)
        place = device or (torch.device("cpu") if first.is_meta else first.device)
        buffer = torch.empty(nbytes, dtype=torch.uint8, device=place)
        made: dict[int, torch.Tensor] = {}
        for name, view in moved.items():  # a parameter with several names stays one
            before = tensors[name]
            if id(before) not in made:
                values = window(buffer, view)
                if isinstance(before, nn.Parameter):
                    values = nn.Parameter(values, False)
                    values.__dict__.update(before.__dict__)
                made[id(before)] = values.requires_grad_(before.requires_grad)
            new[name] = made[id(before)]
    return new


def install(model: nn.Module, old: Tensors, new: Tensors) -> None:
    """Put tensors where a model has others, in all of its modules; names say which for which."""
    number = {id(old[name]): tensor for name, tensor in new.items()}
    for module in model.modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and id(tensor) in number:
                setattr(module, name, number[id(tensor)])  # torch's RNNs keep lists that only this updates


def _shared(
    new: Tensors, found: Mapping[str, torch.dtype | None], assign: bool, dtype: torch.dtype | None
) -> Iterator[tuple[Views, Types]]:
    """Names that get one new storage, with their windows on the old one and their new types."""
    checkpoint = described(new)
    views = checkpoint.views()
    members = alias.build(checkpoint).names
    alias_sets: dict[str, list[str]] = {}
    storages: dict[object, list[str]] = {}
    types: Types = {}
    for name in new:
        alias_sets.setdefault(members[name].alias_set, []).append(name)
        storages.setdefault(views[name].storage, []).append(name)
    for names in alias_sets.values():
        types |= _types({name: new[name] for name in names}, found, assign, dtype)
    for names in storages.values():
        if all(name in found for name in names) and _is_movable({n: views[n] for n in names}, types):
            yield {n: views[n] for n in names}, types
            continue
        for part in dict.fromkeys(members[name].alias_set for name in names):
            if any(name in found for name in alias_sets[part]):
                yield {n: views[n] for n in alias_sets[part]}, types


def _types(
    alias_set: Tensors, found: Mapping[str, torch.dtype | None], assign: bool, dtype: torch.dtype | None
) -> Types:  # fmt: skip
    """New types of the names of one alias set; of those with one old type, the first that the file holds decides."""
    chosen: dict[torch.dtype, torch.dtype] = {}
    for name in sorted(alias_set, key=lambda name: name not in found):
        old, there = alias_set[name].dtype, found.get(name)
        kept = there if assign and there is not None and _kind(there) == _kind(old) else old
        chosen.setdefault(old, dtype if dtype is not None and kept.is_floating_point else kept)
    return {name: DTYPES[str(chosen[tensor.dtype]).removeprefix("torch.")] for name, tensor in alias_set.items()}


def _kind(dtype: torch.dtype) -> tuple[bool, bool, bool]:
    """Whether a type is of real, of complex numbers, or of truth values; integers are none of these."""
    return dtype.is_floating_point, dtype.is_complex, dtype == torch.bool


def _is_movable(views: Views, types: Types) -> bool:
    """Whether windows can keep their places on a storage: their types stay, or change from one to one."""
    stay = all(types[name] == view.dtype for name, view in views.items())
    return stay or len({(view.dtype, types[name]) for name, view in views.items()}) == 1


def _moved(views: Views, types: Types) -> tuple[Views, int]:
    """Windows on a new storage that begins where the first of them does, and its bytes."""
    if not _is_movable(views, types):
        raise ModelError(f"{', '.join(map(repr, views))}: share memory as different types, which cannot change apart")
    if all(types[name] == view.dtype for name, view in views.items()):
        start = min(view.byte_start for view in views.values())
        start -= start % ALIGNMENT
        moved = {name: view.on(0, view.byte_start - start) for name, view in views.items()}
    else:
        first = min(view.offset for view in views.values())
        moved = {n: View(0, types[n], v.offset - first, v.shape, v.strides) for n, v in views.items()}
    return moved, max(view.byte_stop for view in moved.values())
