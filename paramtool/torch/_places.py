"""New tensors for a model, which take the places of those that it has: where it is on meta, or with `assign`.

They share memory just as the old ones do: for each alias set of the model, or each storage that is filled as a whole (a
flattened LSTM), one new storage is made, with every window where it was.  What the file ties and the model does not
goes into two.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    plain = {name: tensor for name, tensor in old.items() if is_plain(tensor)}
    checkpoint = described(plain)
    windows, members = checkpoint.views(), alias.build(checkpoint).names
    alias_sets: dict[str, list[str]] = {}
    storages: dict[object, list[str]] = {}
    for name in plain:
        alias_sets.setdefault(members[name].alias_set, []).append(name)
        storages.setdefault(windows[name].storage, []).append(name)
    types: Types = {}
    for names in alias_sets.values():
        chosen: dict[torch.dtype, torch.dtype] = {}
        for name in sorted(names, key=lambda name: name not in found):  # the first that the file holds decides
            kept, there = plain[name].dtype, found.get(name) or plain[name].dtype
            kinds = {(one.is_floating_point, one.is_complex, one == torch.bool) for one in (kept, there)}
            kept = there if assign and len(kinds) == 1 else kept
            kept = dtype if dtype is not None and kept.is_floating_point else kept
            chosen.setdefault(plain[name].dtype, kept)
        types |= {name: DTYPES[str(chosen[plain[name].dtype]).removeprefix("torch.")] for name in names}
    together: list[list[str]] = []
    for names in storages.values():
        if all(name in found for name in names) and _is_movable({name: windows[name] for name in names}, types):
            together.append(names)
            continue
        parts = (alias_sets[part] for part in dict.fromkeys(members[name].alias_set for name in names))
        together += [part for part in parts if any(name in found for name in part)]
    new: dict[str, torch.Tensor] = {}
    for names in together:
        views = {name: windows[name] for name in names}
        first = tensors[names[0]]
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
