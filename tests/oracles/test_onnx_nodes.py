"""Nodes of ONNX graphs: what a node is given beside its weights, and nodes that use the same ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError
from paramtool.layouts import find
from paramtool.layouts.spec import Spec
from tests.oracles.running import below, close, random, run_torch

SHAPES = {"W": (1, 20, 3), "R": (1, 20, 5), "B": (1, 40)}
WEIGHTS = {name: random(*shape, seed=k) for k, (name, shape) in enumerate(SHAPES.items())}


def saved(folder: Path, *nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> Path:
    """A model of these nodes, with an input x of 4 steps."""
    stored = [numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()]
    entry = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2, 3])
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", [entry], made, stored)
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


def lstm(name: str, *given: str, output: str = "y", **more: object) -> onnx.NodeProto:
    return helper.make_node("LSTM", ["x", "W", "R", "B", *given], [output], name=name, hidden_size=5, **more)


def run(path: Path) -> list[np.ndarray]:
    """What ONNX Runtime computes of the model."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, {"x": random(4, 2, 3, seed=9)})]


def test_two_nodes_with_the_same_weights(tmp_path: Path) -> None:
    """Both are networks of the output, and share their memory there as here."""
    path = saved(tmp_path, lstm("one"), lstm("two", output="z"), outputs=("y", "z"))
    report = relayout_command.convert(path, tmp_path / "o.safetensors", target="torch")
    assert [one.at for one in report.converted] == ["one", "two"]
    found = paramtool.load_file(tmp_path / "o.safetensors")
    state = np.zeros((1, 2, 5), np.float32)
    for at, expected in zip(("one", "two"), run(path), strict=True):
        close(run_torch("lstm", below(found, at), random(4, 2, 3, seed=9), state, state)[0], expected[:, 0])
    assert np.shares_memory(found["one.weight_hh_l0"], found["two.weight_hh_l0"])


def test_two_functions_of_the_same_weights(tmp_path: Path) -> None:
    """The second is no part of the first: where torch has no such network, that is an error."""
    other = lstm("two", output="z", activations=["Sigmoid", "Relu", "Relu"])
    path = saved(tmp_path, lstm("one"), other, outputs=("y", "z"))
    one, two = run(path)
    assert float(np.abs(one - two).max()) > 0.05
    with pytest.raises(LayoutError, match=r"'two': .*activation=relu"):
        relayout_command.convert(path, tmp_path / "o.safetensors", target="torch")


@pytest.mark.parametrize(("value", "told"), [(0.7, True), (0.0, False)])
def test_a_state_of_one_number(value: float, told: bool, tmp_path: Path) -> None:
    """ConstantOfShape of a number that is not 0 is a state that the program has to give."""
    number = helper.make_tensor("n", TensorProto.FLOAT, [1], [value])
    shape = helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.array([1, 2, 5])))
    fill = helper.make_node("ConstantOfShape", ["s"], ["h"], value=number)
    path = saved(tmp_path, shape, fill, lstm("one", "", "h", "h"))
    report = relayout_command.convert(path, tmp_path / "o.safetensors", target="torch")
    assert any("the initial state is the constant 'h'" in warning for warning in report.warnings) == told


@pytest.mark.parametrize("attribute", ["value", "value_ints"])
def test_lengths_that_the_graph_makes_of_constants(attribute: str, tmp_path: Path) -> None:
    """They are a part of the function, as stored ones are: refused by name."""
    said = {"value": numpy_helper.from_array(np.array([3, 3]))} if attribute == "value" else {"value_ints": [3, 3]}
    made = helper.make_node("Constant", [], ["v"], **said)
    cast = helper.make_node("Cast", ["v"], ["lengths"], to=TensorProto.INT32)
    path = saved(tmp_path, made, cast, lstm("one", "lengths"))
    assert not run(path)[0][3].any()
    with pytest.raises(LayoutError, match="'lengths'"):
        relayout_command.convert(path, tmp_path / "o.safetensors", target="torch")


def test_a_node_of_another_library(tmp_path: Path) -> None:
    """What is not converted beside a network is named."""
    names = ["x", "W", "R", "B"]
    other = helper.make_node("DynamicQuantizeLSTM", names, ["z"], name="dq", domain="com.microsoft", hidden_size=5)
    report = relayout_command.convert(saved(tmp_path, lstm("one"), other), tmp_path / "o.safetensors", target="torch")
    assert any("DynamicQuantizeLSTM node 'dq'" in warning for warning in report.warnings)


@pytest.mark.parametrize("fact", ["activation=gelu", "gate_activation=silu", "activation=selu"])
def test_activations_that_onnx_does_not_have(fact: str) -> None:
    """Its operators have eleven, and what a network of another needs is refused."""
    name, _, value = fact.partition("=")
    with pytest.raises(LayoutError, match=f"it has no {fact}"):
        find("onnx").form(Spec("lstm", 3, 5, **{name: value}), {})
    find("onnx").form(Spec("lstm", 3, 5, activation="relu", gate_activation="hard_sigmoid(0.2,0.5)"), {})
