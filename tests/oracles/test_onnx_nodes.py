"""Nodes of ONNX graphs: what a node is given beside its weights, and nodes that use the same ones."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.commands import verify as verify_command
from paramtool.errors import LayoutError
from paramtool.layouts import find
from paramtool.layouts.layout import stored
from paramtool.layouts.spec import Spec
from tests.oracles.running import below, close, random, run_torch
from tests.versions import exporting

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
    assert any("its initial state has the numbers of 'h'" in warning for warning in report.warnings) == told


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("more", [{}, {"bidirectional": True}, {"num_layers": 2}], ids=["", "both", "layers"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_zeros_that_an_exporter_stores(
    kind: str, batch: int, more: dict[str, Any], is_new: bool, tmp_path: Path
) -> None:
    """Both exporters of torch give a node zeros of one batch, or spread them: nothing to say, and nothing to keep."""
    if is_new:
        pytest.importorskip("onnxscript", reason="torch's newer exporter needs it")
        if "dynamo" not in inspect.signature(torch.onnx.export).parameters:
            pytest.skip("this torch has one exporter")
    torch.manual_seed(3)
    network = getattr(torch.nn, kind.upper())(3, 4, **more)
    path = tmp_path / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"dynamo": True, "verbose": False} if is_new else exporting()
        torch.onnx.export(network, (torch.randn(5, batch, 3),), str(path), **how)
    read = paramtool.read(path)
    assert not [note for note in read.notes if "state" in note]
    assert not [module.spec for module in read.modules if "initial_state" in module.spec]
    output = tmp_path / "o.safetensors"
    report = relayout_command.convert(path, output, target="torch")
    kept = paramtool.load_file(output)
    assert {name.rpartition(".")[0] for name in kept} == {one.at for one in report.converted}
    flat = sorted(value.ravel().tolist() for value in kept.values())
    assert flat == sorted(value.ravel().tolist() for value in network.state_dict().values())
    assert not verify_command.verify(output, path).differences
    relayout_command.convert(path, tmp_path / "n.onnx", target="onnx")


@pytest.mark.parametrize(("h", "c", "is_state"), [(0, 0, False), (0.5, 0, True), (0, 0.5, True), (0.5, 0.5, True)])
def test_states_of_which_one_is_zero(h: float, c: float, is_state: bool, tmp_path: Path) -> None:
    """Both belong to the network if one has other numbers than zeros; there and back they are the same."""
    layout, spec = find("flux.old"), Spec("lstm", 3, 4, initial_state=True)
    made = stored(layout, layout.form(spec, {}), spec, {})
    fill = {frozenset({"h0"}): h, frozenset({"c0"}): c}
    arrays = {f"net.{one.name}": np.full(one.shape, fill.get(one.row.kinds(), 0.1), "f4") for one in made}
    np.savez(tmp_path / "a.npz", **arrays)
    relayout_command.convert(tmp_path / "a.npz", tmp_path / "b.onnx", source="flux.old", target="onnx", at=("net",))
    assert ["initial_state" in module.spec for module in paramtool.read(tmp_path / "b.onnx").modules] == [is_state]
    relayout_command.convert(tmp_path / "b.onnx", tmp_path / "c.npz", target="flux.old")
    found = paramtool.load_file(tmp_path / "c.npz")
    assert all(np.array_equal(found[name], value) for name, value in arrays.items())


def test_a_state_that_was_no_state(findings: Path) -> None:
    """A file of which everyone was told to pass zeros to the network."""
    read = paramtool.read(findings / "field" / "onnx-zero-state" / "e_False.onnx")
    assert not read.notes and [module.spec for module in read.modules] == ["lstm input=3 hidden=4"]


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
