"""Runs cases of the layout `onnx` with ONNX Runtime: a graph of LSTM, GRU or RNN nodes, one a layer.

The tensors W, R, B and P of each layer become initializers of the graph, untouched. Between two layers, Y (T, D, N, H)
becomes (T, N, D*H). A GRU's `linear_before_reset` is 1 where the reset gate is applied after the product; gates that
are no sigmoids are the operator's HardSigmoid, of which alpha is the slope and beta the shift.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
from _case_files import Case, Outputs, require, serve
from _cells import allow, hard_sigmoid
from onnx import TensorProto, helper, numpy_helper

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
OPSET = 14  # linear_before_reset and input_forget are as in 7; 14 added `layout`, which stays 0 here
IR_VERSION = 8  # the first of the releases that know opset 15; any later one is read too


def name_of(case: Case, layer: int, tensor: str) -> str:
    """A tensor's name in the layout."""
    return f"layer{layer}.{tensor}" if case.layers > 1 else tensor


def shapes(case: Case) -> dict:
    """Names and shapes of the network's tensors. Source: the operators' schemas."""
    rows, found = GATES[case.kind] * case.hidden, {}
    for layer in range(case.layers):
        found[name_of(case, layer, "W")] = (case.directions, rows, case.width(layer))
        found[name_of(case, layer, "R")] = (case.directions, rows, case.hidden)
        if case.bias or name_of(case, layer, "B") in case.tensors:
            found[name_of(case, layer, "B")] = (case.directions, 2 * rows)
        if case.peephole:
            found[name_of(case, layer, "P")] = (case.directions, 3 * case.hidden)
    return found


def node(case: Case, layer: int, source: str):
    """The node of one layer, reading the value `source`."""
    attributes = {"hidden_size": case.hidden, "direction": "bidirectional" if case.bidirectional else "forward"}
    if case.kind == "gru":
        attributes["linear_before_reset"] = int(case.reset == "after")
    if case.kind == "rnn":
        attributes["activations"] = [case.activation.capitalize()] * case.directions
    gates = hard_sigmoid(case)
    if gates is not None:
        attributes["activations"] = ["HardSigmoid", *["Tanh"] * (1 + (case.kind == "lstm"))] * case.directions
        attributes["activation_alpha"] = [gates[0]] * case.directions
        attributes["activation_beta"] = [gates[1]] * case.directions
    optional = {tensor: name_of(case, layer, tensor) for tensor in "BP"}
    present = {tensor: name if name in case.tensors else "" for tensor, name in optional.items()}
    inputs = [source, name_of(case, layer, "W"), name_of(case, layer, "R"), present["B"], "", f"h0.{layer}"]
    if case.kind == "lstm":
        inputs += [f"c0.{layer}", present["P"]]
    outputs = [f"Y.{layer}", f"hn.{layer}"] + ([f"cn.{layer}"] if case.kind == "lstm" else [])
    return helper.make_node(case.kind.upper(), inputs, outputs, **attributes)


def build(case: Case):
    """The model of a case: inputs x, h0.0, c0.0, ..., outputs y, hn.0, cn.0, ..."""
    nodes, source = [], "x"
    for layer in range(case.layers):
        target = "y" if layer == case.layers - 1 else f"y.{layer}"
        nodes.append(node(case, layer, source))
        nodes.append(helper.make_node("Transpose", [f"Y.{layer}"], [f"turned.{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"turned.{layer}", "joined"], [target]))
        source = target
    joined = numpy_helper.from_array(np.array([0, 0, -1], dtype=np.int64), "joined")
    weights = [numpy_helper.from_array(array, name) for name, array in case.tensors.items()]
    letters = "hc" if case.kind == "lstm" else "h"
    ins = ["x"] + [f"{letter}0.{layer}" for layer in range(case.layers) for letter in letters]
    outs = ["y"] + [f"{letter}n.{layer}" for layer in range(case.layers) for letter in letters]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in ins]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in outs]
    graph = helper.make_graph(nodes, "case", inputs, outputs, [*weights, joined])
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(case: Case) -> Outputs:
    """The runtime's outputs for a case."""
    options = ("gate_activation",) if case.kind != "rnn" else ()
    allow(case, resets=("after", "before"), options=options, peephole=case.kind == "lstm")
    require(case, shapes(case))
    session = onnxruntime.InferenceSession(build(case).SerializeToString(), providers=["CPUExecutionProvider"])
    feeds, step = {"x": case.x}, case.directions
    for layer in range(case.layers):
        for letter, state in [("h", case.h0), ("c", case.c0)]:
            if state is not None:
                feeds[f"{letter}0.{layer}"] = state[layer * step : (layer + 1) * step]
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(names, feeds)))  # noqa: B905 - zip has no `strict` before Python 3.10
    final = [
        np.concatenate([found[f"{letter}n.{layer}"] for layer in range(case.layers)])
        for letter in ("hc" if case.kind == "lstm" else "h")
    ]
    return Outputs(f"onnxruntime {onnxruntime.__version__} {case.kind.upper()}", found["y"], *final)


if __name__ == "__main__":
    versions = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}
    sys.exit(serve({"onnx": run}, versions))
