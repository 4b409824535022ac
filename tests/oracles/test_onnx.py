"""onnx' own reader of the same files, and onnxruntime's results from what modules say of recurrent nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import relayout as relayout_command
from paramtool.commands import verify as verify_command
from paramtool.errors import LayoutError
from paramtool.model.checkpoint import Module
from tests.contracts.makers_onnx import model, written
from tests.laws.sharing import raw
from tests.oracles.running import close, run_torch

FIXTURES = Path(__file__).parents[2] / "fixtures/onnx"
SAMPLES = {
    "NVIDIA__TensorRT__lstm.onnx": 4,
    "onnx__onnx__test_operator_lstm.onnx": 20,
    "snakers4__silero-vad__v3_silero_vad.onnx": 271,
}
"""{file: tensors}: initializers and Constant nodes."""


def tensors(graph: onnx.GraphProto, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every initializer and constant of a graph and of the graphs in it, as onnx reads it."""
    yield from ((prefix + proto.name, numpy_helper.to_array(proto)) for proto in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield prefix + node.output[0], numpy_helper.to_array(attribute.t)
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from tensors(attribute.g, f"{prefix}{node.name or node.output[0]}/{attribute.name}/")


@pytest.mark.parametrize("name", sorted(SAMPLES))
class TestSamples:
    """Models of other people."""

    def test_tensors(self, samples: Path, name: str) -> None:
        """Names in order, types, shapes and bytes are those of onnx' own reader."""
        expected = dict(tensors(onnx.load(str(samples / name)).graph))
        found = paramtool.load_file(samples / name)
        assert list(found) == list(expected)
        assert len(found) == SAMPLES[name]
        for key, array in expected.items():
            assert (array.dtype, array.shape, raw(array)) == (found[key].dtype, found[key].shape, raw(found[key])), key

    def test_dedup_and_export(self, samples: Path, name: str, tmp_path: Path) -> None:
        """A dedup holds the same, verify agrees, and dedup of it gives the same bytes."""
        once, twice = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
        dedup_command.dedup(samples / name, once)
        dedup_command.dedup(once, twice)
        assert verify_command.verify(once, samples / name).differences == ()
        assert once.read_bytes() == twice.read_bytes()


def test_modules_of_samples(samples: Path) -> None:
    """Silero has two layers with stored weights; the exporter of PyTorch 0.3 let the graph put them together."""
    silero = paramtool.read(samples / "snakers4__silero-vad__v3_silero_vad.onnx").modules
    assert [(m.at, m.spec, sorted(m.tensors)) for m in silero] == [
        (at, "lstm input=64 hidden=64", ["B", "R", "W"]) for at in ("LSTM_589", "LSTM_600")
    ]
    old = paramtool.read(samples / "onnx__onnx__test_operator_lstm.onnx")
    assert [(m.at, m.spec, dict(m.tensors)) for m in old.modules] == [(at, "lstm hidden=20", {}) for at in ("48", "90")]
    assert all("computes B, R, W" in note for note in old.notes)
    (nvidia,) = paramtool.read(samples / "NVIDIA__TensorRT__lstm.onnx").modules
    assert nvidia.spec == "lstm input=6 hidden=5"


@pytest.mark.parametrize("name", ["exported_rnn", "shared_external"])
def test_modules_of_fixtures(name: str) -> None:
    """What the makers know of their recurrent nodes is an input."""
    folder = FIXTURES / name
    found = [[m.at, m.layout, m.spec, dict(m.tensors)] for m in paramtool.read(folder / f"{name}.onnx").modules]
    assert found == json.loads((folder / "expected.json").read_text())["modules"]


def test_silero_is_the_same_network_as_its_torchscript(samples: Path) -> None:
    """W, R and B of a module are PyTorch's weights with the gates i, f, g, o put into the order i, o, f, g."""
    script = paramtool.load_file(samples / "snakers4__silero-vad__v3_silero_vad.jit")
    found = paramtool.load_file(samples / "snakers4__silero-vad__v3_silero_vad.onnx")
    module = paramtool.read(samples / "snakers4__silero-vad__v3_silero_vad.onnx").modules[0]
    turned = [np.concatenate([np.split(script[n], 4)[k] for k in (0, 3, 1, 2)])
              for n in script if re.fullmatch(r".*weight_ih_l0", n)]  # fmt: skip
    assert any(raw(found[module.tensors["W"]]) == raw(array) for array in turned)


# --- what a module says, run by onnxruntime ---------------------------------------------------------------------------


def function(word: str) -> Callable[[np.ndarray], np.ndarray]:
    """An activation by its word in a spec."""
    name, _, rest = word.partition("(")
    numbers = [float(number) for number in rest.rstrip(")").split(",") if number]
    return {
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "hard_sigmoid": lambda x: np.clip(numbers[0] * x + numbers[1], 0, 1),
        "leaky_relu": lambda x: np.where(x < 0, numbers[0] * x, x),
        "thresholded_relu": lambda x: np.where(x > numbers[0], x, 0),
        "elu": lambda x: np.where(x < 0, numbers[0] * (np.exp(x) - 1), x),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "softplus": lambda x: np.log1p(np.exp(x)),
    }[name]


class Network:
    """A recurrent layer in NumPy, from nothing but a module and the tensors that it names.

    The equations are those of docs/Operators.md (onnx), for a batch of one: X is (steps, input).
    """

    def __init__(self, module: Module, held: dict[str, np.ndarray]) -> None:
        self.kind, *words = module.spec.split()
        said = dict(word.partition("=")[::2] for word in words)
        self.said = said
        self.hidden = int(said["hidden"])
        self.w = {key: held[name].astype("f8") for key, name in module.tensors.items()}
        self.gate = function(said.get("gate_activation", "sigmoid"))
        self.out = function(said.get("activation", "tanh"))
        self.clip = float(said.get("clip", "inf"))

    def run(self, x: np.ndarray) -> np.ndarray:
        """Y of shape (steps, directions, hidden)."""
        if "bidirectional" in self.said:
            return np.stack([self.one(x, 0), self.one(x[::-1], 1)[::-1]], 1)
        return np.stack([self.one(x[::-1], 0)[::-1] if "backward" in self.said else self.one(x, 0)], 1)

    def one(self, x: np.ndarray, d: int) -> np.ndarray:
        """One direction, from its first step to its last."""
        w, r, h = self.w["W"][d], self.w["R"][d], np.zeros(self.hidden)
        c, rows = np.zeros(self.hidden), []
        bias = self.w["B"][d] if "B" in self.w else np.zeros(2 * len(w))
        bw, br = np.split(bias, 2)
        peep = np.split(self.w["P"][d], 3) if "P" in self.w else [0, 0, 0]
        for step in x:
            h, c = getattr(self, self.kind)(w @ step + bw, r, br, h, c, peep)
            rows.append(h)
        return np.stack(rows)

    def limit(self, x: np.ndarray) -> np.ndarray:
        """What goes into an activation."""
        return np.clip(x, -self.clip, self.clip)

    def lstm(self, xw: Any, r: Any, br: Any, h: Any, c: Any, peep: Any) -> tuple[Any, Any]:
        """i, o, f, c."""
        i, o, f, g = np.split(xw + r @ h + br, 4)
        i = self.gate(self.limit(i + peep[0] * c))
        f = 1 - i if "coupled" in self.said else self.gate(self.limit(f + peep[2] * c))
        c = f * c + i * self.out(self.limit(g))
        o = self.gate(self.limit(o + peep[1] * c))
        return o * self.out(c), c  # onnxruntime clips what goes into the gates, and not the cell on its way out

    def gru(self, xw: Any, r: Any, br: Any, h: Any, c: Any, peep: Any) -> tuple[Any, Any]:
        """z, r, h."""
        (xz, xr, xn), (rz, rr, rn), (bz, b_r, bn) = (np.split(part, 3) for part in (xw, r, br))
        z = self.gate(self.limit(xz + rz @ h + bz))
        reset = self.gate(self.limit(xr + rr @ h + b_r))
        inside = reset * (rn @ h + bn) if self.said["reset"] == "after" else rn @ (reset * h) + bn
        n = self.out(self.limit(xn + inside))
        return (1 - z) * n + z * h, c

    def rnn(self, xw: Any, r: Any, br: Any, h: Any, c: Any, peep: Any) -> tuple[Any, Any]:
        """One gate."""
        return self.out(self.limit(xw + r @ h + br)), c


RUNS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"direction": "bidirectional"}),
    ("LSTM", {"direction": "reverse", "B": False}),
    ("LSTM", {"P": True}),
    ("LSTM", {"P": True, "input_forget": 1}),
    ("LSTM", {"clip": 0.4}),
    ("LSTM", {"activations": ["HardSigmoid", "Relu", "Relu"], "activation_alpha": [0.3], "activation_beta": [0.4]}),
    ("LSTM", {"activations": ["Sigmoid", "LeakyRelu", "LeakyRelu"], "activation_alpha": [0.7, 0.7]}),
    ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Tanh"]}),
    ("GRU", {}),
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"linear_before_reset": 1, "direction": "bidirectional", "activations": ["HardSigmoid", "Elu"] * 2,
             "activation_alpha": [0.3, 0.6, 0.3, 0.6], "activation_beta": [0.4, 0.4]}),
    ("GRU", {"activations": ["Softsign", "Softplus"]}),
    ("RNN", {}),
    ("RNN", {"activations": ["Relu"], "direction": "reverse"}),
    ("RNN", {"activations": ["ThresholdedRelu"] * 2, "activation_alpha": [0.2, 0.2], "direction": "bidirectional"}),
]  # fmt: skip


@pytest.mark.parametrize("k", range(len(RUNS)), ids=lambda k: f"{k} {RUNS[k][0]}")
def test_a_module_says_what_onnxruntime_runs(k: int, tmp_path: Path) -> None:
    """A network made from the spec and the tensors of a module computes what the node does."""
    kind, attributes = RUNS[k][0], dict(RUNS[k][1])
    inside, hidden, gates = 3, 4, {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"W": (gates * hidden, inside), "R": (gates * hidden, hidden), "B": (2 * gates * hidden,)}
    if not attributes.pop("B", True):
        del shapes["B"]
    if attributes.pop("P", False):
        shapes["P"] = (3 * hidden,)
    draw = np.random.default_rng(k)
    protos = [numpy_helper.from_array(draw.normal(0, 0.8, (directions, *s)).astype("f4"), n) for n, s in shapes.items()]
    inputs = ["X", "W", "R", "B" if "B" in shapes else "", *["", "", "", "P"] * ("P" in shapes)]
    node = helper.make_node(kind, inputs, ["Y"], name="rnn", hidden_size=hidden, **attributes)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "XY"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], protos)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    path = written(tmp_path, made)
    x = draw.normal(0, 1, (6, 1, inside)).astype("f4")
    (expected,) = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"]).run(
        None, {"X": x}
    )
    (module,) = paramtool.read(path).modules
    found = Network(module, paramtool.load_file(path)).run(x[:, 0].astype("f8"))
    assert np.abs(found).max() > 0.05
    np.testing.assert_allclose(found, expected[:, :, 0], atol=2e-5)


# --- what a node is given beside its weights --------------------------------------------------------------------------


def given(folder: Path, lengths: list[int] | None, steps: int | str, **attributes: Any) -> tuple[Path, np.ndarray]:
    """An LSTM whose sequence_lens are stored, or an input where they are None; a batch of 2, and what it computes."""
    random = np.random.default_rng(3)
    stored = {"W": (1, 16, 3), "R": (1, 16, 4), "B": (1, 32)}
    held = [numpy_helper.from_array(random.normal(size=size).astype("f4"), name) for name, size in stored.items()]
    shape = [2, steps, 3] if attributes.get("layout") else [steps, 2, 3]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)]
    if lengths is None:
        inputs.append(helper.make_tensor_value_info("L", TensorProto.INT32, [2]))
    else:
        held.append(numpy_helper.from_array(np.array(lengths, "i4"), "L"))
    node = helper.make_node("LSTM", ["X", *stored, "L"], ["Y"], name="enc", hidden_size=4, **attributes)
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "g", inputs, outputs, held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    if attributes.get("layout"):  # which ONNX Runtime does not run
        return folder / "m.onnx", np.zeros(0)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"X": X} | ({"L": np.array([5, 5], "i4")} if lengths is None else {})
    return folder / "m.onnx", np.asarray(session.run(["Y"], feeds)[0])[:, 0]


X = np.random.default_rng(4).normal(size=(5, 2, 3)).astype("f4")


@pytest.mark.parametrize("lengths", [[5, 5], None])
def test_whole_sequences(lengths: list[int] | None, tmp_path: Path) -> None:
    """Lengths that are the whole of X, or that come with the data, change nothing: torch computes the same."""
    path, wanted = given(tmp_path, lengths, 5 if lengths else "T")
    notes = paramtool.read(path).notes
    assert ["'L'" in note and "pass them to the network" in note for note in notes] == [True] * (lengths is None)
    report = relayout_command.convert(path, tmp_path / "o.safetensors", target="torch")
    found = {name: value for name, value in paramtool.load_file(tmp_path / "o.safetensors").items() if "enc." in name}
    states = [np.zeros((1, 2, 4), "f4")] * 2
    own = {name.removeprefix("enc."): value for name, value in found.items()}
    assert str(report.converted[0].spec) == "lstm input=3 hidden=4"
    close(run_torch("lstm", own, X, *states)[0], wanted)


@pytest.mark.parametrize(
    ("lengths", "steps", "layout", "says"),
    [
        ([3, 5], 5, 0, "(3, 5) and an X of 5 steps"),
        ([4, 4], 5, 0, "(4, 4) and an X of 5 steps"),
        ([5, 5], "T", 0, "(5, 5) and an X of an unknown number of steps"),
        ([2, 2], 5, 1, "(2, 2) and an X of 5 steps"),
    ],
)
def test_shorter_sequences(lengths: list[int], steps: int | str, layout: int, says: str, tmp_path: Path) -> None:
    """Stored lengths that could be shorter than X are refused, by their name, whatever is asked for."""
    path, found = given(tmp_path, lengths, steps, **({"layout": 1} if layout else {}))
    if not layout and set(lengths) != {5}:  # they do make a difference
        assert np.abs(found - given(tmp_path, [5, 5], 5)[1]).max() > 0.05
        path, _ = given(tmp_path, lengths, steps)
    dedup_command.dedup(path, tmp_path / "d.safetensors")
    for source in (path, tmp_path / "d.safetensors"):
        for more in ({}, {"source": "onnx", "at": ("enc",)}):
            with pytest.raises(LayoutError, match=re.escape(f"stored sequence_lens 'L' {says}")):
                relayout_command.convert(source, tmp_path / "o.safetensors", target="torch", **more)
    assert not (tmp_path / "o.safetensors").exists()


def test_a_finding(findings: Path, tmp_path: Path) -> None:
    """A model whose stored lengths were left out of what it computes."""
    with pytest.raises(LayoutError, match="stored sequence_lens 'sl'"):
        relayout_command.convert(findings / "o_seqlens.onnx", tmp_path / "o.safetensors", target="torch")


@pytest.mark.parametrize("number", [0.0, 0.5])
def test_states_that_the_graph_spreads(number: float, tmp_path: Path) -> None:
    """A stored state that is spread over the batch is noted, unless it is zero, as exporters write it."""
    node, tensors = helper.make_node("GRU", ["X", "W", "R", "", "", "s2"], ["Y"], name="enc", hidden_size=2), []
    for name, shape in (("W", (1, 6, 3)), ("R", (1, 6, 2)), ("h0", (1, 2))):
        tensors.append(numpy_helper.from_array(np.full(shape, number, "f4"), name))
    spread = [helper.make_node("Unsqueeze", ["h0", "axes"], ["s1"]), helper.make_node("Expand", ["s1", "n"], ["s2"])]
    path = written(tmp_path, model(*tensors, nodes=(*spread, node)))
    assert ["its initial state has the numbers of 'h0'" in note for note in paramtool.read(path).notes] == [
        True
    ] * bool(number)
