"""Measures one configuration: a recurrent network in three variants that compute the same.

    fused          the parameters are views of one buffer, as `flatten_parameters` makes it: cuDNN uses it unchanged
    separate       each parameter in a memory of its own: torch packs them into a new buffer at every call, and warns
    concatenated   the same, and every call makes one vector of them by `torch.cat`, as MXNet 1.x Gluon does by
                   _rnn_param_concat (apache/mxnet issue 18077); gradients flow back through it

All three are called as `nn.LSTM.forward` calls cuDNN, after its checks, so that the share of Python is the same.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from typing import Any

import torch
from gpu_fused_results import (
    FEWEST_ROUNDS,
    GRID,
    MODES,
    MOST_ROUNDS,
    ON_A_CPU,
    QUICK,
    SCHEMA,
    TOLERANCE,
    VARIANTS,
    Cell,
    Result,
    cells,
    predicted,
    spread,
)
from gpu_fused_run import Output, go_on, say

from paramtool.cli._streams import shown
from paramtool.errors import UsageError, plural
from paramtool.layouts.evidence import GRADIENTS
from proof.cudnn.answers import Unsupported
from proof.gpu import device as gpu
from proof.gpu.flattened import KERNEL, buffer, network
from proof.gpu.running import REPACKED

# --- cell ------------------------------------------------------------------------------------------------


class Unproved(Exception):
    """A configuration does not do what it should measure."""


@dataclass(frozen=True, slots=True)
class Given:
    """The inputs of every variant."""

    input: torch.Tensor
    state: torch.Tensor
    gradient: torch.Tensor
    """The gradient with respect to the output."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A network's parameters, and how they are passed to torch."""

    parameters: list[torch.Tensor]
    """Layer by layer: W, R, bW, bR."""
    weights: Callable[[], list[torch.Tensor]]
    """What a call does to bring them into the form that torch accepts, in the same order."""


def given(cell: Cell, device: str) -> Given:
    """Random numbers, the same in every run."""
    torch.manual_seed(0)
    dtype = getattr(torch, cell.dtype)
    shape = (cell.sequence, cell.batch, cell.hidden)
    return Given(
        torch.randn(shape, dtype=dtype, device=device, requires_grad=True),
        torch.zeros(cell.layers, cell.batch, cell.hidden, dtype=dtype, device=device),
        torch.randn(shape, dtype=dtype, device=device),
    )


def variants(cell: Cell, device: str) -> dict[str, Variant]:
    """The three variants, with equal numbers in their parameters."""
    fused = network(cell.spec, getattr(torch, cell.dtype), device)
    fused.flatten_parameters()
    windows = _in_order(fused)
    total = _buffer_numel(fused, device)
    separate, single = ([_apart(window) for window in windows] for _ in range(2))
    tail = single[0].new_zeros(total - sum(part.numel() for part in single))
    return {
        "fused": Variant(windows, lambda: windows),
        "separate": Variant(separate, lambda: separate),
        "concatenated": Variant(single, lambda: concatenated(single, tail)),
    }


def _in_order(module: torch.nn.RNNBase) -> list[torch.Tensor]:
    return [parameter for layer in module.all_weights for parameter in layer]


def _apart(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach().clone().requires_grad_()


def _buffer_numel(fused: torch.nn.RNNBase, device: str) -> int:
    """How many elements cuDNN wants in one chunk; on a CPU, which fuses nothing, the number of parameters."""
    if device == "cpu":
        return sum(parameter.numel() for parameter in fused.parameters())
    found = buffer(fused)
    if isinstance(found, Unsupported):
        raise Unproved(f"fused is not fused: {found}")
    return found.numel()


def concatenated(parameters: list[torch.Tensor], tail: torch.Tensor) -> list[torch.Tensor]:
    """Windows on a new vector: all matrices, then all biases, then unused space."""
    order = sorted(range(len(parameters)), key=lambda number: parameters[number].ndim == 1)
    parts = [parameters[number] for number in order]
    vector = torch.cat([*(part.reshape(-1) for part in parts), tail])
    pieces = vector.split([*(part.numel() for part in parts), tail.numel()])
    found = dict(zip(order, pieces, strict=False))  # without the tail
    return [found[number].view(parameter.shape) for number, parameter in enumerate(parameters)]


def _output(cell: Cell, weights: list[torch.Tensor], ins: Given, train: bool) -> torch.Tensor:
    biases, dropout, bidirectional, batch_first = True, 0.0, False, False
    more = weights, biases, cell.layers, dropout, train, bidirectional, batch_first
    if cell.kind == "lstm":
        return torch._VF.lstm(ins.input, (ins.state, ins.state), *more)[0]
    return torch._VF.gru(ins.input, ins.state, *more)[0]


def forward(cell: Cell, variant: Variant, ins: Given) -> tuple[torch.Tensor, ...]:
    """(output,)."""
    with torch.no_grad():
        return (_output(cell, variant.weights(), ins, train=False),)


def forward_backward(cell: Cell, variant: Variant, ins: Given) -> tuple[torch.Tensor, ...]:
    """(output, gradient of the input, gradients of the parameters ...)."""
    output = _output(cell, variant.weights(), ins, train=True)
    return (output, *torch.autograd.grad(output, [ins.input, *variant.parameters], ins.gradient))


CALLS = dict(zip(MODES, (forward, forward_backward), strict=True))


def prove(cell: Cell, found: Mapping[str, Variant], ins: Given) -> None:
    """Raise Unproved if outputs or gradients differ.

    On a GPU also if cuDNN does not run, or if torch packs another variant than `separate`.
    """
    for mode, call in CALLS.items():
        outputs = {}
        for name, variant in found.items():
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                outputs[name] = call(cell, variant, ins)
            if ins.input.is_cuda:
                prove_packing(name, any(REPACKED in str(warning.message) for warning in said))
                if mode == "forward_backward":
                    prove_kernel(name, outputs[name][0])
        for name, found_there in outputs.items():
            prove_equal(f"{mode}: {name}", TOLERANCE[cell.dtype], found_there, outputs["fused"])


def prove_equal(what: str, bound: float, found: tuple[torch.Tensor, ...], fused: tuple[torch.Tensor, ...]) -> None:
    """Compare the output, and the gradients if there are any: max |a - b| / max(1, max |b|)."""
    for number, (ours, theirs) in enumerate(zip(found, fused, strict=True)):
        far = ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)).item()
        if not far <= bound * (1 if number == 0 else GRADIENTS):
            which = "output" if number == 0 else f"gradient {number}"
            raise Unproved(f"{what}: its {which} differs by {far:g} from that of fused")


def prove_packing(name: str, warned: bool) -> None:
    """Raise Unproved unless torch packs the parameters of `separate` at each call, and of no other variant."""
    if warned and name != "separate":
        raise Unproved(f"torch packs the parameters of {name} at each call")
    if not warned and name == "separate":
        raise Unproved("torch does not warn that it packs the parameters of separate")


def prove_kernel(name: str, output: torch.Tensor) -> None:
    """Raise Unproved unless cuDNN made the output, by autograd's name of the function."""
    found = output.grad_fn.name() if output.grad_fn is not None else "nothing"
    if KERNEL not in found:
        raise Unproved(f"torch runs {name} with {found}, not with cuDNN")


def measured(cell: Cell, device: str, seconds: float) -> dict[str, Any]:
    """The configuration with its figures, after it was proved; measured for about `seconds` seconds."""
    found, ins = variants(cell, device), given(cell, device)
    prove(cell, found, ins)
    with undisturbed():
        one = sum(timed(device, call, cell, found[name], ins) for call in CALLS.values() for name in VARIANTS)
        rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(seconds / one)))
        times = {mode: _rounds(rounds, device, mode, cell, found, ins) for mode in MODES}
        peaks = {(mode, name): peak(device, mode, cell, found[name], ins) for mode in MODES for name in VARIANTS}
    figures = {
        name: {mode: summary(times[mode][name]) | {"peak_nbytes": peaks[mode, name]} for mode in MODES}
        for name in VARIANTS
    }
    return asdict(cell) | {"rounds": rounds, "parameters_nbytes": _nbytes(found["fused"]), "variants": figures}


def _rounds(
    rounds: int, device: str, mode: str, cell: Cell, found: Mapping[str, Variant], ins: Given
) -> dict[str, list[float]]:
    """Times in seconds: the variants in turn, A B C A B C ..."""
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name in VARIANTS:
            times[name].append(timed(device, CALLS[mode], cell, found[name], ins))
    return times


def timed(device: str, call: Callable[..., object], *arguments: object) -> float:
    """Seconds of one call that starts on an idle device, including the host's work before and between kernels."""
    if device == "cpu":
        began = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - began
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call(*arguments)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def summary(times: list[float]) -> dict[str, Any]:
    """Median and quartiles.

    >>> summary([3.0, 1.0, 2.0, 5.0, 4.0])
    {'median_seconds': 3.0, 'quartiles_seconds': [2.0, 4.0]}
    """
    first, median, third = statistics.quantiles(times, n=4, method="inclusive")
    return {"median_seconds": median, "quartiles_seconds": [first, third]}


def peak(device: str, mode: str, cell: Cell, variant: Variant, ins: Given) -> int | None:
    """The peak memory of the variant alone, with its parameters and without its inputs; None on a CPU."""
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    CALLS[mode](cell, variant, ins)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before + _nbytes(variant)


def _nbytes(variant: Variant) -> int:
    return sum(part.numel() * part.element_size() for part in variant.parameters)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without garbage collection and without printed warnings; making the warning still counts for `separate`."""
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=REPACKED)
            yield
    finally:
        gc.enable()


# --- sweep -----------------------------------------------------------------------------------------------


def swept(asked: argparse.Namespace, output: Output | None) -> Result:
    """The measurements of the requested configurations; they are also written after each configuration."""
    if asked.device == "cuda":
        _require_gpu()
    else:
        say(f"gpu_fused: {ON_A_CPU}")
    result = started(asked)
    plan = spread(cells(result["settings"]))
    expected = sum(predicted(cell, asked.device, asked.seconds_per_cell) for cell in plan) / 60
    say(f"{plural(len(plan), 'configuration')}, perhaps {expected:.1f} minutes, at most {asked.minutes:g}")
    with gpu.without_tf32():
        for _ in sweep(result, plan):
            if output is not None:
                output.write_json(result)
            go_on()
    return result


def _require_gpu() -> None:
    try:
        gpu.require_gpu()
    except UsageError as error:
        raise UsageError(str(error), hint="--device cpu tests the script, but measures nothing of cuDNN") from error


def started(asked: argparse.Namespace) -> Result:
    """A result without measurements."""
    grid = QUICK if asked.quick else GRID
    chosen = {name: getattr(asked, name) or values for name, values in grid.items()}
    more = {name: getattr(asked, name) for name in ("batch", "seconds_per_cell", "minutes")}
    settings = chosen | more | {"input": "hidden", "tf32": False}
    return {
        "schema": SCHEMA,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": asked.device,
        "machine": _machine(asked.device),
        "settings": settings,
        "cells": [],
        "not_measured": [asdict(cell) | _missing("the sweep ended before") for cell in cells(settings)],
    }


def _machine(device: str) -> dict[str, str]:
    if device == "cuda":
        return gpu.machine()
    return {
        "device": "CPU",
        "cuda": "",
        "cudnn": "",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def sweep(
    result: Result,
    plan: Sequence[Cell],
    measure: Callable[..., Result] = measured,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Add each configuration to the result, with its measurements or the reason why it was not measured.

    Yields after each configuration that was tried, and at the end.
    """
    settings, began = result["settings"], now()
    order = {cell: number for number, cell in enumerate(cells(settings))}
    missing = {_cell(found): _missing(found["reason"]) for found in result["not_measured"]}
    for number, cell in enumerate(plan, 1):
        elapsed = now() - began
        left = 60 * settings["minutes"] - elapsed
        needed = predicted(cell, result["device"], settings["seconds_per_cell"])
        if needed > left:
            missing[cell] = _missing(f"perhaps {needed:.1f} s, and {max(0, left):.1f} s were left")
            continue
        found = _measured_or_failed(cell, result, measure)
        if "reason" in found:
            missing[cell] = found
        else:
            del missing[cell]
            result["cells"].append(found)
            result["cells"].sort(key=lambda one: order[_cell(one)])
        _list(result, missing)
        say(f"{number}/{len(plan)} after {elapsed:.0f} s: {cell}: {found.get('reason', 'measured')}")
        yield
    _list(result, missing)
    yield


def _list(result: Result, missing: dict[Cell, Result]) -> None:
    result["not_measured"] = [asdict(one) | why for one, why in missing.items()]


def _missing(reason: str, failed: bool = False) -> Result:
    return {"reason": reason, "failed": failed}


def _cell(found: dict[str, Any]) -> Cell:
    return Cell(**{field.name: found[field.name] for field in fields(Cell)})


def _measured_or_failed(cell: Cell, result: Result, measure: Callable[..., Result]) -> Result:
    try:
        return measure(cell, result["device"], result["settings"]["seconds_per_cell"])
    except (Unproved, RuntimeError) as error:  # RuntimeError: refused by cuDNN, or out of memory
        return _missing(shown(str(error).partition("\n")[0])[:1000] or type(error).__name__, failed=True)
