"""ONNX: tensors in every form they can have, names, files beside a model, and what recurrent nodes say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.errors import FormatError, LayoutError
from paramtool.formats import sniff
from paramtool.formats.onnx import model as onnx_model
from paramtool.formats.onnx._rnn import shortest
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Compound, Module, Unreadable
from paramtool.model.storage import ByteRange, Inline
from paramtool.model.view import View
from tests.contracts.makers_onnx import EXTERNAL, model, written
from tests.hostile.command import quick
from tests.laws.sharing import raw
from tests.versions import needs

BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2, 27: 6, 28: 6}
"""{data type: bits of an element}, of those that do not fill a byte."""
TYPES = sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING})


def values(code: int, count: int) -> np.ndarray:
    """Numbers that every type can hold."""
    return (np.arange(count) % 2).astype(helper.tensor_dtype_to_np_dtype(code))


def tag(number: int, wire: int) -> bytes:
    """The tag of a field whose number is below 16."""
    return bytes([number << 3 | wire])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, in any message."""
    made, length = bytearray(), len(content)
    for value in (number << 3 | 2, length):
        while value > 0x7F:
            made.append(value & 0x7F | 0x80)
            value >>= 7
        made.append(value)
    return bytes(made) + content


def by_hand(folder: Path, tensor: bytes) -> Path:
    """A model around one TensorProto that no library would write so."""
    path = folder / "model.onnx"
    path.write_bytes(b"\x08\x0a" + field(7, field(5, tensor)) + field(8, b"\x10\x14"))
    return path


def only(folder: Path, *initializers: TensorProto, **more: Any) -> Checkpoint:
    """A model of these tensors, read."""
    return paramtool.read(written(folder, model(*initializers, **more)))


NEW_ONNX = needs("onnx", "1.23", "helpers for every type; 1.19 lacks types of 2 and 6 bits")


class TestTensors:
    """Where the bytes of a tensor are."""

    @NEW_ONNX
    @pytest.mark.parametrize("code", TYPES)
    @pytest.mark.parametrize("in_raw", [True, False])
    def test_every_type(self, tmp_path: Path, code: int, in_raw: bool) -> None:
        """Each data type, in raw_data and in the field of its own, holds the bytes that onnx' raw_data has."""
        held = values(code, 24)
        proto = helper.make_tensor("w", code, [4, 6], held.tobytes() if code not in BITS and in_raw else held, in_raw)
        path = written(tmp_path, model(proto))
        value = paramtool.read(path).entries["w"].value
        if code in (27, 28) and not in_raw:
            assert isinstance(value, Unreadable)
            return
        expected = numpy_helper.from_array(held.reshape(4, 6)).raw_data
        assert numpy_helper.to_array(onnx.load(str(path)).graph.initializer[0]).tobytes() == held.tobytes()
        found = paramtool.load_file(path)
        assert raw(next(iter(found.values()))) == expected
        if isinstance(value, Compound):
            assert (value.kind, value.facts["shape"]) == ("packed", (4, 6))
        else:
            assert isinstance(value, View)
            assert value.shape == (4, 6)

    @NEW_ONNX
    @pytest.mark.parametrize("code", sorted(BITS))
    @pytest.mark.parametrize("count", [1, 2, 3, 5])
    def test_elements_that_share_bytes(self, tmp_path: Path, code: int, count: int) -> None:
        """Counts that leave room in the last byte are as long as onnx makes them."""
        held = values(code, count)
        proto = helper.make_tensor("w", code, [count], held, raw=True)
        only(tmp_path, proto)
        found = paramtool.load_file(tmp_path / "model.onnx")
        assert raw(next(iter(found.values()))) == proto.raw_data

    @pytest.mark.parametrize("code", [TensorProto.FLOAT, TensorProto.DOUBLE])
    def test_numbers_that_are_not_packed(self, tmp_path: Path, code: int) -> None:
        """Floats with a tag each, and packed ones in two pieces, are the same row of numbers."""
        size, number, wire = (4, 4, 5) if code == TensorProto.FLOAT else (8, 10, 1)
        parts = [np.float64(k).astype(f"f{size}").tobytes() for k in (1, 2, 3)]
        start = b"\x08\x03\x10" + bytes([code]) + field(8, b"w")
        tagged = start + b"".join(tag(number, wire) + part for part in parts)
        pieces = start + field(number, parts[0] + parts[1]) + field(number, parts[2])
        for tensor in (tagged, pieces):
            checkpoint = paramtool.read(by_hand(tmp_path, tensor))
            assert isinstance(checkpoint.storages[0].backing, Inline)
            assert paramtool.load_file(tmp_path / "model.onnx")["w"].tolist() == [1, 2, 3]

    @pytest.mark.parametrize("packed", [True, False])
    def test_integers_with_and_without_tags(self, tmp_path: Path, packed: bool) -> None:
        """Negative numbers take ten bytes; both forms are read."""
        numbers = [b"\x05", b"\xff" * 9 + b"\x01", b"\x80\x01"]
        data = field(7, b"".join(numbers)) if packed else b"".join(tag(7, 0) + number for number in numbers)
        path = by_hand(tmp_path, b"\x08\x03\x10\x07" + field(8, b"w") + data)
        assert paramtool.load_file(path)["w"].tolist() == [5, -1, 128]

    def test_unpacking_is_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Numbers to be unpacked are counted over the whole file; beyond that a tensor is listed, not read."""
        monkeypatch.setattr(onnx_model, "MAX_UNPACKED_NBYTES", 10)
        protos = [helper.make_tensor(name, TensorProto.INT64, [6], range(6)) for name in "ab"]
        found = only(tmp_path, *protos).entries
        assert isinstance(found["a"].value, View)
        assert isinstance(found["b"].value, Unreadable)

    def test_texts_are_listed(self, tmp_path: Path) -> None:
        """A tensor of strings has a name, and no bytes that could be a tensor's."""
        proto = helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"])
        assert isinstance(only(tmp_path, proto).entries["words"].value, Unreadable)

    def test_sparse_tensors(self, tmp_path: Path) -> None:
        """Values and indices are parts of one name; so they are in a Constant node."""
        parts = [numpy_helper.from_array(np.array(row), name) for row, name in (([1.0, 2], "s"), ([3, 7], "s_indices"))]
        proto = helper.make_sparse_tensor(*parts, [3, 4])
        node = helper.make_node("Constant", [], ["t"], sparse_value=proto)
        checkpoint = only(tmp_path, nodes=(node,), sparse_initializer=[proto])
        for name in "st":
            value = checkpoint.entries[name].value
            assert isinstance(value, Compound)
            assert (value.kind, value.facts) == ("sparse_coo", {"shape": (3, 4)})
        assert paramtool.load_file(tmp_path / "model.onnx")["t/indices"].tolist() == [3, 7]


class TestNames:
    """What a tensor is called."""

    W = numpy_helper.from_array(np.arange(3.0), "w")

    def test_initializers_come_before_constants(self, tmp_path: Path) -> None:
        """In the order of the file; a Constant is called as its output, whatever its tensor is called."""
        node = helper.make_node("Constant", [], ["out"], value=numpy_helper.from_array(np.arange(2), "inner"))
        assert list(only(tmp_path, self.W, nodes=(node,)).entries) == ["w", "out"]

    def test_graphs_inside_nodes(self, tmp_path: Path) -> None:
        """A tensor inside an If or a Loop has its node's path before its name; nodes of one name are told apart."""
        inner = [helper.make_graph([], f"g{k}", [], [], [self.W]) for k in range(2)]
        deep = helper.make_graph([helper.make_node("Loop", [], ["y"], name="loop", body=inner[0])], "d", [], [])
        nodes = (
            helper.make_node("If", ["c"], ["a"], name="if", then_branch=inner[0], else_branch=inner[1]),
            helper.make_node("If", ["c"], ["b"], name="if", then_branch=deep, else_branch=inner[1]),
        )
        assert set(only(tmp_path, self.W, nodes=nodes).entries) == {
            "w", "if/then_branch/w", "if/else_branch/w", "b/then_branch/loop/body/w", "b/else_branch/w",
        }  # fmt: skip

    def test_functions_and_training(self, tmp_path: Path) -> None:
        """Graphs that only run in training, and functions that nodes call, hold tensors too."""
        made = model(self.W)
        node = helper.make_node("Constant", [], ["k"], value=self.W)
        made.functions.append(helper.make_function("d", "f", [], ["k"], [node], [helper.make_opsetid("", 20)]))
        made.training_info.add().algorithm.CopyFrom(helper.make_graph([], "t", [], [], [self.W]))
        assert list(paramtool.read(written(tmp_path, made)).entries) == ["w", "training_info.0/algorithm/w", "f/k"]

    def test_texts_of_the_model(self, tmp_path: Path) -> None:
        """metadata_props are the file's own texts, and the producer has its version."""
        made = model(self.W)
        made.producer_version = "1.2"
        helper.set_model_props(made, {"author": "ü", "empty": ""})
        checkpoint = paramtool.read(written(tmp_path, made))
        assert (checkpoint.metadata, checkpoint.producer) == ({"author": "ü", "empty": ""}, "tests 1.2")


class TestFilesBeside:
    """External data."""

    @staticmethod
    def proto(name: str, count: int, **facts: str) -> TensorProto:
        """A tensor of `count` float32 in another file."""
        made = TensorProto(name=name, data_type=1, dims=[count], data_location=TensorProto.EXTERNAL)
        for key, value in {"location": EXTERNAL, **facts}.items():
            made.external_data.add(key=key, value=value)
        return made

    def read(self, folder: Path, *protos: TensorProto) -> Checkpoint:
        """A model of these tensors beside a file of 64 bytes."""
        (folder / EXTERNAL).write_bytes(np.arange(16, dtype="f4").tobytes())
        return only(folder, *protos)

    def test_defaults(self, tmp_path: Path) -> None:
        """Without an offset a tensor begins at byte 0; without a length its shape says it."""
        checkpoint = self.read(tmp_path, self.proto("a", 3), self.proto("b", 2, offset="8"))
        assert [Path(file.path).name for file in checkpoint.files] == ["model.onnx", EXTERNAL]
        assert paramtool.load_file(tmp_path / "model.onnx")["b"].tolist() == [2, 3]

    def test_one_range_is_one_memory(self, tmp_path: Path) -> None:
        """Two names of one range share it, and a third that lies inside is a slice of it."""
        protos = [self.proto("a", 4), self.proto("b", 4, offset="0", length="16"), self.proto("c", 2, offset="8")]
        checkpoint = self.read(tmp_path, *protos, self.proto("d", 4, offset="16"))
        graph = alias.build(checkpoint)
        assert {name: member.alias_set for name, member in graph.names.items()} == dict(
            zip("abcd", "aaad", strict=True)
        )
        assert graph.relation(graph.names["c"]) == "slice"
        assert graph.names["b"].evidence == "storage"

    def test_an_overlap_within_an_element_is_refused(self, tmp_path: Path) -> None:
        """Two tensors whose elements cut each other are nobody's model."""
        with pytest.raises(FormatError, match=r"'b'.*not a multiple"):
            self.read(tmp_path, self.proto("a", 4), self.proto("b", 2, offset="6"))

    def test_folders_below(self, tmp_path: Path) -> None:
        """A file may stand in a folder below the model's, and be called with a dot."""
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "w").write_bytes(bytes(range(8)))
        only(tmp_path, self.proto("a", 2, location="./data/w"))
        assert raw(paramtool.load_file(tmp_path / "model.onnx")["a"]) == bytes(range(8))

    def test_a_hubs_cache(self, tmp_path: Path) -> None:
        """A model and its data that are both links into one other folder are read."""
        (tmp_path / "blobs").mkdir()
        self.read(tmp_path / "blobs", self.proto("a", 4))
        (tmp_path / "snapshot").mkdir()
        for name in ("model.onnx", EXTERNAL):
            (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{name}")
        assert paramtool.load_file(tmp_path / "snapshot" / "model.onnx")["a"].tolist() == [0, 1, 2, 3]
        (tmp_path / "snapshot/model.onnx").unlink()  # one that was small enough to be no link
        shutil.copy(tmp_path / "blobs/model.onnx", tmp_path / "snapshot")
        assert paramtool.load_file(tmp_path / "snapshot" / "model.onnx")["a"].tolist() == [0, 1, 2, 3]
        assert quick("check", "snapshot", cwd=tmp_path).code == 0


def recurrent(kind: str, *, directions: int = 1, **attributes: Any) -> tuple[onnx.NodeProto, list[TensorProto]]:
    """A node of hidden size 2 and input size 3, and its W, R, B, P."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    shapes = {"W": (gates * 2, 3), "R": (gates * 2, 2), "B": (gates * 4,), "P": (6,)}
    tensors = [numpy_helper.from_array(np.ones((directions, *shape), "f4"), n) for n, shape in shapes.items()]
    inputs = ["X", "W", "R", "B"] + (["", "", "", "P"] if attributes.pop("peephole", False) else [])
    inputs = [name for name in inputs if name != "B" or not attributes.get("no_bias")]
    attributes.pop("no_bias", None)
    if not attributes.pop("named", True):
        return helper.make_node(kind, inputs, ["", "Y_h"], hidden_size=2, **attributes), tensors
    return helper.make_node(kind, inputs, ["Y"], name="rnn", hidden_size=2, **attributes), tensors


def described(folder: Path, kind: str, **attributes: Any) -> Module:
    """The module of one node."""
    node, tensors = recurrent(kind, **attributes)
    checkpoint = only(folder, *tensors, nodes=(node,))
    assert checkpoint.notes == ()
    (found,) = checkpoint.modules
    return found


SPECS: list[tuple[str, dict[str, Any], str]] = [
    ("LSTM", {}, "lstm input=3 hidden=2"),
    ("LSTM", {"directions": 2, "direction": "bidirectional"}, "lstm input=3 hidden=2 bidirectional"),
    ("LSTM", {"direction": "reverse"}, "lstm input=3 hidden=2 backward"),
    ("LSTM", {"no_bias": True}, "lstm input=3 hidden=2 bias=no"),
    ("LSTM", {"peephole": True}, "lstm input=3 hidden=2 peephole"),
    ("LSTM", {"input_forget": 1}, "lstm input=3 hidden=2 coupled"),
    ("LSTM", {"clip": 3.3}, "lstm input=3 hidden=2 clip=3.3"),
    ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, "lstm input=3 hidden=2 gate_activation=hard_sigmoid(0.2,0.5)"),  # noqa: E501 - one case a line
    ("LSTM", {"activations": ["HardSigmoid", "Relu", "Relu"], "activation_alpha": [1 / 6], "activation_beta": [0.25]},
     "lstm input=3 hidden=2 activation=relu gate_activation=hard_sigmoid(0.16666667,0.25)"),
    ("GRU", {}, "gru input=3 hidden=2 reset=before"),
    ("GRU", {"linear_before_reset": 1}, "gru input=3 hidden=2 reset=after"),
    ("GRU", {"activations": ["Sigmoid", "Softsign"]}, "gru input=3 hidden=2 reset=before activation=softsign"),
    ("RNN", {}, "rnn input=3 hidden=2 activation=tanh"),
    ("RNN", {"activations": ["Relu"]}, "rnn input=3 hidden=2 activation=relu"),
    ("RNN", {"activations": ["LeakyRelu"] * 2, "activation_alpha": [0.5, 0.5], "directions": 2, "direction": "bidirectional"},  # noqa: E501 - one case a line
     "rnn input=3 hidden=2 bidirectional activation=leaky_relu(0.5)"),
]  # fmt: skip
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("LSTM", {"activations": ["Sigmoid", "Tanh", "Relu"]}, "different activations"),
    ("LSTM", {"activations": ["Sigmoid", "Tanh"]}, "2 activations"),
    ("LSTM", {"activations": ["Affine", "Tanh", "Tanh"]}, "'Affine'"),
    ("RNN", {"activations": ["Elu"], "activation_alpha": [-1.0]}, "a spec cannot express"),
    ("RNN", {"activations": ["Tanh", "Relu"], "directions": 2, "direction": "bidirectional"}, "different activations"),
    ("GRU", {"direction": "sideways"}, "'sideways'"),
    ("GRU", {"directions": 2}, "expected [1, 6, any]"),
]


class TestRecurrentNodes:
    """LSTM, GRU and RNN nodes."""

    @pytest.mark.parametrize(("kind", "attributes", "expected"), SPECS)
    def test_spec(self, tmp_path: Path, kind: str, attributes: dict[str, Any], expected: str) -> None:
        """Every attribute has its word, and the usual ones have none."""
        assert described(tmp_path, kind, **attributes).spec == expected

    @pytest.mark.parametrize(("kind", "attributes", "says"), REFUSED)
    def test_what_no_spec_can_say_is_noted(
        self, tmp_path: Path, kind: str, attributes: dict[str, Any], says: str
    ) -> None:
        """A network that would be described wrongly is refused, by what the file says and by its names."""
        node, tensors = recurrent(kind, **attributes)
        checkpoint = only(tmp_path, *tensors, nodes=(node,))
        (module,) = checkpoint.modules
        assert (module.spec, says in module.refused) == ("", True)
        for source, at, message in ((None, (), re.escape(says)), ("onnx", ("",), None)):
            with pytest.raises(LayoutError, match=message):
                relayout_command.convert(
                    tmp_path / "model.onnx", tmp_path / "o.safetensors", source=source, target="torch", at=at
                )
        assert len([note for note in checkpoint.notes if says in note and "'rnn'" in note]) == 1

    def test_place_and_tensors(self, tmp_path: Path) -> None:
        """A module is called after its node, or after its first output, and names what is connected."""
        found = described(tmp_path, "LSTM", peephole=True)
        assert (found.at, found.layout, found.source) == ("rnn", "onnx", "LSTM node 'rnn'")
        assert found.tensors == {name: name for name in "WRBP"}
        assert described(tmp_path, "LSTM", named=False).at == "Y_h"

    def test_weights_of_the_graph_around(self, tmp_path: Path) -> None:
        """A node in a branch uses tensors of the graph outside, of its own, and through Identity nodes."""
        node, tensors = recurrent("GRU")
        same = helper.make_node("Identity", ["R_"], ["R"])
        tensors[1].name = "R_"
        inner = helper.make_graph([same, node], "inner", [], [], [tensors[0]])
        outer = helper.make_node("If", ["c"], ["Z"], name="if", then_branch=inner)
        (found,) = only(tmp_path, *tensors[1:3], nodes=(outer,)).modules
        assert (found.at, found.tensors) == ("if/then_branch/rnn", {"W": "if/then_branch/W", "R": "R_", "B": "B"})

    def test_weights_that_the_graph_computes(self, tmp_path: Path) -> None:
        """What comes out of other nodes is no stored tensor: it is left out of the module, and noted."""
        node, tensors = recurrent("LSTM")
        computed = helper.make_node("Neg", ["P"], ["W"])
        checkpoint = only(tmp_path, *tensors[1:], nodes=(computed, node))
        (found,) = checkpoint.modules
        assert (found.spec, found.tensors) == ("lstm hidden=2", {"R": "R", "B": "B"})
        assert "computes W" in checkpoint.notes[0]

    def test_stored_initial_states_are_noted(self, tmp_path: Path) -> None:
        """A state that the node begins with is in no module; that it is there is said."""
        node, tensors = recurrent("RNN")
        node.input.extend(["", "P"])
        assert "its initial state has the numbers of 'P'" in only(tmp_path, *tensors, nodes=(node,)).notes[0]

    def test_operators_of_others_are_left_alone(self, tmp_path: Path) -> None:
        """An LSTM of another domain is some other thing."""
        node, tensors = recurrent("LSTM")
        node.domain = "com.example"
        assert only(tmp_path, *tensors, nodes=(node,)).modules == ()


@pytest.mark.parametrize("number", [0.1, 0.2, 1 / 6, 1 / 3, 3.0, 1e-7, 12345.678])
def test_numbers_are_written_as_short_as_they_can_be(number: float) -> None:
    """The text is the same float32, and no shorter one is."""
    text = shortest(float(np.float32(number)))
    assert np.float32(text) == np.float32(number)
    assert len(text) <= len(str(np.float32(number)))


OTHERS = {
    "a SavedModel of TensorFlow": b"\x08\x01" + field(2, b"x" * 5000),
    "a Core ML model": b"\x08\x04" + field(2, b"x" * 20) + field(500, b"y" * 100),
    "a GraphDef of TensorFlow": field(1, b"x" * 50),
    "a model without a graph": b"\x08\x0a" + field(2, b"tests") + field(8, b"\x10\x14"),
    "a model whose graph is cut short": b"\x08\x0a" + field(7, b"x" * 50)[:-1],
    "a version that cannot be": b"\x08\x63" + field(7, b"x" * 50),
    "fields in another order": b"\x08\x0a" + field(6, b"x") + field(2, b"y") + field(7, b"x" * 50),
    "one byte": b"\x08",
    "two bytes": b"\x08\x0a",
}


@pytest.mark.parametrize("key", OTHERS)
def test_other_files_are_not_taken_for_models(key: str) -> None:
    """Without a magic number only the fields tell: those of other formats do not fit."""
    data = OTHERS[key]
    assert not sniff.is_onnx(data[:4096], len(data))


def test_a_long_text_before_the_graph() -> None:
    """A model whose description is longer than the first bytes that are looked at is still one."""
    data = b"\x08\x0a" + field(2, b"tests") + field(6, b"x" * 9000) + field(7, b"y" * 10)
    assert sniff.is_onnx(data[:4096], len(data))


def test_describing_imports_nothing_heavy(tmp_path: Path) -> None:
    """Neither NumPy nor onnx is needed to look at a model."""
    written(tmp_path, model(TestNames.W))
    script = "import sys, paramtool; paramtool.read('model.onnx'); print({'numpy', 'onnx', 'h5py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_raw_data_is_a_range_of_the_file(tmp_path: Path) -> None:
    """A large tensor is never read to describe it: its storage is a place in the file."""
    checkpoint = only(tmp_path, TestNames.W)
    place = checkpoint.storages[0].backing
    assert isinstance(place, ByteRange)
    assert (tmp_path / "model.onnx").read_bytes()[place.start : place.stop] == np.arange(3.0).tobytes()


def test_a_product_without_an_output(tmp_path: Path) -> None:
    """No layer is made of it, and its weight is a tensor all the same."""
    weight = numpy_helper.from_array(np.ones((2, 3), "f4"), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], [])], "g", [x], [], [weight])
    onnx.save(helper.make_model(graph), tmp_path / "x.onnx")
    assert list(paramtool.read(tmp_path / "x.onnx").views()) == ["w"]


PRODUCT, CONVOLUTION = ("Gemm", ["x", "w"], ["a"], {}), ("Conv", ["x", "c"], ["a"], {})
ODD = {
    "one axis": (PRODUCT, ("Transpose", ["a"], ["b"], {"perm": [1, 0]}), ("Conv", ["b", "c"], ["y"], {})),
    "no order": (CONVOLUTION, ("Transpose", ["a"], ["b"], {"perm": [9, 1, 2, -9]}), ("Gemm", ["b", "w"], ["y"], {})),
    "no image": (PRODUCT, ("Reshape", ["a", "s"], ["b"], {}), ("LSTM", ["b", "r", "r"], ["y"], {"hidden_size": 2})),
}


@pytest.mark.parametrize("key", ODD)
def test_axes_that_fit_no_image(key: str, tmp_path: Path) -> None:
    """What nodes do to the axes of a value need not fit what it is: the tensors are read all the same."""
    shapes = {"w": (4, 4), "c": (2, 4, 3, 3), "r": (1, 8, 4), "s": (3,)}
    held = [
        numpy_helper.from_array(np.ones(shape, "i8" if name == "s" else "f4"), name) for name, shape in shapes.items()
    ]
    nodes = [helper.make_node(kind, inputs, outputs, **more) for kind, inputs, outputs, more in ODD[key]]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [], held)), tmp_path / "x.onnx")
    assert list(paramtool.read(tmp_path / "x.onnx").views()) == [*shapes]
