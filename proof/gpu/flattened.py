"""What torch makes of a recurrent network on a GPU: windows on one buffer, by `flatten_parameters`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from paramtool.layouts.spec import Spec
from paramtool.lazy_dataclass import dataclass
from proof.cudnn.answers import Unsupported
from proof.cudnn.compare import Windows
from proof.cudnn.grid import Case

KERNEL = "CudnnRnn"
"""A part of autograd's name for cuDNN's kernel."""
CLASSES: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def flatten(module: nn.RNNBase) -> None:
    """Flatten the parameters as torch does."""
    module.flatten_parameters()


@dataclass(frozen=True, slots=True)
class Device:
    """The device where networks are made, and how they are flattened there."""

    name: str = "cuda"
    flatten: Callable[[nn.RNNBase], None] = flatten
    """Tests replace this function."""
    kernel: str = KERNEL
    """A part of autograd's name for the kernel that has to run."""


def network(spec: Spec, dtype: torch.dtype, device: str) -> nn.RNNBase:
    """The module of a network, with torch's initial values."""
    more: dict[str, object] = {"proj_size": spec.projection} if spec.projection else {}
    if spec.kind == "rnn":
        more["nonlinearity"] = spec.activation
    return CLASSES[spec.kind](
        spec.input, spec.hidden, spec.layers, bias=spec.bias, bidirectional=spec.bidirectional, device=device,
        dtype=dtype, **more,
    )  # fmt: skip


def of_case(case: Case, device: Device) -> nn.RNNBase:
    """The module of a case, flattened."""
    module = network(case.spec, getattr(torch, case.dtype), device.name)
    device.flatten(module)
    return module


def buffer(module: nn.RNNBase) -> torch.Tensor | Unsupported:
    """The buffer that a flattened module's parameters are windows on, as a vector of all its elements."""
    parameters = list(module.parameters())
    storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    if len(storages) > 1:
        return Unsupported("torch keeps the parameters in separate buffers")
    first = parameters[0].detach()
    numel = first.untyped_storage().nbytes() // first.element_size()
    return torch.empty(0, dtype=first.dtype, device=first.device).set_(first.untyped_storage(), 0, (numel,), (1,))


def windows(module: nn.RNNBase) -> Windows:
    """{name: offset, shape and strides} of the parameters on their buffer."""
    return {
        name: (int(parameter.storage_offset()), tuple(parameter.shape), parameter.stride())
        for name, parameter in module.named_parameters()
    }
