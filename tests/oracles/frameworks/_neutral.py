"""Random networks by torch's names (those of `reference.py`), and what torch or the equations compute with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from reference import GATES, Settings
from reference import run as run_reference

from paramtool.layouts.spec import Spec

Arrays = dict[str, np.ndarray]
SCALE = 0.3
"""Standard deviation of every weight and bias: large enough that a wrong place shows, small enough for float32."""
STEPS, SAMPLES = 6, 3
AGREEMENT = 2e-5
"""How far torch (float32) and the equations (float64) may be apart, relative to the larger of 1 and the values."""


class CellNames(NamedTuple):
    """One cell, and how names say it."""

    layer: int
    direction: int
    end: str
    """Of torch's names: `l0_reverse`."""


def cells(spec: Spec) -> Iterator[CellNames]:
    """Every cell, in torch's order."""
    for layer in range(spec.layers):
        for direction in range(spec.directions):
            yield CellNames(layer, direction, f"l{layer}" + "_reverse" * direction)


def random_weights(spec: Spec, generator: np.random.Generator, inner_bias: bool = True) -> Arrays:
    """Weights of a network by torch's names; `inner_bias`: whether the bias inside r * ( ) of a GRU is not zero."""
    rows, found = len(GATES[spec.kind]) * spec.hidden, {}
    for cell in cells(spec):
        shapes = {"weight_ih": (rows, spec.sizes(cell.layer)["in"]), "weight_hh": (rows, spec.recurrent)}
        if spec.bias:
            shapes.update(bias_ih=(rows,), bias_hh=(rows,))
        if spec.peephole:
            shapes["weight_ch"] = (3 * spec.hidden,)
        if spec.projection:
            shapes["weight_hr"] = (spec.projection, spec.hidden)
        for name, shape in shapes.items():
            found[f"{name}_{cell.end}"] = generator.normal(0, SCALE, shape).astype(np.float32)
        if spec.bias and not inner_bias:
            found[f"bias_hh_{cell.end}"][2 * spec.hidden :] = 0
    return found


def random_inputs(spec: Spec, generator: np.random.Generator) -> Arrays:
    """x, h0 and, for an LSTM, c0, of `_case_files`."""
    count = spec.layers * spec.directions
    shapes = {"x": (STEPS, SAMPLES, spec.input), "h0": (count, SAMPLES, spec.recurrent)}
    if spec.kind == "lstm":
        shapes["c0"] = (count, SAMPLES, spec.hidden)
    return {name: generator.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}


# --- what they compute --------------------------------------------------------------------------------------------


def torch_has(spec: Spec) -> bool:
    """Whether torch has such a network."""
    plain = spec.gate_activation == "sigmoid" and not spec.cell_clip and not spec.peephole
    return plain and spec.reset != "before"


def settings(spec: Spec) -> Settings:
    """What the equations must be told."""
    words = spec.gate_activation.removeprefix("hard_sigmoid(").rstrip(")")
    slope = None if spec.gate_activation == "sigmoid" else tuple(float(word) for word in words.split(","))
    return Settings(spec.reset or "after", spec.activation or "tanh", slope, spec.cell_clip or None)


def outputs(spec: Spec, weights: Arrays, inputs: Arrays) -> Arrays:
    """y, hn, cn: of torch where it has the network, else of the equations; AssertionError where the two differ."""
    equations = run_reference(spec.kind, weights, inputs["x"], inputs["h0"], inputs.get("c0"), settings=settings(spec))
    if not torch_has(spec):
        return equations
    found = run_torch(spec, weights, inputs)
    assert (apart := error(found, equations)) < AGREEMENT, f"torch and the equations are {apart} apart: {spec}"
    return found


def run_torch(spec: Spec, weights: Arrays, inputs: Arrays) -> Arrays:
    """y, hn, cn of torch's own module."""
    options = {"proj_size": spec.projection} if spec.projection else {}
    if spec.kind == "rnn":
        options["nonlinearity"] = spec.activation
    module = getattr(torch.nn, spec.kind.upper())(
        spec.input, spec.hidden, spec.layers, bias=spec.bias, bidirectional=spec.bidirectional, **options
    )
    module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in weights.items()}, strict=True)
    states = [torch.from_numpy(inputs[name]) for name in ("h0", "c0") if name in inputs]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that oneDNN has no projections
        y, final = module(torch.from_numpy(inputs["x"]), tuple(states) if len(states) == 2 else states[0])
    final = final if len(states) == 2 else [final]
    return {name: array.numpy() for name, array in zip(("y", "hn", "cn"), [y, *final], strict=False)}


def error(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """max |found - expected| / max(1, max |expected|) over all outputs; infinite where a shape differs or a NaN is."""
    if found.keys() != expected.keys() or any(found[name].shape != expected[name].shape for name in expected):
        return float("inf")
    most = np.max([np.abs(array).max() for array in expected.values()])
    apart = np.max([np.abs(found[name].astype(np.float64) - expected[name]).max() for name in expected])
    return float(apart / max(1.0, most)) if np.isfinite(apart) else float("inf")
