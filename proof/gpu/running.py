"""Runs a buffer that was fused on a CPU with the GPU's kernels, and unfuses a buffer that was saved on a GPU.

The reference is torch's own network of separate weights on the CPU, in float64, with the same numbers: weights and
inputs are rounded to the type first, so that only the arithmetic of the type differs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from zlib import crc32

import torch
from torch import nn

from paramtool.commands import relayout as relayout_command
from paramtool.layouts.evidence import GRADIENTS
from paramtool.layouts.spec import Spec
from paramtool.lazy_dataclass import dataclass
from paramtool.torch.tensors import load_file
from proof.cudnn.answers import Unsupported
from proof.cudnn.compare import Disagreement
from proof.cudnn.grid import Case
from proof.gpu.flattened import Device, buffer, network, of_case

STEPS, BATCH = 5, 8
"""With a batch of 8 torch takes cuDNN's persistent static algorithm for some networks (RNN.cpp, get_algo)."""
AT = "rnn"
"""The name of the module in the files."""
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""The bound for max |a - b| / max(1, max |b|) over outputs and last states."""
SCALE = 2.0
"""The scale of weights, in units of torch's initial values: larger weights make a wrong order more visible."""
NO_NUMBER = 1e300
"""The error if a result is not a number: JSON has no infinity."""
REPACKED = "RNN module weights are not part of single contiguous chunk"
"""torch's warning when it copies the weights into another buffer, since cuDNN cannot use theirs."""
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Ran:
    """How far the results of a GPU are from the reference."""

    error: float
    """The error of outputs and last states."""
    gradients: float
    """The error of the gradients of inputs, first states and weights."""
    control: float
    """The smallest error with weights in a wrong order (`wrong_orders`): of outputs or, divided by their tolerance, of
    gradients."""
    findings: tuple[Disagreement, ...]


@dataclass(frozen=True, slots=True)
class Data:
    """The inputs, and the weights of a sum over the outputs, whose gradient is computed."""

    x: torch.Tensor
    states: tuple[torch.Tensor, ...]
    sums: tuple[torch.Tensor, ...]

    def to(self, device: str, dtype: torch.dtype) -> Data:
        """The same data on another device and in another dtype."""
        moved = [tuple(t.to(device, dtype) for t in group) for group in ((self.x,), self.states, self.sums)]
        return Data(moved[0][0], moved[1], moved[2])


@dataclass(frozen=True, slots=True)
class Computed:
    """The results, in float64 on the CPU."""

    outputs: Mapping[str, torch.Tensor]
    """`y`, and the last states `h` and `c`."""
    gradients: Mapping[str, torch.Tensor]
    """The gradients of a weighted sum of the outputs."""
    kernel: str
    """Autograd's name of the function that made the output: `CudnnRnnBackward0` for cuDNN."""


def run(case: Case, folder: str, device: Device) -> Ran | Unsupported:
    """Fuse on the CPU, run on the device, save there, unfuse on the CPU; files go into `folder`."""
    dtype = getattr(torch, case.dtype)
    module = of_case(case, device)
    there = buffer(module)
    if isinstance(there, Unsupported):
        return there
    weights, data = _numbers(case, dtype)
    fused = _fused(case, weights, folder)
    if fused.numel() != there.numel():
        lengths = str(fused.numel()), str(there.numel())
        return Ran(0.0, 0.0, 0.0, (Disagreement(str(case), "", "elements", *lengths),))
    with torch.no_grad():
        there.copy_(fused)
    expected = _computed(_filled(network(case.spec, torch.float64, "cpu"), weights), data.to("cpu", torch.float64))
    moved = data.to(device.name, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=REPACKED)
        try:
            found = _computed(module, moved)
        except UserWarning as warning:
            if not str(warning).startswith(REPACKED):
                raise
            return Ran(0.0, 0.0, 0.0, (Disagreement(str(case), "", "buffer", "taken by cuDNN as it is", str(warning)),))
    if device.kernel not in found.kernel:
        return Unsupported(f"torch runs it with {found.kernel}, not with cuDNN")
    lost = tuple(_way_back(case, weights, module, there, folder=folder))
    wrong = [_computed(_filled(module, order), moved) for order in wrong_orders(weights, case.spec)]
    control = min(
        max(_error(one.outputs, expected.outputs), _error(one.gradients, expected.gradients) / GRADIENTS)
        for one in wrong
    )
    errors = _error(found.outputs, expected.outputs), _error(found.gradients, expected.gradients)
    return Ran(*errors, control, (*_too_far(case, errors, control), *lost))


def _numbers(case: Case, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], Data]:
    """Random weights and inputs, always the same for a case."""
    spec, generator = case.spec, torch.Generator().manual_seed(crc32(str(case).encode()))

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1).mul(scale).to(dtype)

    shapes = {name: p.shape for name, p in network(spec, dtype, "meta").named_parameters()}
    weights = {name: random(*shape, scale=SCALE * spec.hidden**-0.5) for name, shape in shapes.items()}
    widths = (spec.recurrent, spec.hidden) if spec.kind == "lstm" else (spec.recurrent,)
    states = [(spec.layers * spec.directions, BATCH, width) for width in widths]
    outputs = [(STEPS, BATCH, spec.recurrent * spec.directions), *states]
    given = [random(STEPS, BATCH, spec.input), *(random(*shape) for shape in states)]
    if spec.activation == "relu":
        weights = {name: _off_or_on(weight, spec.hidden) for name, weight in weights.items()}
        given = [tensor.abs() for tensor in given]
    return weights, Data(given[0], tuple(given[1:]), tuple(random(*shape) for shape in outputs))


def _off_or_on(weight: torch.Tensor, hidden: int) -> torch.Tensor:
    """Weights for which every third unit is always off and the others are always on, if no input is negative.

    If rounding changed the sign of a relu's input, the gradient would differ; here that input is far from zero.
    """
    signs = torch.ones(hidden, 1, dtype=weight.dtype)
    signs[::3] = -1
    shrunk = weight.abs() if weight.dim() == 1 else weight.abs() * weight.shape[0] ** 0.5 / weight.shape[1]
    return shrunk * signs.view(-1, *[1] * (weight.dim() - 1))


def _fused(case: Case, weights: Tensors, folder: str) -> torch.Tensor:
    """The flat buffer that `paramtool fuse` makes of separate weights."""
    parts, output = os.path.join(folder, "parts.pt"), os.path.join(folder, "fused.safetensors")
    torch.save({f"{AT}.{name}": weight for name, weight in weights.items()}, parts)
    relayout_command.fuse(parts, output, layout="cudnn", spec=str(case.spec), verify=False, force=True)
    return load_file(output)[f"{AT}.flat_weights"]


def _filled(module: nn.RNNBase, weights: Tensors) -> nn.RNNBase:
    """Copy weights into the parameters of a module."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weights[name])
    return module


def _computed(module: nn.RNNBase, data: Data) -> Computed:
    """Forward and backward."""
    given = [tensor.clone().requires_grad_() for tensor in (data.x, *data.states)]
    output, last = module(given[0], tuple(given[1:]) if len(given) > 2 else given[1])
    outputs = (output, *last) if isinstance(last, tuple) else (output, last)
    total = sum((made * weight).sum() for made, weight in zip(outputs, data.sums, strict=True))
    names = [*(f"input {k}" for k in range(len(given))), *dict(module.named_parameters())]
    assert isinstance(total, torch.Tensor)
    gradients = torch.autograd.grad(total, [*given, *module.parameters()])
    exact = [[tensor.detach().to("cpu", torch.float64) for tensor in group] for group in (outputs, gradients)]
    kernel = output.grad_fn.name() if output.grad_fn is not None else ""
    return Computed(dict(zip("yhc", exact[0], strict=False)), dict(zip(names, exact[1], strict=True)), kernel)


def _error(found: Tensors, expected: Tensors) -> float:
    """The largest |a - b| / max(1, max |b|); NO_NUMBER if any value is not a number."""
    errors = [(found[name] - there).abs().max() / there.abs().max().clamp(min=1) for name, there in expected.items()]
    return max(float(error.nan_to_num(nan=NO_NUMBER, posinf=NO_NUMBER)) for error in errors)


def wrong_orders(weights: Tensors, spec: Spec) -> Iterator[dict[str, torch.Tensor]]:
    """Weights as wrong tables would place them: each has to change the result, otherwise the check is blind.

    The first two gates exchanged (for an RNN: rows moved by one); the two directions; W and R of the first layer, if
    they have the same shape.  Running cannot distinguish the two biases, except in a GRU's candidate: they are added.
    """
    yield {name: _gates_exchanged(weight, spec) for name, weight in weights.items()}
    if spec.bidirectional:
        yield {name: weights[_other_side(name)] for name in weights}
    first = {"weight_ih_l0": "weight_hh_l0", "weight_hh_l0": "weight_ih_l0"}
    if weights["weight_ih_l0"].shape == weights["weight_hh_l0"].shape:
        yield {name: weights[first.get(name, name)] for name in weights}


def _gates_exchanged(weight: torch.Tensor, spec: Spec) -> torch.Tensor:
    """A parameter with its first two gates exchanged; a projection stays."""
    gates = len(spec.gates)
    if gates == 1:
        return weight.roll(1, 0)
    if len(weight) != gates * spec.hidden:
        return weight
    first, second, *others = weight.chunk(gates)
    return torch.cat([second, first, *others])


def _other_side(name: str) -> str:
    return name.removesuffix("_reverse") if name.endswith("_reverse") else f"{name}_reverse"


def _too_far(case: Case, errors: tuple[float, float], control: float) -> Iterator[Disagreement]:
    """Errors above the tolerance, and controls below it, which would mean that the check is blind."""
    bound = TOLERANCE[case.dtype]
    for what, error, times in zip(("outputs", "gradients"), errors, (1, GRADIENTS), strict=True):
        if not error <= times * bound:
            yield Disagreement(str(case), "", what, f"an error of at most {times * bound:g}", f"{error:.3g}")
    if not control > bound:
        yield Disagreement(str(case), "", "control", f"a wrong order is off by more than {bound:g}", f"{control:.3g}")


def _way_back(
    case: Case, weights: Tensors, module: nn.RNNBase, there: torch.Tensor, *, folder: str
) -> Iterator[Disagreement]:
    """Restore the parameters from what was saved on the device: windows on the buffer, and the buffer alone."""
    windows = {f"{AT}.{name}": parameter.detach() for name, parameter in module.named_parameters()}
    for what, saved, layout in (("windows", windows, None), ("buffer", {f"{AT}.flat_weights": there}, "cudnn")):
        path, output = os.path.join(folder, f"{what}.pt"), os.path.join(folder, f"{what}.safetensors")
        torch.save(saved, path)
        relayout_command.unfuse(path, output, layout=layout, spec=str(case.spec), verify=False, force=True)
        back = load_file(output)
        for name, weight in weights.items():
            found = back.get(f"{AT}.{name}")
            if found is None or not torch.equal(found, weight):
                said = "none" if found is None else "other numbers"
                yield Disagreement(str(case), name, f"unfused from the saved {what}", "the weights of the start", said)
