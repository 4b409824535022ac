"""Networks by torch's names (those of `reference.py`), and how four layouts would have them, written out by hand.

A conversion is proved against these: paramtool reads a file in one of them, or writes one. The tables here are a second
statement of four layouts and share nothing with those of paramtool. With the first letters of torch: an LSTM has the
gates i f g o, a GRU r z n, and the one gate of an RNN is h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    equations = run_reference(
        spec.kind, weights, inputs["x"], inputs["h0"], inputs.get("c0"), settings=settings(spec)
    )
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
    with torch.no_grad():
        y, final = module(torch.from_numpy(inputs["x"]), tuple(states) if len(states) == 2 else states[0])
    final = final if len(states) == 2 else [final]
    return {name: array.numpy() for name, array in zip(("y", "hn", "cn"), [y, *final], strict=False)}


def error(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """max |found - expected| / max(1, max |expected|) over all outputs; infinite where shapes differ or a NaN stands."""
    if found.keys() != expected.keys() or any(found[name].shape != expected[name].shape for name in expected):
        return float("inf")
    most = max(float(np.abs(array).max()) for array in expected.values())
    apart = max(float(np.abs(found[name].astype(np.float64) - expected[name]).max()) for name in expected)
    return apart / max(1.0, most) if np.isfinite(apart) else float("inf")


# --- four layouts -------------------------------------------------------------------------------------------------


def reordered(array: np.ndarray, have: str, want: str, axis: int = 0) -> np.ndarray:
    """Blocks of gates along an axis, put into another order.

    >>> reordered(np.arange(4), "ifgo", "iofg").tolist()
    [0, 3, 1, 2]
    """
    blocks = dict(zip(have, np.split(array, len(have), axis), strict=True))
    return np.concatenate([blocks[gate] for gate in want], axis)


def to_torch(spec: Spec, weights: Arrays) -> Arrays:
    """Torch's own names."""
    assert torch_has(spec), spec
    return weights


ONNX = {"lstm": "iofg", "gru": "zrn", "rnn": "h"}  # documentation of the operators LSTM, GRU and RNN


def onnx_name(spec: Spec, layer: int, tensor: str) -> str:
    """The layout's name of one layer's tensor."""
    return f"layer{layer}.{tensor}" if spec.layers > 1 else tensor


def to_onnx(spec: Spec, weights: Arrays) -> Arrays:
    """W, R, B and P of each layer, directions on axis 0."""
    found: dict[str, list[np.ndarray]] = {}
    have, want = GATES[spec.kind], ONNX[spec.kind]
    for layer, _, end in cells(spec):
        rows = {n: reordered(weights[f"{n}_{end}"], have, want) for n in weight_names(spec, "peephole", "projection")}
        parts = {"W": rows["weight_ih"], "R": rows["weight_hh"]}
        if spec.bias:
            parts["B"] = np.concatenate([rows["bias_ih"], rows["bias_hh"]])
        if spec.peephole:
            parts["P"] = reordered(weights[f"weight_ch_{end}"], "ifo", "iof")
        for tensor, array in parts.items():
            found.setdefault(onnx_name(spec, layer, tensor), []).append(array)
    return {name: np.stack(arrays) for name, arrays in found.items()}


def from_onnx(spec: Spec, tensors: Arrays) -> Arrays:
    """The way back of `to_onnx`."""
    found, have, want = {}, ONNX[spec.kind], GATES[spec.kind]
    for layer, direction, end in cells(spec):
        own = {t: tensors[onnx_name(spec, layer, t)][direction] for t in "WRBP" if onnx_name(spec, layer, t) in tensors}
        found[f"weight_ih_{end}"] = reordered(own["W"], have, want)
        found[f"weight_hh_{end}"] = reordered(own["R"], have, want)
        if "B" in own:
            first, second = np.split(own["B"], 2)
            found[f"bias_ih_{end}"], found[f"bias_hh_{end}"] = (reordered(b, have, want) for b in (first, second))
        if "P" in own:
            found[f"weight_ch_{end}"] = reordered(own["P"], "iof", "ifo")
    return found


def weight_names(spec: Spec, *less: str) -> list[str]:
    """Torch's names, without the cell's, of what a network has; `less` leaves peepholes or the projection out."""
    names = ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * spec.bias
    names += ["weight_ch"] * (spec.peephole and "peephole" not in less)
    return names + ["weight_hr"] * (bool(spec.projection) and "projection" not in less)


KERAS = {"lstm": "ifgo", "gru": "zrn", "rnn": "h"}  # keras/src/layers/rnn/lstm.py and gru.py: the splits of kernels


def keras_front(spec: Spec, layer: int, direction: int) -> str:
    """What stands before the names of one cell."""
    side = f"{('forward_layer', 'backward_layer')[direction]}/" * spec.bidirectional
    return f"layer{layer}/" * (spec.layers > 1) + side


def to_keras(spec: Spec, weights: Arrays) -> Arrays:
    """kernel, recurrent_kernel and bias of each cell; a GRU that resets after the product keeps two biases."""
    found, have, want = {}, GATES[spec.kind], KERAS[spec.kind]
    for layer, direction, end in cells(spec):
        front = keras_front(spec, layer, direction)
        rows = {n: reordered(weights[f"{n}_{end}"], have, want) for n in weight_names(spec)}
        found[f"{front}kernel"] = np.ascontiguousarray(rows["weight_ih"].T)
        found[f"{front}recurrent_kernel"] = np.ascontiguousarray(rows["weight_hh"].T)
        if spec.bias:
            both = np.stack([rows["bias_ih"], rows["bias_hh"]])
            found[f"{front}bias"] = both if spec.reset == "after" else both.sum(0)
    return found


def from_keras(spec: Spec, tensors: Arrays) -> Arrays:
    """The way back of `to_keras`; one bias becomes the first of two."""
    found, have, want = {}, KERAS[spec.kind], GATES[spec.kind]
    for layer, direction, end in cells(spec):
        front = keras_front(spec, layer, direction)
        found[f"weight_ih_{end}"] = reordered(tensors[f"{front}kernel"].T, have, want)
        found[f"weight_hh_{end}"] = reordered(tensors[f"{front}recurrent_kernel"].T, have, want)
        if spec.bias:
            bias = tensors[f"{front}bias"]
            first, second = bias if spec.reset == "after" else (bias, np.zeros_like(bias))
            found[f"bias_ih_{end}"], found[f"bias_hh_{end}"] = (reordered(b, have, want) for b in (first, second))
    return found


TF1 = "igfo"  # tf_keras/layers/rnn/legacy_cells.py: i, j, f, o = split(gate_inputs, 4); j is the candidate
DIAGONALS = ("w_i_diag", "w_f_diag", "w_o_diag")


def tf1_front(spec: Spec, layer: int, direction: int) -> str:
    """What stands before the names of one cell."""
    return f"cell_{layer}/" * (spec.layers > 1) + f"{('fw', 'bw')[direction]}/" * spec.bidirectional


def to_tf1(spec: Spec, weights: Arrays) -> Arrays:
    """An LSTM as TensorFlow 1 has it, with a forget bias of 0 that is added at run time."""
    found = {}
    for layer, direction, end in cells(spec):
        front, have = tf1_front(spec, layer, direction), GATES["lstm"]
        joined = np.concatenate([weights[f"weight_ih_{end}"], weights[f"weight_hh_{end}"]], axis=1)
        found[f"{front}kernel"] = np.ascontiguousarray(reordered(joined, have, TF1).T)
        bias = weights[f"bias_ih_{end}"] + weights[f"bias_hh_{end}"] if spec.bias else np.zeros(4 * spec.hidden)
        found[f"{front}bias"] = reordered(bias, have, TF1).astype(np.float32)
        if spec.peephole:
            for name, part in zip(DIAGONALS, np.split(weights[f"weight_ch_{end}"], 3), strict=True):
                found[front + name] = part
        if spec.projection:
            found[f"{front}projection/kernel"] = np.ascontiguousarray(weights[f"weight_hr_{end}"].T)
    return found


def from_tf1(spec: Spec, tensors: Arrays) -> Arrays:
    """The way back of `to_tf1`."""
    found = {}
    for layer, direction, end in cells(spec):
        front, width = tf1_front(spec, layer, direction), spec.sizes(layer)["in"]
        joined = reordered(tensors[f"{front}kernel"].T, TF1, GATES["lstm"])
        found[f"weight_ih_{end}"], found[f"weight_hh_{end}"] = joined[:, :width], joined[:, width:]
        if spec.bias:
            found[f"bias_ih_{end}"] = reordered(tensors[f"{front}bias"], TF1, GATES["lstm"])
            found[f"bias_hh_{end}"] = np.zeros_like(found[f"bias_ih_{end}"])
        if spec.peephole:
            found[f"weight_ch_{end}"] = np.concatenate([tensors[front + name] for name in DIAGONALS])
        if spec.projection:
            found[f"weight_hr_{end}"] = tensors[f"{front}projection/kernel"].T
    return found


class Neutral(NamedTuple):
    """A layout that is written out here."""

    layout: str
    """With options, as paramtool is told."""
    has: Callable[[Spec], bool]
    write: Callable[[Spec, Arrays], Arrays]
    read: Callable[[Spec, Arrays], Arrays]


def _onnx_has(spec: Spec) -> bool:
    return not spec.cell_clip and not spec.projection


def _keras_has(spec: Spec) -> bool:
    return _onnx_has(spec) and not spec.peephole


def _tf1_has(spec: Spec) -> bool:
    return spec.kind == "lstm" and spec.gate_activation == "sigmoid"


NEUTRAL = (
    Neutral("torch", torch_has, to_torch, to_torch),
    Neutral("onnx", _onnx_has, to_onnx, from_onnx),
    Neutral("keras", _keras_has, to_keras, from_keras),
    Neutral("tf1.basic:forget_bias=0", _tf1_has, to_tf1, from_tf1),
    Neutral("tf1.block:forget_bias=0", lambda spec: _tf1_has(spec) and not spec.projection, to_tf1, from_tf1),
)


def neutral_for(spec: Spec, layout: str) -> Neutral:
    """The first that has the network and is not the layout itself."""
    own = layout.partition(":")[0]
    return next(one for one in NEUTRAL if one.has(spec) and one.layout.partition(":")[0] != own)
