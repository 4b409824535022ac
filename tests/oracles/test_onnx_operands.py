"""Constants of an ONNX graph beside its weights: onnx' schemas judge the table, torch's exporters make models."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from paramtool import formats
from paramtool.commands.diff.diff import Diffed, diff
from paramtool.formats.onnx.operands import CALCULATING, INDICES, MOVING, STATES
from paramtool.model.checkpoint import GRAPH
from paramtool.model.diff import ADDED, LAYOUT, REMOVED, RENAMED, SAME

WHOLE = {"tensor(int64)", "tensor(int32)", "tensor(bool)"}
CALCULATED = {
    ("And", 0),
    ("And", 1),
    ("Or", 0),
    ("Or", 1),
    ("Xor", 0),
    ("Xor", 1),
    ("Not", 0),
    ("Equal", 0),
    ("Equal", 1),
}
"""Inputs of truth values that are calculated with."""
DATA = {
    ("QLinearConv", 8), ("NegativeLogLikelihoodLoss", 1), ("SoftmaxCrossEntropyLoss", 1), ("Attention", 6), ("Scan", 0),
}  # fmt: skip
"""A bias in whole numbers; labels; lengths that come with the data."""
AS_FLOATS = {
    ("Dropout", 1): {"ratio"}, ("Resize", 1): {"roi", "scales"}, ("Resize", 2): {"scales"}, ("Upsample", 1): {"scales"},
    ("Range", 0): {"start"}, ("Range", 1): {"limit"}, ("Range", 2): {"delta"}, ("OneHot", 1): {"depth"},
    ("MelWeightMatrix", 3): {"lower_edge_hertz"}, ("MelWeightMatrix", 4): {"upper_edge_hertz"},
    ("NonMaxSuppression", 3): {"iou_threshold"}, ("NonMaxSuppression", 4): {"score_threshold"},
    ("Tile", 1): {"repeats", "tiles"},
}  # fmt: skip
"""Lengths, factors and limits that a schema lets be floats, by their names in it."""


def schemas() -> list[Any]:
    return [one for one in onnx.defs.get_all_schemas_with_history() if one.domain == ""]


def test_the_table_is_that_of_the_schemas() -> None:
    """Every input that only takes whole numbers or truth values is in the table, and nothing else but a few by name."""
    whole: dict[tuple[str, int], set[str]] = {}
    for schema in schemas():
        types = {one.type_param_str: set(one.allowed_type_strs) for one in schema.type_constraints}
        for place, given in enumerate(schema.inputs):
            if types.get(given.type_str, {given.type_str}) <= WHOLE:
                whole.setdefault((schema.name, place), set()).add(given.name)
    table = {(name, place) for name, places in INDICES.items() for place in places}
    assert whole.keys() - table == CALCULATED | DATA
    for key in table - whole.keys():
        names = {one.inputs[key[1]].name for one in schemas() if one.name == key[0] and len(one.inputs) > key[1]}
        assert names & AS_FLOATS[key], key
    states = {"initial_h", "initial_c"}
    for name, places in STATES.items():
        latest = onnx.defs.get_schema(name)
        assert {latest.inputs[place].name for place in places} == states & {one.name for one in latest.inputs}
    assert {one.name for one in schemas()} >= CALCULATING | MOVING


class Lstm(nn.Module):
    """Two layers, whose first states the exporter makes, and a head that reads the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 20, 2, batch_first=True), nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.rnn(x)[0][:, -1])
        return made


class Cnn(nn.Module):
    """Convolutions, padding, pooling, resizing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, stride=2), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(nn.functional.pad(x, (1, 2, 3, 4))))
        x = nn.functional.interpolate(self.second(x), scale_factor=2.0)
        made: torch.Tensor = self.head(x.mean((2, 3)))
        return made


class Block(nn.Module):
    """A block of a transformer with a causal mask, and a learned number beside those of the program."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.scale = heads, nn.Parameter(torch.tensor(0.7))
        self.words, self.norm = nn.Embedding(50, width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        with torch.no_grad():
            for one in self.norm.parameters():
                one.normal_()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        batch, steps, width = x.shape
        shape = (batch, steps, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm(x)).reshape(shape).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.tril(torch.ones(steps, steps, dtype=torch.bool))
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, steps, width)) * self.scale
        made: torch.Tensor = x + self.down(nn.functional.gelu(self.up(x)))
        return made


MODELS = {
    "lstm": (Lstm, (2, 7, 6), (0, 1)), "cnn": (Cnn, (1, 3, 16, 16), (0,)), "block": (Block, (2, 9), (0, 1)),
}  # fmt: skip
"""{model: what makes it, the shape of its input, the axes of which any length is taken}"""


def given(shape: tuple[int, ...]) -> torch.Tensor:
    made = torch.Generator().manual_seed(1)
    is_words = len(shape) == 2
    return torch.randint(0, 50, shape, generator=made) if is_words else torch.randn(shape, generator=made)


def export(name: str, place: Path, *, dynamo: bool, any_length: bool) -> tuple[nn.Module, Path]:
    """A model as torch.onnx.export writes it; ONNX Runtime computes the same."""
    make, shape, axes = MODELS[name]
    torch.manual_seed(0)
    module, x, path = make().eval(), given(shape), place / "m.onnx"
    more: dict[str, Any] = {}
    if any_length and dynamo:
        more = {"dynamic_shapes": ({axis: torch.export.Dim(f"axis{axis}") for axis in axes},)}
    elif any_length:
        more = {"input_names": ["x"], "dynamic_axes": {"x": list(axes)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), dynamo=dynamo, verbose=False, **more)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    with torch.no_grad():
        np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-4, atol=1e-5)
    torch.save(module.state_dict(), place / "m.pt")
    return module, path


EXPORTERS = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(
        importlib.util.find_spec("onnxscript") is None, reason="torch's newer exporter needs onnxscript")),
]  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("dynamo", EXPORTERS, ids=lambda dynamo: "dynamo" if dynamo else "torchscript")
@pytest.mark.parametrize("any_length", [False, True], ids=["fixed", "any length"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_beside_its_export(name: str, any_length: bool, dynamo: bool, tmp_path: Path) -> None:
    """The same weights in both directions; what only the graph has is listed, and judged by `--strict`."""
    module, path = export(name, tmp_path, dynamo=dynamo, any_length=any_length)
    for a, b in ((tmp_path / "m.pt", path), (path, tmp_path / "m.pt")):
        found = diff(a, b)
        assert found.is_same, [(one.kind, one.a, one.b, one.how) for one in found.tensors]
        names = {
            one for each in found.tensors if each.kind != GRAPH for one in (each.a if a.suffix == ".pt" else each.b)
        }
        assert names == set(module.state_dict())
        assert not found.judge(strict=True)
    graph = {one for each in found.tensors if each.kind == GRAPH for one in (*each.a, *each.b)}
    entries = formats.read(str(path)).entries
    assert graph == {one for one, entry in entries.items() if entry.role == GRAPH} and (graph or name == "cnn")


@pytest.mark.parametrize("dynamo", EXPORTERS, ids=lambda dynamo: "dynamo" if dynamo else "torchscript")
def test_a_weight_is_no_constant(dynamo: bool, tmp_path: Path) -> None:
    """Another number in any stored float of more than one element is told: none of them is a constant of the graph."""
    _, path = export("block", tmp_path, dynamo=dynamo, any_length=False)
    model = onnx.load(str(path))
    judged = 0
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype != np.float32 or array.size == 1:
            continue
        other = array.copy()
        other.flat[array.size // 2] += 1
        tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
        onnx.save(model, str(tmp_path / "other.onnx"))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        assert not diff(tmp_path / "m.pt", tmp_path / "other.onnx").is_same, tensor.name
        judged += 1
    assert judged >= 10


def test_two_exports_of_other_lengths(tmp_path: Path) -> None:
    """One model exported for two lengths: the same weights, and shapes that differ."""
    (tmp_path / "fixed").mkdir()
    (tmp_path / "any").mkdir()
    _, fixed = export("block", tmp_path / "fixed", dynamo=False, any_length=False)
    _, free = export("block", tmp_path / "any", dynamo=False, any_length=True)
    found = diff(fixed, free)
    assert found.is_same and any(one.kind == GRAPH for one in found.tensors)


def graph_of(nodes: list[Any], stored: dict[str, np.ndarray], shape: tuple[int, ...], rank: int) -> Any:
    """A model of some nodes with initializers, which onnx' checker accepts."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.checker.check_model(model)
    return model


def roles(place: Path, model: Any) -> dict[str, str]:
    onnx.save(model, str(place / "m.onnx"))
    return {name: entry.role for name, entry in formats.read(str(place / "m.onnx")).entries.items()}


def test_what_leads_to_an_index_and_what_does_not(tmp_path: Path) -> None:
    """Integers that become a shape by arithmetic; a weight that only chooses an expert; a learned number; a result."""
    stored = {
        "two": np.array([2], "i8"), "three": np.array([3], "i8"), "router": np.ones((6, 6), "f4"),
        "table": np.ones((6, 6), "f4"), "learned": np.array(0.5, "f4"), "both": np.array([6], "i8"),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Mul", ["two", "three"], ["rows"]),
        node("Concat", ["rows", "both"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["square"]),
        node("MatMul", ["square", "router"], ["scores"]),
        node("ArgMax", ["scores"], ["choice"], axis=1, keepdims=0),
        node("Gather", ["table", "choice"], ["chosen"]),
        node("Mul", ["chosen", "learned"], ["scaled"]),
        node("Cast", ["both"], ["number"], to=TensorProto.FLOAT),
        node("Add", ["scaled", "number"], ["y"]),
    ]
    found = roles(tmp_path, graph_of(nodes, stored, (36,), 2))
    assert found == {
        "two": GRAPH, "three": GRAPH, "router": "model", "table": "model", "learned": "model", "both": "model",
    }  # fmt: skip


def test_constants_inside_a_branch(tmp_path: Path) -> None:
    """A shape of the outer graph that only a branch of If uses, and one whose use leaves the branch."""
    node = helper.make_node
    out = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, None])]
    weight = numpy_helper.from_array(np.ones((4, 4), "f4"), "weight")
    inner = numpy_helper.from_array(np.array([-1, 4], "i8"), "inner")
    yes = helper.make_graph(
        [node("Reshape", ["x", "outer"], ["r"]), node("MatMul", ["r", "weight"], ["z"])], "yes", [], out, [weight]
    )
    no = helper.make_graph(
        [node("Reshape", ["x", "inner"], ["s"]), node("Cast", ["given"], ["t"], to=TensorProto.FLOAT),
         node("Add", ["s", "t"], ["z"])], "no", [], out, [inner],
    )  # fmt: skip
    nodes = [node("If", ["cond"], ["y"], then_branch=yes, else_branch=no)]
    stored = {"cond": np.array(True), "outer": np.array([4, 4], "i8"), "given": np.array([1, 2, 3, 4], "i8")}
    found = roles(tmp_path, graph_of(nodes, stored, (16,), 2))
    at = {name.rpartition("/")[2]: role for name, role in found.items()}
    assert at == {"cond": GRAPH, "outer": GRAPH, "given": "model", "weight": "model", "inner": GRAPH}


def test_zeros_as_an_initial_state(tmp_path: Path) -> None:
    """Zeros are what the node takes without them (docs/Operators.md, LSTM); other numbers are part of the model."""
    for number, role in ((0.0, GRAPH), (0.5, "model")):
        random = np.random.default_rng(0)
        stored = {
            "W": random.normal(size=(1, 20, 6)).astype("f4"), "R": random.normal(size=(1, 20, 5)).astype("f4"),
            "state": np.full((1, 2, 5), number, "f4"),
        }  # fmt: skip
        nodes = [helper.make_node("LSTM", ["x", "W", "R", "", "", "state", "state"], ["y"], hidden_size=5)]
        assert roles(tmp_path, graph_of(nodes, stored, (3, 2, 6), 4))["state"] == role


def test_equal_tensors_that_a_graph_stores_once(tmp_path: Path) -> None:
    """As many names as nodes take it are the same weights; one more is not."""
    node = helper.make_node
    nodes = [node("Mul", ["x", "a"], ["p"]), node("Mul", ["p", "a"], ["q"]), node("Mul", ["q", "b"], ["y"])]
    scale, other = (np.random.default_rng(k).normal(size=64).astype("f4") for k in range(2))
    onnx.save(graph_of(nodes, {"a": scale, "b": other}, (64,), 1), str(tmp_path / "m.onnx"))
    state = {"a": torch.from_numpy(scale), "c": torch.from_numpy(scale.copy()), "b": torch.from_numpy(other)}
    for count, kinds in ((2, {SAME, RENAMED}), (3, {SAME, RENAMED, REMOVED})):
        if count == 3:
            state["d"] = torch.from_numpy(scale.copy())
        torch.save(state, tmp_path / "m.pt")
        found: Diffed = diff(tmp_path / "m.pt", tmp_path / "m.onnx")
        assert {one.kind for one in found.tensors} == kinds
        assert found.is_same == (count == 2)
        back = diff(tmp_path / "m.onnx", tmp_path / "m.pt")
        assert back.is_same == (count == 2) and {one.kind for one in back.tensors} <= {SAME, RENAMED, ADDED}
    assert LAYOUT not in kinds
