"""How five layouts have a network, written out by hand.

A conversion is proved against these: paramtool reads a file in one of them, or writes one. The tables here are a second
statement of these layouts and share nothing with those of paramtool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from _neutral import Arrays, cells, torch_has
from reference import GATES

from paramtool.layouts.spec import Spec


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


def onednn_name(spec: Spec, layer: int, tensor: str) -> str:
    """The layout's name of one layer's tensor."""
    return f"layer{layer}." * (spec.layers > 1) + tensor


def to_onednn(spec: Spec, weights: Arrays) -> Arrays:
    """An LSTM in the orders ldigo, ldgo and ldio: (1, directions, in, gates, hidden) and so on."""
    found: dict[str, list[np.ndarray]] = {}
    for layer, _, end in cells(spec):
        own = {name: weights[f"{name}_{end}"] for name in weight_names(spec)}
        both = own["bias_ih"] + own["bias_hh"] if spec.bias else np.zeros(4 * spec.hidden, np.float32)
        parts = {"bias": both.reshape(4, spec.hidden)}
        for name, tensor in [("weight_ih", "weights_layer"), ("weight_hh", "weights_iter")]:
            parts[tensor] = own[name].reshape(4, spec.hidden, -1).transpose(2, 0, 1)
        if spec.peephole:
            parts["weights_peephole"] = own["weight_ch"].reshape(3, spec.hidden)
        if spec.projection:
            parts["weights_projection"] = own["weight_hr"].T
        for tensor, array in parts.items():
            found.setdefault(onednn_name(spec, layer, tensor), []).append(array)
    return {name: np.stack(arrays)[None] for name, arrays in found.items()}


def from_onednn(spec: Spec, tensors: Arrays) -> Arrays:
    """The way back of `to_onednn`; its one bias becomes the first of two."""
    found = {}
    for layer, direction, end in cells(spec):

        def own(tensor: str, layer: int = layer, direction: int = direction) -> np.ndarray:
            return tensors[onednn_name(spec, layer, tensor)][0, direction]

        for name, tensor in [("weight_ih", "weights_layer"), ("weight_hh", "weights_iter")]:
            found[f"{name}_{end}"] = own(tensor).transpose(1, 2, 0).reshape(4 * spec.hidden, -1)
        if spec.bias:
            found[f"bias_ih_{end}"] = own("bias").reshape(-1)
            found[f"bias_hh_{end}"] = np.zeros_like(found[f"bias_ih_{end}"])
        if spec.peephole:
            found[f"weight_ch_{end}"] = own("weights_peephole").reshape(-1)
        if spec.projection:
            found[f"weight_hr_{end}"] = own("weights_projection").T
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


def _onednn_has(spec: Spec) -> bool:
    return _tf1_has(spec) and not spec.cell_clip


NEUTRAL = (
    Neutral("torch", torch_has, to_torch, to_torch),
    Neutral("onnx", _onnx_has, to_onnx, from_onnx),
    Neutral("keras", _keras_has, to_keras, from_keras),
    Neutral("tf1.basic:forget_bias=0", _tf1_has, to_tf1, from_tf1),
    Neutral("onednn", _onednn_has, to_onednn, from_onednn),
    Neutral("tf1.block:forget_bias=0", lambda spec: _tf1_has(spec) and not spec.projection, to_tf1, from_tf1),
)


def neutral_for(spec: Spec, layout: str) -> Neutral:
    """The first that has the network and is not the layout itself."""
    own = layout.partition(":")[0]
    return next(one for one in NEUTRAL if one.has(spec) and one.layout.partition(":")[0] != own)
