"""Models that cannot be filled, and requests that cannot be met: found before anything changes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from paramtool.errors import ModelError, UsageError, listed, plural
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View

SHARDED_MODULES = {"FullyShardedDataParallel"}
"""Modules whose state dict is made on the fly: what is filled in there reaches no parameter."""


def refuse_unfit(where: str, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """ModelError that names what in a model has no memory of its own that could be filled."""
    for name, module in model.named_modules():
        if type(module).__name__ in SHARDED_MODULES:
            raise ModelError(
                f"{where}: {name or 'the model'!r} is a {type(module).__name__}, whose parameters are shards",
                hint="load the model before it is wrapped",
            )
    if wrong := [f"{name!r}: {why}" for name, tensor in tensors.items() if (why := unfit(tensor))]:
        raise ModelError(listed(f"{where}: {plural(len(wrong), 'tensor')} of the model cannot be filled:", wrong))


def unfit(tensor: torch.Tensor) -> str:
    """Why a model's tensor cannot be filled, or nothing."""
    if nn.parameter.is_lazy(tensor):
        return "is lazy and has no shape yet; run the model once"
    if _is_made_of_others(tensor):
        return f"is a {type(tensor).__name__}, made of other tensors; load the model before it is sharded or converted"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"is {'quantised' if tensor.is_quantized else tensor.layout}; only plain tensors are filled"
    if not View(0, DTYPES["uint8"], 0, tuple(tensor.shape), tuple(tensor.stride())).is_injective:
        return "is expanded: several of its elements are one; make it .contiguous() first"
    return ""


def _is_made_of_others(tensor: object) -> bool:
    """Whether a tensor is a shell around others: DTensor, tensors of torchao."""
    return is_traceable_wrapper_subclass(tensor)


def check_request(
    tensors: Mapping[str, torch.Tensor], assign: bool, device: torch.device | None, dtype: torch.dtype | None
) -> None:
    """UsageError where `device` or `dtype` ask for what only new tensors could be."""
    if dtype is not None and not dtype.is_floating_point:
        raise UsageError(f"dtype={dtype}: only floating types are cast; expected one such as torch.bfloat16")
    if device is not None and device.type == "meta":
        raise UsageError("device=meta: tensors there have no values; expected a device with memory")
    for name, tensor in tensors.items() if not assign else ():
        if tensor.is_meta:
            continue
        if device is not None and not _same_device(tensor.device, device):
            raise UsageError(f"{name!r} is on {tensor.device} and stays there; device={device} is for new tensors",
                             hint=f"assign=True, or model.to({str(device)!r}) first")  # fmt: skip
        if dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype:
            raise UsageError(f"{name!r} is {tensor.dtype} and stays so; dtype={dtype} is for new tensors",
                             hint=f"assign=True, or model.to({dtype}) first")  # fmt: skip


def _same_device(found: torch.device, wanted: torch.device) -> bool:
    """Whether a tensor's device is the one that is meant: `cuda` means any of them."""
    return found.type == wanted.type and (wanted.index is None or found.index == wanted.index)
