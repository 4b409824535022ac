"""HDF5 as Keras writes it: order, names, storages of every kind, and recurrent layers.  JLD2 at the end."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

import paramtool
from paramtool import layouts
from paramtool.commands import dedup as dedup_command
from paramtool.commands import load as load_command
from paramtool.commands import relayout as relayout_command
from paramtool.commands import verify as verify_command
from paramtool.errors import Defects, FormatError, LayoutError
from paramtool.formats.hdf5 import _worker
from paramtool.layouts import spec as specs
from paramtool.layouts.layout import stored
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Unreadable
from paramtool.model.storage import ByteRange, Encoded, Inline
from tests.contracts.makers_hdf5 import JULIA
from tests.laws.sharing import described, raw

Arrays = Mapping[str, np.ndarray]
HARD = "gate_activation=hard_sigmoid(0.2,0.5)"
FORWARD = "backward=no"


def h5(path: Path, arrays: Arrays, attributes: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> Path:
    """An HDF5 file of datasets, and attributes of groups by their paths."""
    with h5py.File(path, "w", **options) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
        for group, pairs in (attributes or {}).items():
            for key, value in pairs.items():
                file.require_group(group or "/").attrs[key] = value
    return path


def zeros(*names: str) -> dict[str, np.ndarray]:
    """A different little array under each name."""
    return {name: np.full(2, k, "f4") for k, name in enumerate(names)}


def keras_zip(path: Path, weights: bytes, **texts: object) -> Path:
    """A `.keras` archive; texts by the names of their members, without `.json`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in texts.items():
            archive.writestr(f"{name}.json", json.dumps(value))
        archive.writestr("model.weights.h5", weights)
    return path


class TestOrder:
    """The order of names, which HDF5 itself does not keep."""

    def read(
        self, folder: Path, arrays: Arrays, attributes: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[str]:
        return list(paramtool.read(h5(folder / "m.h5", arrays, attributes)).entries)

    def test_attributes_say_it(self, tmp_path: Path) -> None:
        """Layers as layer_names lists them, weights as weight_names does, even across the groups of a nested model."""
        found = self.read(
            tmp_path,
            zeros("a/a/kernel:0", "a/a/bias:0", "z/m/y/gamma:0", "z/m/y/mean:0", "z/m/b/gamma:0", "z/m/b/mean:0"),
            {
                "": {"layer_names": [b"z", b"a"]},
                "z": {"weight_names": [b"m/y/gamma:0", b"m/b/gamma:0", b"m/y/mean:0", b"m/b/mean:0"]},
                "a": {"weight_names": [b"a/kernel:0", b"a/bias:0"]},
            },
        )
        assert found == [
            "z/m/y/gamma:0", "z/m/b/gamma:0", "z/m/y/mean:0", "z/m/b/mean:0", "a/a/kernel:0", "a/a/bias:0",
        ]  # fmt: skip

    def test_split_attributes(self, tmp_path: Path) -> None:
        """Lists that were too long for one attribute stand in several, of any length each."""
        names = [f"l{k}" for k in (7, 3, 5, 1, 4)]
        pieces = {"layer_names0": [b"l7", b"l3"], "layer_names1": [b"l5", b"l1"], "layer_names2": [b"l4"]}
        each = {name: {"weight_names0": [b"w:0"], "weight_names1": [b"b:0"]} for name in names}
        found = self.read(tmp_path, zeros(*(f"{n}/{w}:0" for n in names for w in "bw")), {"": pieces, **each})
        assert found == [f"{name}/{weight}:0" for name in names for weight in "wb"]

    def test_numbers_count(self, tmp_path: Path) -> None:
        """Without attributes 9 comes before 10, and forward before backward."""
        names = ["dense_2/vars/0", "dense_10/vars/0", *(f"optimizer/vars/{k}" for k in range(12))]
        both = [f"b/{direction}_layer/cell/vars/0" for direction in ("forward", "backward")]
        assert self.read(tmp_path, zeros(*names, *both)) == [*both, *names]

    def test_the_configuration_says_it(self, tmp_path: Path) -> None:
        """In Keras 3 groups are called after classes; the model's order is that of its layers."""
        layers = [{"class_name": name, "config": {}} for name in ("LSTM", "Dense", "BatchNormalization", "Dense")]
        nested = {"class_name": "Sequential", "config": {"layers": [{"class_name": "GRU"}, {"class_name": "Dense"}]}}
        groups = ["lstm/cell", "dense", "batch_normalization", "dense_1", "sequential/layers/gru/cell",
                  "sequential/layers/dense"]  # fmt: skip
        names = [f"layers/{group}/vars/{k}" for group in groups for k in range(2)]
        config = {"class_name": "Functional", "config": {"layers": [*layers, nested]}}
        held = h5(tmp_path / "w.h5", zeros(*names)).read_bytes()
        path = keras_zip(tmp_path / "m.keras", held, metadata={"keras_version": "3.0"}, config=config)
        assert list(paramtool.read(path).entries) == names

    @pytest.mark.parametrize("attributes", [{"": {"layer_names": [b"gone"]}}, {"a": {"weight_names": [b"w", b"gone"]}}])
    def test_what_is_listed_must_be_there(self, tmp_path: Path, attributes: dict[str, Any]) -> None:
        """A list that names what the file lacks is a defect, by name."""
        with pytest.raises(Defects, match=r"gone'.*not in the file"):
            self.read(tmp_path, zeros("a/w"), attributes)


ARRAYS: Arrays = {
    "float32": np.arange(12, dtype="f4").reshape(3, 4),
    "float16": np.arange(3, dtype="f2"),
    "int64": np.arange(3, dtype="i8"),
    "bool": np.array([True, False]),
    "complex64": np.array([1 + 2j, 3], "c8"),
    "scalar": np.float64(7),
    "empty": np.empty((0, 3), "f4"),
}


class TestStorages:
    """Where the bytes of a dataset are."""

    @pytest.mark.sample(3)
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize(
        "options",
        [{}, {"chunks": True}, {"compression": "gzip", "shuffle": True, "fletcher32": True}, {"compression": "lzf"}],
        ids=str,
    )
    @pytest.mark.parametrize("in_zip", [False, True])
    def test_every_kind(self, tmp_path: Path, order: str, options: dict[str, Any], in_zip: bool) -> None:
        """Little- and big-endian, contiguous, chunked and compressed, on its own and in a zip: h5py's elements."""
        arrays = {name: array.astype(array.dtype.newbyteorder(order)) for name, array in ARRAYS.items()}
        with h5py.File(tmp_path / "m.h5", "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, **(options if array.ndim and array.size else {}))
        path = tmp_path / "m.h5"
        if in_zip:
            path = keras_zip(tmp_path / "m.keras", path.read_bytes())
        found = paramtool.load_file(path)
        assert set(found) == set(arrays)
        for name, array in ARRAYS.items():
            assert (described(array), raw(array)) == (described(found[name]), raw(found[name])), name
        dedup_command.dedup(path, tmp_path / "o.safetensors")
        assert verify_command.verify(tmp_path / "o.safetensors", path).differences == ()

    def test_large_datasets_are_decoded_in_blocks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A chunked dataset goes through memory piece by piece, rows first, whatever its chunks are."""
        array = np.random.default_rng(0).normal(size=(50, 70)).astype("f4")
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file.create_dataset("w", data=array, chunks=(7, 9), compression="gzip")
        monkeypatch.setattr("paramtool.formats.hdf5.datasets.PART_NBYTES", 1024)
        assert raw(paramtool.load_file(tmp_path / "m.h5")["w"]) == raw(array)

    def test_backings(self, tmp_path: Path) -> None:
        """Contiguous is a range, big-endian one to be turned round, compact a few bytes, chunked a step of its own."""
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file["a"] = np.arange(3, dtype="f4")
            file["b"] = np.arange(3, dtype=">f4")
            file.create_dataset("c", data=np.arange(3, dtype="f4"), chunks=(2,))
            compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            compact.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((3,))
            made = h5py.h5d.create(file.id, b"d", h5py.h5t.IEEE_F32BE, space, compact)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(3, dtype="f4"))
        found = [storage.backing for storage in paramtool.read(tmp_path / "m.h5").storages.values()]
        assert [type(backing) for backing in found] == [ByteRange, Encoded, Encoded, Inline]
        assert [backing.steps for backing in found if isinstance(backing, Encoded)] == [("swap4",), ("hdf5:c",)]
        assert paramtool.load_file(tmp_path / "m.h5")["d"].tolist() == [0, 1, 2]

    def test_hard_links_are_one_memory(self, tmp_path: Path) -> None:
        """Two links to a dataset, or to a group, are names of one storage; equal bytes elsewhere are not."""
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file["a/w"], file["c/w"] = np.arange(3.0), np.arange(3.0)
            file["a/again"], file["b"] = file["a/w"], file["a"]
        graph = alias.build(paramtool.read(tmp_path / "m.h5"))
        assert {name: member.alias_set for name, member in graph.names.items()} == {
            "a/again": "a/again", "a/w": "a/again", "b/again": "a/again", "b/w": "a/again", "c/w": "c/w",
        }  # fmt: skip
        assert {member.evidence for member in graph.names.values()} == {"storage"}

    def test_bfloat16(self, tmp_path: Path) -> None:
        """HDF5 has no such type: Keras writes two bytes and says so beside them; without a word they are unknown."""
        with h5py.File(tmp_path / "m.h5", "w") as file:
            for name in ("said", "silent"):
                file[name] = np.array([1.5, -2], ml_dtypes.bfloat16)
            file["said"].attrs["dtype"] = "bfloat16"
        found = paramtool.read(tmp_path / "m.h5").entries
        assert found["said"].value.dtype.name == "bfloat16"  # type: ignore[union-attr]
        assert isinstance(found["silent"].value, Unreadable)

    def test_types_that_are_no_tensors(self, tmp_path: Path) -> None:
        """Texts are left out and noted; structs and data that were never written are listed as such."""
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file["text"] = ["a", "b"]
            file["struct"] = np.zeros(2, [("x", "f4"), ("y", "i4")])
            file.create_dataset("never", (3,), "f4")
            file["null"] = h5py.Empty("f4")
        checkpoint = paramtool.read(tmp_path / "m.h5")
        assert {name: type(entry.value) for name, entry in checkpoint.entries.items()} == dict.fromkeys(
            ("never", "null", "struct"), Unreadable
        )
        assert checkpoint.left_out == ("'text' holds strings and was left out",)

    def test_numbers_with_odd_bits(self, tmp_path: Path) -> None:
        """A float whose bits are arranged in another way than NumPy's is not taken for one."""
        with h5py.File(tmp_path / "m.h5", "w") as file:
            odd = h5py.h5t.IEEE_F32LE.copy()
            odd.set_fields(31, 22, 9, 0, 22)
            odd.set_ebias(200)
            h5py.h5d.create(file.id, b"w", odd, h5py.h5s.create_simple((3,))).write(
                h5py.h5s.ALL, h5py.h5s.ALL, np.ones(3, "f4")
            )
        assert isinstance(paramtool.read(tmp_path / "m.h5").entries["w"].value, Unreadable)


class TestFiles:
    """A file as a whole."""

    def test_a_whole_model_has_sections(self, tmp_path: Path) -> None:
        """Weights and an optimizer's state are sections with roles, which a dedup keeps."""
        names = ["model_weights/d/d/kernel:0", "optimizer_weights/Adam/d/kernel/m:0", "optimizer_weights/Adam/iter:0"]
        path = h5(tmp_path / "m.h5", {name: np.zeros(1000, "f4") for name in names})
        dedup_command.dedup(path, tmp_path / "o.safetensors")
        dedup_command.dedup(tmp_path / "o.safetensors", tmp_path / "p.safetensors")
        assert (tmp_path / "o.safetensors").read_bytes() == (tmp_path / "p.safetensors").read_bytes()
        for file in ("m.h5", "o.safetensors"):
            assert {n: e.role for n, e in paramtool.read(tmp_path / file).entries.items()} == dict(
                zip(names, ("model", "optimizer", "optimizer"), strict=True)
            )
        assert list(paramtool.load_file(path, only="model_weights")) == ["d/d/kernel:0"]

    def test_texts_are_kept(self, tmp_path: Path) -> None:
        """Version, backend and configurations are the file's own texts, as text or as bytes."""
        texts = {"keras_version": b"2.2.4", "backend": "tensorflow", "model_config": b"{}", "other": "x"}
        checkpoint = paramtool.read(h5(tmp_path / "m.h5", zeros("w"), {"": texts}))
        kept = {"keras_version": "2.2.4", "backend": "tensorflow", "model_config": "{}"}
        assert (checkpoint.metadata, checkpoint.producer, checkpoint.format) == (kept, "keras 2.2.4", "keras hdf5")

    def test_other_hdf5_files_are_read_just_so(self, tmp_path: Path) -> None:
        """Nothing in it needs to be Keras'."""
        assert paramtool.read(h5(tmp_path / "m.h5", zeros("a/b"))).format == "hdf5"

    @pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1, "a": 2}'])
    def test_a_configuration_that_is_none(self, tmp_path: Path, text: str) -> None:
        """Weights do not need it: it is noted where it is no JSON, and otherwise says nothing."""
        checkpoint = paramtool.read(h5(tmp_path / "m.h5", zeros("w"), {"": {"model_config": text}}))
        assert list(checkpoint.entries) == ["w"]
        assert len(checkpoint.notes) == (text != "[1]")

    def test_without_h5py(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is missing is named with the command that installs it."""
        path = h5(tmp_path / "m.h5", zeros("w"))
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(FormatError, match="h5py") as caught:
            paramtool.read(path)
        assert "paramtool[keras]" in caught.value.hint


# --- recurrent layers -------------------------------------------------------------------------------------------------

GATES = {"LSTM": 4, "CuDNNLSTM": 4, "GRU": 3, "CuDNNGRU": 3, "SimpleRNN": 1}


def weights(class_name: str, bias: Sequence[int] | None = None) -> list[np.ndarray]:
    """Kernel, recurrent kernel and bias of a layer with 3 inputs and 2 units; `bias` is its shape."""
    wide = 2 * GATES[class_name]
    shapes = [(3, wide), (2, wide), *([tuple(bias)] if bias else [])]
    return [np.full(shape, k, "f4") for k, shape in enumerate(shapes)]


def layer_file(folder: Path, home: str, held: list[np.ndarray], version: str = "", layer: object = None) -> Checkpoint:
    """A file with one recurrent layer under `home`, `vars` or named, with a configuration or without."""
    names = (f"{home}{k}" for k in range(3)) if home.endswith("vars/") else (
        f"{home}{part}:0" for part in ("kernel", "recurrent_kernel", "bias"))  # fmt: skip
    texts = {"keras_version": version} if version else {}
    if layer is not None:
        texts["model_config"] = json.dumps({"class_name": "Sequential", "config": {"layers": [layer]}})
    return paramtool.read(h5(folder / "m.h5", dict(zip(names, held, strict=False)), {"": texts}))


def layer(class_name: str, **config: Any) -> dict[str, Any]:
    """A layer called `rec`, as a configuration has it."""
    return {"class_name": class_name, "config": {"name": "rec", "units": 2, **config}}


SHAPES = [
    ("LSTM", (8,), "keras", "lstm input=3 hidden=2"),
    ("LSTM", None, "keras", "lstm input=3 hidden=2 bias=no"),
    ("LSTM", (16,), "keras.cudnn", "lstm input=3 hidden=2"),
    ("GRU", (6,), "keras", "gru input=3 hidden=2 reset=before"),
    ("GRU", (2, 6), "keras", "gru input=3 hidden=2 reset=after"),
    ("GRU", None, "keras", "gru input=3 hidden=2 bias=no"),
    ("GRU", (12,), "keras.cudnn", "gru input=3 hidden=2 reset=after"),
    ("SimpleRNN", (2,), "keras", "rnn input=3 hidden=2"),
]
CONFIGS: list[tuple[str, dict[str, Any], Sequence[int] | None, str, str]] = [
    ("LSTM", {"activation": "tanh", "recurrent_activation": "sigmoid"}, (8,), "3.1",
     "lstm input=3 hidden=2 activation=tanh gate_activation=sigmoid backward=no"),
    ("LSTM", {"recurrent_activation": "hard_sigmoid"}, (8,), "2.1.2",
     "lstm input=3 hidden=2 activation=tanh gate_activation=hard_sigmoid(0.2,0.5) backward=no"),
    ("LSTM", {"recurrent_activation": "hard_sigmoid"}, (8,), "3.1",
     "lstm input=3 hidden=2 activation=tanh gate_activation=hard_sigmoid(0.16666667,0.5) backward=no"),
    ("LSTM", {"recurrent_activation": "hard_sigmoid"}, (8,), "",
     "lstm input=3 hidden=2 activation=tanh gate_activation=hard_sigmoid backward=no"),
    ("LSTM", {"inner_activation": "hard_sigmoid", "output_dim": 2}, (8,), "1.2.2",
     "lstm input=3 hidden=2 activation=tanh gate_activation=hard_sigmoid(0.2,0.5) backward=no"),
    ("LSTM", {"activation": "relu", "go_backwards": True}, (8,), "3.1",
     "lstm input=3 hidden=2 activation=relu backward"),
    ("GRU", {"reset_after": True}, None, "2.4", "gru input=3 hidden=2 bias=no reset=after activation=tanh backward=no"),
    ("GRU", {"reset_after": False}, None, "2.4",
     "gru input=3 hidden=2 bias=no reset=before activation=tanh backward=no"),
    ("GRU", {}, None, "2.0.8", "gru input=3 hidden=2 bias=no reset=before activation=tanh backward=no"),
    ("GRU", {"reset_after": True}, (2, 6), "2.4", "gru input=3 hidden=2 reset=after activation=tanh backward=no"),
    ("CuDNNGRU", {}, (12,), "2.2", "gru input=3 hidden=2 reset=after backward=no"),
    ("CuDNNLSTM", {"go_backwards": True}, (16,), "2.2", "lstm input=3 hidden=2 backward"),
    ("SimpleRNN", {"activation": "tanh"}, (2,), "2.4", "rnn input=3 hidden=2 activation=tanh backward=no"),
    ("SimpleRNN", {"activation": "relu"}, (2,), "2.4", "rnn input=3 hidden=2 activation=relu backward=no"),
    ("SimpleRNN", {"activation": None}, (2,), "2.4", "rnn input=3 hidden=2 activation=linear backward=no"),
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    (layer("GRU"), "is a GRU by its configuration, and lstm by its shapes"),
    (layer("LSTM", units=5), "units=5"),
    (layer("LSTM", use_bias=False), "use_bias=False by its configuration, and a bias"),
    (layer("LSTM", activation={"class_name": "function", "config": "mine"}), "custom activation"),
    (layer("LSTM", recurrent_activation="pkg>mine"), "custom activation"),
    (
        {"class_name": "Bidirectional", "config": {"name": "rec", "layer": layer("LSTM")}},
        "is a Bidirectional by its configuration, and has one direction by its names",
    ),
    (layer("MyLSTM"), "is a MyLSTM by its configuration, which is not a recurrent layer or cell of Keras"),
    ({**layer("LSTM"), "module": "mine.layers"}, "is a mine.layers.LSTM"),
    ({**layer("LSTM"), "registered_name": "mine>LSTM"}, "is a mine>LSTM"),
    ({"class_name": "WeightDrop", "config": {"name": "drop", "layer": layer("LSTM")}}, "is wrapped in a WeightDrop"),
    (layer("RNN", cell={"class_name": "PeepholeLSTMCell", "config": {"units": 2}}), "is a PeepholeLSTMCell"),
    (layer("RNN", cell={"class_name": "LSTMCell", "config": {"units": 4}}), "units=4"),
]


class TestRecurrentLayers:
    """What a file says of its recurrent layers, by shapes and by configuration."""

    @pytest.mark.parametrize(("class_name", "bias", "layout", "expected"), SHAPES)
    @pytest.mark.parametrize("home", ["rec/rec/", "rec/rec/lstm_cell_3/", "layers/rec/cell/vars/"])
    def test_shapes_prove(
        self, tmp_path: Path, home: str, class_name: str, bias: Sequence[int] | None, layout: str, expected: str
    ) -> None:
        """Kind, sizes, biases and, by the bias, on which side of the reset gate a GRU multiplies."""
        (found,) = layer_file(tmp_path, home, weights(class_name, bias)).modules
        assert found.spec == expected
        assert (found.layout, found.at, found.source) == (
            ("keras.vars", "layers/rec", "names and shapes") if "vars" in home else (layout, "rec/rec", found.source)
        )
        own = ["cell/vars/0", "cell/vars/1"] if "vars" in home else ["kernel", "recurrent_kernel"]
        assert list(found.tensors)[:2] == own

    @pytest.mark.parametrize(("class_name", "config", "bias", "version", "expected"), CONFIGS)
    @pytest.mark.parametrize("is_vars", [False, True])
    def test_the_configuration_says(
        self,
        tmp_path: Path,
        is_vars: bool,
        class_name: str,
        config: dict[str, Any],
        bias: Any,
        version: str,
        expected: str,
    ) -> None:
        """Activations by version, the direction in time, and what no shape shows."""
        if is_vars and class_name.startswith("CuDNN"):
            pytest.skip("Keras 3 has no such layer")
        home = f"layers/{class_name.lower().replace('simple', 'simple_')}/cell/vars/" if is_vars else "rec/rec/"
        checkpoint = layer_file(tmp_path, home, weights(class_name, bias), version, layer(class_name, **config))
        (found,) = checkpoint.modules
        assert (found.spec, checkpoint.notes) == (expected, ())
        assert specs.parse(found.spec)["hidden"] == 2
        assert found.source == f"model_config: {class_name} 'rec'"

    @pytest.mark.parametrize(("said", "says"), REFUSED)
    def test_what_contradicts_or_has_no_word_is_noted(self, tmp_path: Path, said: dict[str, Any], says: str) -> None:
        """A network that would be described wrongly is refused, by what the file says and by its names."""
        checkpoint = layer_file(tmp_path, "rec/rec/", weights("LSTM", (8,)), "3.1", said)
        (module,) = checkpoint.modules
        assert (module.spec, says in module.refused) == ("", True)
        assert len([note for note in checkpoint.notes if says in note]) == 1
        dedup_command.dedup(tmp_path / "m.h5", tmp_path / "d.safetensors")
        for path, source in product(("m.h5", "d.safetensors"), (None, "keras")):
            with pytest.raises(LayoutError, match=re.escape(says)):
                relayout_command.convert(tmp_path / path, tmp_path / "o.safetensors", source=source, target="torch")

    @pytest.mark.parametrize(
        ("version", "open_"),
        [
            ("2.1.2", [HARD]), ("2.2.5", [HARD]), ("2.1.6-tf", [HARD]), ("2.2.4-tf", ["gate_activation=sigmoid", HARD]),
            ("2.3.1", []), ("2.3.0-tf", []), ("3.1", []), ("", []),
        ],
    )  # fmt: skip
    def test_silence_is_noted(self, tmp_path: Path, version: str, open_: list[str]) -> None:
        """Without a configuration nobody says the activations; old versions had another usual one than today's.

        TensorFlow 1 and 2.0 both write 2.2.4-tf: both of their usual ones are named, and neither is recommended.
        """
        checkpoint = layer_file(tmp_path, "rec/rec/", weights("LSTM", (8,)), version)
        (note,), (module,) = checkpoint.notes, checkpoint.modules
        assert "'rec/rec'" in note
        assert ("hard_sigmoid" in note) == bool(open_)
        assert list(module.unsure) == open_
        dedup_command.dedup(tmp_path / "m.h5", tmp_path / "d.safetensors")
        for path in ("m.h5", "d.safetensors"):
            if not open_:
                relayout_command.convert(
                    tmp_path / path, tmp_path / "o.safetensors", target="onnx", spec=FORWARD, force=True
                )
                continue
            with pytest.raises(LayoutError, match="the file does not say its gate_activation") as error:
                relayout_command.convert(tmp_path / path, tmp_path / "o.safetensors", target="onnx", spec=FORWARD)
            assert all(f'--spec "{word}"' in error.value.hint for word in open_)
            assert ("if the network uses the default" in error.value.hint) == (len(open_) == 1)

    @pytest.mark.parametrize(
        ("homes", "at", "own"),
        [
            (("bi/bi/forward_lstm_1/", "bi/bi/backward_lstm_1/"), "bi/bi", "kernel"),
            (("bi/bi/forward_a/lstm_cell/", "bi/bi/backward_a/lstm_cell_1/"), "bi/bi", "kernel"),
            (("l/bi/forward_layer/cell/vars/", "l/bi/backward_layer/cell/vars/"), "l/bi", "cell/vars/0"),
        ],
    )
    def test_bidirectional(self, tmp_path: Path, homes: tuple[str, str], at: str, own: str) -> None:
        """Two groups side by side are the directions of one layer, forward first."""
        arrays = {}
        for home in homes:
            parts = range(3) if home.endswith("vars/") else ("kernel:0", "recurrent_kernel:0", "bias:0")
            arrays |= {f"{home}{part}": held for part, held in zip(parts, weights("LSTM", (8,)), strict=True)}
        (found,) = paramtool.read(h5(tmp_path / "m.h5", arrays)).modules
        assert (found.at, found.spec) == (at, "lstm input=3 hidden=2 bidirectional")
        assert list(found.tensors)[::3] == [f"forward_layer/{own}", f"backward_layer/{own}"]
        assert found.tensors[f"backward_layer/{own}"].startswith(homes[1])

    def test_one_that_is_only_called_forward(self, tmp_path: Path) -> None:
        """A layer of one direction may have any name."""
        (found,) = layer_file(tmp_path, "forward_x/forward_x/", weights("GRU", (6,))).modules
        assert (found.at, found.spec) == ("forward_x/forward_x", "gru input=3 hidden=2 reset=before")

    @pytest.mark.parametrize(
        "shapes", [((3, 8), (2, 8), (9,)), ((3, 10), (2, 10)), ((3, 3, 8), (2, 8)), ((3, 8), (0, 8))]
    )
    def test_other_layers_are_left_alone(self, tmp_path: Path, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Names like those of a recurrent layer, with other shapes, are some other layer."""
        held = [np.zeros(shape, "f4") for shape in shapes]
        assert layer_file(tmp_path, "rec/rec/", held).modules == ()

    def test_optimizer_state_is_no_layer(self, tmp_path: Path) -> None:
        """Moments are called after what they belong to."""
        assert layer_file(tmp_path, "optimizer_weights/rec/", weights("LSTM", (8,))).modules == ()

    def test_layers_of_one_name(self, tmp_path: Path) -> None:
        """Where a configuration has two layers of a name, none of them is taken."""
        checkpoint = layer_file(tmp_path, "rec/rec/", weights("LSTM", (8,)), "3.1")
        assert len(checkpoint.modules) == 1
        twice = {"class_name": "Sequential", "config": {"name": "in", "layers": [layer("LSTM", activation="relu")] * 2}}
        (found,) = layer_file(tmp_path, "rec/rec/", weights("LSTM", (8,)), "3.1", twice).modules
        assert (found.spec, found.source) == ("lstm input=3 hidden=2", "names and shapes")


class TestKeras1:
    """Names of Keras 1; tf_keras joins the arrays of its gates just so (`preprocess_weights_for_loading`)."""

    FACTS = "gate_activation=sigmoid"

    @pytest.mark.parametrize("sides", [("",), ("forward_", "backward_")])
    @pytest.mark.parametrize(("kind", "order", "joined"), [("lstm", "icfo", "ifco"), ("gru", "zrh", "zrh")])
    def test_gates_side_by_side(
        self, tmp_path: Path, kind: str, order: str, joined: str, sides: tuple[str, ...]
    ) -> None:
        """An array a gate is one network, and in today's layout the arrays stand beside each other."""
        rng = np.random.default_rng(3)
        shapes = {"W": (3, 4), "U": (4, 4), "b": (4,)}
        arrays = {
            f"enc/{side}rnn_{part}_{gate}:0": rng.normal(size=shape).astype("f4")
            for side, gate, (part, shape) in product(sides, order, shapes.items())
        }
        path = h5(tmp_path / "k.h5", arrays, {"enc": {"weight_names": [name[4:].encode() for name in arrays]}})
        said = f"{self.FACTS} {'merge=concat' if sides[1:] else FORWARD}"
        report = relayout_command.convert(path, tmp_path / "o.npz", target="keras", spec=said)
        spec = report.converted[0].spec
        assert (spec.kind, spec.reset, spec.bidirectional) == (kind, "before" if kind == "gru" else "", sides[1:] != ())
        made = np.load(tmp_path / "o.npz")
        labels = ("forward_layer/", "backward_layer/") if sides[1:] else ("",)
        for side, label in zip(sides, labels, strict=True):
            for part, own in zip("WUb", ("kernel", "recurrent_kernel", "bias"), strict=True):
                wanted = np.concatenate([arrays[f"enc/{side}rnn_{part}_{gate}:0"] for gate in joined], -1)
                assert np.array_equal(made[f"{report.converted[0].source.at}/{label}{own}"], wanted)

    def test_facts_that_must_be_said(self, tmp_path: Path) -> None:
        """One refusal names them all: Keras 1 had hard sigmoids, and whoever loads its files today has sigmoids."""
        arrays = {f"enc/enc_{p}_{g}:0": np.ones((2,) * (1 + (p != "b")), "f4") for g in "icfo" for p in "WUb"}
        with pytest.raises(LayoutError, match="its direction in time and the activation of its gates") as error:
            relayout_command.convert(h5(tmp_path / "k.h5", arrays), tmp_path / "o.npz", target="torch")
        assert HARD in error.value.hint and FORWARD in error.value.hint

    @pytest.mark.parametrize(("gates", "found"), [(4, ["lstm"]), (3, ["gru"]), (1, [])])
    def test_all_gates_in_one_array(self, tmp_path: Path, gates: int, found: list[str]) -> None:
        """`consume_less="gpu"`; one gate may as well be a layer of attention, and is none without a configuration."""
        shapes = {"W": (3, 4 * gates), "U": (4, 4 * gates), "b": (4 * gates,)}
        path = h5(tmp_path / "k.h5", {f"enc/enc_{part}:0": np.ones(shape, "f4") for part, shape in shapes.items()})
        modules = paramtool.read(path).modules
        assert [module.spec.split()[0] for module in modules] == found
        assert all(module.layout == "keras" and len(module.unsure) == 2 for module in modules)

    def test_a_layer_of_another_form_is_none(self, tmp_path: Path) -> None:
        """ConvLSTM2D has the same twelve names; so may have arrays of different widths."""
        arrays = {f"enc/enc_{p}_{g}:0": np.ones((3, 3, 2, 2) if p != "b" else 2, "f4") for g in "icfo" for p in "WUb"}
        assert not paramtool.read(h5(tmp_path / "c.h5", arrays)).modules
        arrays |= {f"enc/enc_W_{g}:0": np.ones((3, k), "f4") for k, g in enumerate("icfo", 1)}
        assert not paramtool.read(h5(tmp_path / "w.h5", arrays)).modules


@pytest.mark.parametrize("merge", ["concat", "sum"])
def test_a_merge_mode_inside_a_stack(tmp_path: Path, merge: str) -> None:
    """The second layer is given what was made of the outputs of the first: that is no function of torch's."""
    layout, spec = layouts.find("keras"), specs.Spec("lstm", 3, 2, 2, True, merge=merge)
    named = {f"enc/{t.name}": np.ones(t.shape, "f4") for t in stored(layout, layout.form(spec, {}), spec, {})}
    assert named["enc/layer1/forward_layer/kernel"].shape == ((4 if merge == "concat" else 2), 8)
    path, output = h5(tmp_path / "m.h5", named), tmp_path / "o.safetensors"
    words = ("lstm", "merge=sum" if merge == "concat" else "merge=concat")
    with pytest.raises(LayoutError, match="expected"):
        relayout_command.convert(path, output, source="keras", target="keras.vars", at=("enc",), spec=" ".join(words))
    convert = partial(relayout_command.convert, path, output, source="keras", at=("enc",), spec=f"lstm merge={merge}")
    if merge == "concat":
        assert convert(target="torch").converted[0].spec.layers == 2
        return
    with pytest.raises(LayoutError, match="layout torch cannot hold it: it has no merge=sum") as error:
        convert(target="torch")
    assert error.value.hint == "layouts that hold it: keras, keras.vars, keras.cudnn, keras.gates"
    assert convert(target="keras.vars").converted[0].spec == spec


class TestJulia:
    """JLD2."""

    def write(self, folder: Path, **objects: Any) -> Path:
        """A file with JLD2's line before it."""
        with h5py.File(folder / "m.jld2", "w", userblock_size=512) as file:
            for name, value in objects.items():
                file[name] = value
        with (folder / "m.jld2").open("r+b") as raw_file:
            raw_file.write(JULIA)
        return folder / "m.jld2"

    def test_arrays_have_julias_shape(self, tmp_path: Path) -> None:
        """Sizes stand the other way round in the file; the first axis is the fastest."""
        array = np.arange(24, dtype="f4").reshape(2, 3, 4)
        path = self.write(tmp_path, w=array)
        view = paramtool.read(path).entries["w"].value
        assert (view.shape, view.strides) == ((4, 3, 2), (1, 4, 12))  # type: ignore[union-attr]
        assert np.array_equal(paramtool.load_file(path)["w"], array.T)

    def test_structs_rows_and_what_is_no_array(self, tmp_path: Path) -> None:
        """Fields are called after their struct, elements of a row are counted from 1, other values are noted."""
        with h5py.File(tmp_path / "m.jld2", "w", userblock_size=512) as file:
            for k in range(2):
                file[f"_types/{k}"] = np.full(3, k, "f4")
            row = file.create_dataset("_types/row", (2,), h5py.ref_dtype)
            row[:] = [file[f"_types/{k}"].ref for k in range(2)]
            inner = np.dtype([("b", h5py.ref_dtype), ("n", "i8")])
            struct = np.zeros((), [("layers", h5py.ref_dtype), ("in", inner), ("none", h5py.ref_dtype)])
            struct["layers"], struct["in"]["b"] = row.ref, file["_types/1"].ref
            struct["none"] = h5py.Reference()
            file.create_dataset("m", data=struct)
            file["text"] = "hello"
        with (tmp_path / "m.jld2").open("r+b") as raw_file:
            raw_file.write(JULIA)
        checkpoint = paramtool.read(tmp_path / "m.jld2")
        assert list(checkpoint.entries) == ["m.layers.1", "m.layers.2", "m.in.b"]
        graph = alias.build(checkpoint)
        assert graph.names["m.in.b"].alias_set == "m.layers.2"
        assert checkpoint.left_out == ("2 values left out, which are not arrays of numbers: m.in.n, text",)
        assert checkpoint.producer == "HDF5-based Julia Data Format, version 0.1.1"

    def test_a_struct_that_holds_itself(self, tmp_path: Path) -> None:
        """Julia's objects may; a list of names cannot."""
        with h5py.File(tmp_path / "m.jld2", "w", userblock_size=512) as file:
            held = file.create_dataset("m", (), np.dtype([("self", h5py.ref_dtype)]))
            struct = np.zeros((), held.dtype)
            struct["self"] = held.ref
            held[()] = struct
        with (tmp_path / "m.jld2").open("r+b") as raw_file:
            raw_file.write(JULIA)
        with pytest.raises(FormatError, match="contains itself"):
            paramtool.read(tmp_path / "m.jld2")


def test_a_part_of_a_file_is_a_file(tmp_path: Path) -> None:
    """h5py sees a range of an open file as a file of its own, and nothing behind it."""
    (tmp_path / "f").write_bytes(bytes(range(100)))
    with (tmp_path / "f").open("rb") as file:
        part = _worker.FileRange(file, 10, 30)
        assert (part.seek(0, io.SEEK_END), part.seek(-5, io.SEEK_CUR), part.tell()) == (20, 15, 15)
        assert part.read(5) == bytes(range(25, 30))
        with pytest.raises(OSError, match="needs 1 bytes"):
            part.read(1)


def test_the_crc_of_the_member_with_the_weights_is_proved(tmp_path: Path) -> None:
    """A `.keras` is a zip: bytes of a tensor that were changed are damage."""
    source = Path(__file__).parents[2] / "fixtures" / "keras" / "layers3" / "layers3.keras"
    data = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as archive:
        member = archive.read("model.weights.h5")
    with h5py.File(io.BytesIO(member)) as file:
        places: list[int] = []
        file.visititems(lambda _, item: places.append(item.id.get_offset()) if isinstance(item, h5py.Dataset) else None)
    data[bytes(data).index(member) + min(filter(None, places))] ^= 1
    changed = tmp_path / "changed.keras"
    changed.write_bytes(data)
    with zipfile.ZipFile(changed) as archive:
        assert archive.testzip() == "model.weights.h5"
    for write in (True, False):
        with pytest.raises(FormatError, match="CRC"):
            dedup_command.dedup(changed, tmp_path / "out.safetensors") if write else list(
                load_command.load_file(changed)
            )
    assert not (tmp_path / "out.safetensors").exists()
