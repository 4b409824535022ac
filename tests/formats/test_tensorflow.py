"""TensorFlow bundles: what TensorFlow reads from its own files, laws of the containers, and files that lie."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.errors import FormatError, LayoutError, UnsafeError, UsageError
from paramtool.formats import sniff
from paramtool.formats.protobuf import Reader, Span
from paramtool.formats.tensorflow import _bundle, read
from paramtool.model.storage import Encoded
from tests.contracts import makers_tensorflow as tf
from tests.oracles.running import close, run_torch

FIXTURES = Path(__file__).parents[2] / "fixtures" / "tensorflow"
SAMPLE = "breizhn__DTLN__dtln_saved_model_variables"


def bits(value: object) -> np.ndarray:
    """An array as bits, so that types that NumPy lacks compare."""
    made = np.asarray(value)
    return made if made.dtype.isbuiltin == 1 else made.view(f"u{made.itemsize}")


# --- what TensorFlow reads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["tf1_cells", "tf2_shared", "keras_rnn"])
def test_values_are_those_that_tensorflow_reads(case: str) -> None:
    """Every tensor of `tf.train.load_checkpoint`, in every bit."""
    path = FIXTURES / case / (case if case == "keras_rnn" else f"{case}.index")
    found = paramtool.load_file(path)
    with np.load(FIXTURES / case / "values.npz") as expected:
        for name, value in expected.items():
            if name == "second/columns":
                joined = np.concatenate([found[f"{name}/part_0"], found[f"{name}/part_1"]], axis=1)
                np.testing.assert_array_equal(joined, value)
            else:
                np.testing.assert_array_equal(bits(found[name]), value)
        left = {name for name in found if name not in expected and not name.startswith("second/columns/part_")}
    shared = {n for group in json.loads((FIXTURES / case / "expected.json").read_text())["memories"] for n in group}
    assert left <= shared


def test_a_shared_variable_has_all_its_names() -> None:
    """They are one storage; the one that is called as the program called it owns it."""
    graph = paramtool.inspect(FIXTURES / "tf2_shared" / "tf2_shared").graph
    assert {name for name, one in graph.names.items() if one.owner == "scope/table"} == {
        "scope/table", "head", "decoder/embedding", "encoder/embedding", "decoder/encoder/embedding",
        "encoder/decoder/embedding",
    }  # fmt: skip


def test_roles_and_sections() -> None:
    """An optimizer's tensors are a section of TensorFlow 2, and known by their names in TensorFlow 1."""
    two = paramtool.read(FIXTURES / "tf2_shared" / "tf2_shared.index")
    assert [(one.name, one.role) for one in two.sections] == [("optimizer", "optimizer")]
    assert {n for n, e in two.entries.items() if e.role == "optimizer"} == {
        f"optimizer/{end}" for end in (
            "iter", "beta_1", "beta_2", "decay", "learning_rate", "m/bias", "v/bias", "m/scope/table", "v/scope/table")
    }  # fmt: skip
    assert two.entries["save_counter"].role == "other"
    one = paramtool.read(FIXTURES / "tf1_cells" / "tf1_cells.index")
    roles = {name: entry.role for name, entry in one.entries.items()}
    cell = "encoder/rnn/lstm_cell/kernel"
    assert (roles[cell], roles[f"{cell}/Adam"], roles[f"{cell}/Adam_1"]) == ("model", "optimizer", "optimizer")
    assert roles["decoder/rnn/gru_cell/gates/bias/ExponentialMovingAverage"] == "ema"
    assert {roles["beta1_power"], roles["beta2_power"]} == {"optimizer"} and roles["global_step"] == "other"


def test_what_is_left_out_or_in_parts_is_said() -> None:
    """Strings, and slices that are not rows."""
    found = paramtool.read(FIXTURES / "tf2_shared" / "tf2_shared.index")
    assert found.left_out == ("'text' holds strings and was left out",)
    (note,) = paramtool.read(FIXTURES / "tf1_cells" / "tf1_cells.index").notes
    assert note.startswith("'second/columns' [2, 5] was saved in 2 slices")


# --- networks -------------------------------------------------------------------------------------------------------


def test_a_saved_model_says_what_its_layers_are() -> None:
    """Directions, merging and activations are in its configuration."""
    found = paramtool.read(FIXTURES / "keras_rnn" / "keras_rnn")
    assert {one.at: one.spec for one in found.modules} == {
        "enc": "lstm input=3 hidden=4 activation=tanh gate_activation=sigmoid backward=no",
        "both": "gru input=4 hidden=2 bidirectional reset=after activation=tanh gate_activation=sigmoid backward=no "
        "merge=sum",
        "back": "gru input=2 hidden=3 reset=before activation=tanh gate_activation=hard_sigmoid(0.2,0.5) backward",
    }
    assert found.producer.startswith("TensorFlow 2.")


@pytest.mark.parametrize("field", ["metadata", "model"])
def test_older_saved_models_have_it_in_their_graph(field: str, tmp_path: Path) -> None:
    """Up to TensorFlow 2.4 the JSON is in saved_model.pb; without any of it the directions are unknown."""
    place = tmp_path / "saved"
    shutil.copytree(FIXTURES / "keras_rnn" / "keras_rnn", place)
    texts = _texts(place / "keras_metadata.pb")
    (place / "keras_metadata.pb").unlink()
    if field == "metadata":
        objects = b"".join(tf.block(1, tf.block(4, tf.block(1, b"_tf_keras_layer") + tf.block(3, t))) for t in texts)
        graph = tf.block(1, tf.block(5, b"2.3.0")) + tf.block(7, objects)
        (place / "saved_model.pb").write_bytes(tf.number(1, 1) + tf.block(2, graph))
    found = paramtool.read(place)
    specs = {one.at: one.spec for one in found.modules}
    assert ("backward=no" in specs["enc"]) == (field == "metadata")
    assert found.producer.startswith("TensorFlow 2.3.0" if field == "metadata" else "TensorFlow 2.")


def _texts(path: Path) -> list[bytes]:
    """The JSON in keras_metadata.pb: field 5 of each of its objects."""
    data = path.read_bytes()
    reader = Reader(data, str(path))
    found = []
    for _, _, span in reader.fields(Span(0, len(data))):
        found += [data[at.start : at.stop] for number, _, at in reader.fields(span) if number == 5]
    return found


def test_layers_that_no_model_lists_describe_themselves(tmp_path: Path) -> None:
    """A model that is a class of the user's own has no list of layers; each layer has its own JSON."""
    place = tmp_path / "saved"
    shutil.copytree(FIXTURES / "keras_rnn" / "keras_rnn", place)
    texts = [text for text in _texts(place / "keras_metadata.pb") if b'"layers": [' not in text]
    (place / "keras_metadata.pb").write_bytes(
        b"".join(tf.block(1, tf.number(2, k + 1) + tf.block(5, t)) for k, t in enumerate(texts))
    )
    specs = {one.at: one.spec for one in paramtool.read(place).modules}
    assert specs == {one.at: one.spec for one in paramtool.read(FIXTURES / "keras_rnn" / "keras_rnn").modules}


def test_a_converted_lstm_computes_what_keras_computes(tmp_path: Path) -> None:
    """`enc` of the fixture, run by torch: the outputs that tf_keras wrote down."""
    report = relayout_command.convert(
        FIXTURES / "keras_rnn" / "keras_rnn",
        tmp_path / "o.safetensors",
        target="torch",
        at=("enc",),
        optimizer_state=["drop"],
    )
    (one,) = report.converted
    found = paramtool.load_file(tmp_path / "o.safetensors")
    with np.load(FIXTURES / "keras_rnn" / "outputs.npz") as known:
        x, y = known["x"], known["enc"]
    weights = {own: np.asarray(found[name]) for own, name in one.tensors.items()}
    state = np.zeros((1, len(x), 4), np.float32)
    made = run_torch("lstm", weights, x.transpose(1, 0, 2), state, state)[0]
    close(made.transpose(1, 0, 2), y)


def test_the_real_sample_converts(samples: Path, tmp_path: Path) -> None:
    """Two stacks of LSTMs; without the SavedModel's file nothing says their direction, which has to be given."""
    with pytest.raises(LayoutError, match="direction in time"):
        relayout_command.convert(samples / SAMPLE, tmp_path / "o.safetensors", target="torch")
    report = relayout_command.convert(samples / SAMPLE, tmp_path / "o.safetensors", target="torch", spec="backward=no")
    assert [one.source.at for one in report.converted] == ["lstm", "lstm_1", "lstm_2", "lstm_3"]
    assert len(paramtool.read(samples / SAMPLE).entries) == 28


# --- which bundle a path means --------------------------------------------------------------------------------------


def test_a_bundle_is_named_in_many_ways(tmp_path: Path) -> None:
    """The prefix, the index, a file of data, the state, the folder; all are one bundle."""
    value = {b"w": tf.tensor(np.arange(3, dtype="f4"))}
    tf.write(tmp_path / "ckpt-7", value, shards=2)
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{tmp_path}/ckpt-7"\n')
    paths = ["ckpt-7", "ckpt-7.index", "ckpt-7.data-00000-of-00002", "ckpt-7.data-00001-of-00002", "checkpoint", "."]
    assert {str(paramtool.read(tmp_path / path).files[0].path) for path in paths} == {str(tmp_path / "ckpt-7.index")}
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/ckpt-7"\n')
    for path in ("checkpoint", "."):
        with pytest.raises(UnsafeError, match=r"'/elsewhere/ckpt-7\.index', outside its own folder"):
            paramtool.read(tmp_path / path)


def test_several_bundles_of_a_folder(tmp_path: Path) -> None:
    """They are several sets, unless the state says which is the latest; the note says so."""
    for k in (1, 2):
        tf.write(tmp_path / f"ckpt-{k}", {b"w": tf.tensor(np.full(3, k, "f4"))})
    with pytest.raises(UsageError, match="holds 2 sets of weights that differ"):
        paramtool.read(tmp_path)
    assert paramtool.read(tmp_path, "ckpt-1.index").entries
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-1"\n')
    found = paramtool.read(tmp_path)
    assert found.files[0].path == str(tmp_path / "ckpt-2.index")
    assert found.notes == ("the file 'checkpoint' names it as the latest of 2 checkpoints; not read: 'ckpt-1'",)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-3"\n')
    with pytest.raises(UsageError):
        paramtool.read(tmp_path)


def test_a_missing_file_of_data_is_named(tmp_path: Path) -> None:
    """With the tensor that it holds."""
    index = tf.write(tmp_path / "m", {b"w": tf.tensor(np.zeros(3, "f4")), b"x": tf.tensor(np.ones(3, "f4"))}, shards=2)
    lost = tmp_path / "m.data-00001-of-00002"
    lost.unlink()
    with pytest.raises(FormatError, match=r"m\.data-00001-of-00002 is missing, which holds 'x'"):
        paramtool.read(index)


# --- laws -----------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=400).flatmap(lambda data: st.tuples(st.just(data), st.integers(1, 50))))
def test_snappy_decodes_what_the_library_encodes(made: tuple[bytes, int]) -> None:
    """Any bytes, repeated so that there are copies of every kind."""
    data = made[0] * made[1]
    assert _bundle.decoded(snappy.compress(data)) == data


@given(st.integers(0, 2**16).map(lambda n: bytes(k * k % 251 for k in range(n)) * 2))
def test_snappy_decodes_long_literals_and_far_copies(data: bytes) -> None:
    """Lengths of two and three bytes, offsets of more than a byte."""
    assert _bundle.decoded(snappy.compress(data)) == data


@given(st.binary(max_size=60))
def test_snappy_agrees_with_the_library_on_anything(data: bytes) -> None:
    """What one refuses, the other refuses, and what both take is the same."""
    try:
        expected = snappy.uncompress(data)
    except Exception:
        expected = None
    try:
        found = _bundle.decoded(data)
    except ValueError:
        found = None
    assert found == expected


@given(
    st.dictionaries(st.text("ab/.é", min_size=1, max_size=12), st.integers(0, 3), min_size=0, max_size=40),
    st.integers(1, 9), st.booleans(), st.integers(1, 3), st.booleans(),
)  # fmt: skip
def test_a_table_gives_back_every_row(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[str, int],
    per_block: int,
    packed: bool,
    shards: int,
    big: bool,
) -> None:
    """Names that share prefixes, any blocks, compressed or not, in several files, of either byte order."""
    folder = tmp_path_factory.mktemp("law")
    values = {name: np.arange(size, dtype="i2") + k for k, (name, size) in enumerate(sizes.items())}
    index = tf.write(
        folder / "m", {name.encode(): tf.tensor(value, big) for name, value in values.items()},
        shards=shards, per_block=per_block, squeeze=snappy.compress if packed else None, big=big,
    )  # fmt: skip
    assert sniff.is_tensorflow(index.read_bytes()[:4096], 0)
    found = paramtool.read(index)
    assert list(found.entries) == sorted(sizes, key=str.encode)
    loaded = paramtool.load_file(index)
    assert {name: np.asarray(loaded[name]).tolist() for name in loaded} == {n: v.tolist() for n, v in values.items()}
    shutil.rmtree(folder)


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(-1, 2**62)), max_size=4), st.text(max_size=5))
def test_keys_of_slices_keep_their_order(extents: list[tuple[int, int]], name: str) -> None:
    """The code is in the order of the numbers: larger starts give larger keys."""
    key = _bundle.slice_key(name, tuple(extents))
    if extents:
        (start, length), *rest = extents
        assert _bundle.slice_key(name, ((start + 1, length), *rest)) > key
    assert key[:1] == b"\0"


COMPLEX = {
    "complex64": np.complex64,
    "complex128": np.complex128,
    "float64": np.float64,
    "bool": np.bool_,
    "uint8": "u1",
}


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("big", [False, True])
def test_byte_orders(name: str, big: bool, tmp_path: Path) -> None:
    """Numbers of a big-endian machine are turned round, each part of a complex one for itself."""
    value = np.array([[0, 1], [2, 3]]).astype(COMPLEX[name])
    index = tf.write(tmp_path / "m", {b"w": tf.tensor(value, big)}, big=big)
    np.testing.assert_array_equal(paramtool.load_file(index)["w"], value)
    backing = paramtool.read(index).storages[0].backing
    assert isinstance(backing, Encoded) == (big and value.dtype.itemsize > 1)


def test_codes_of_every_type(tmp_path: Path) -> None:
    """Small and quantised integers take a byte each, and are integers; what no tensor can hold is left out."""
    held = {b"int4": tf.Tensor(29, (3,), b"abc"), b"q8": tf.Tensor(11, (2,), b"ab"), b"q16": tf.Tensor(15, (1,), b"ab"),
            b"r": tf.Tensor(20, (), b"any"), b"v": tf.Tensor(21, (), b""), b"f": tf.Tensor(27, (1,), b"a")}  # fmt: skip
    found = paramtool.read(tf.write(tmp_path / "m", held))
    assert {n: e.value.dtype.name for n, e in found.entries.items()} == {"int4": "int4", "q8": "int8", "q16": "int16"}
    assert found.said() == (
        "'f' holds float8_e4m3b11fnuz numbers and was left out",
        "'r' holds a resource and was left out",
        "'v' holds a variant and was left out",
        "'q16', 'q8': quantised integers, whose scale a bundle does not have",
    )
    with pytest.raises(FormatError, match="'w' has the unknown element type 99"):
        paramtool.read(tf.write(tmp_path / "n", {b"w": tf.Tensor(99, (), b"")}))


# --- slices ---------------------------------------------------------------------------------------------------------


def sliced(
    folder: Path, pieces: list[tuple[tuple[tuple[int, int], ...], tuple[int, ...]]], shape: tuple[int, ...], **kw: Any
) -> Path:
    """A tensor `v` of float32 in slices: [(extents, shape of the slice)]."""
    rows: dict[bytes, tf.Tensor] = {b"v": tf.Tensor(1, shape, b"", tuple(one for one, _ in pieces))}
    for k, (one, size) in enumerate(pieces):
        rows[_bundle.slice_key("v", one)] = tf.tensor(np.full(size, k, "f4"))
    return tf.write(folder / "m", rows, **kw)


def test_rows_in_order_are_one_tensor(tmp_path: Path) -> None:
    """Where they follow each other in the file; else they are parts."""
    rows = [(((0, 2), (0, -1)), (2, 3)), (((2, 1), (0, -1)), (1, 3))]
    assert paramtool.load_file(sliced(tmp_path, rows, (3, 3)))["v"].tolist() == [[0] * 3, [0] * 3, [1] * 3]
    assert list(paramtool.read(sliced(tmp_path, rows[::-1], (3, 3))).entries) == ["v/part_0", "v/part_1"]
    assert list(paramtool.read(sliced(tmp_path, rows, (3, 3), shards=2)).entries) == ["v/part_0", "v/part_1"]


@pytest.mark.parametrize(
    ("pieces", "shape", "match"),
    [
        ([(((0, 2),), (2,))], (3,), "1 slices do not fill its shape"),
        ([(((0, 4),), (4,))], (3,), "its slice 0,4 has"),
        ([(((0, 3),), (2,))], (3,), "its slice 0,3 has"),
        ([(((0, 2), (0, 1)), (2,))], (2,), "a slice has 2 axes; expected 1"),
    ],
)
def test_slices_that_lie(pieces: Any, shape: tuple[int, ...], match: str, tmp_path: Path) -> None:
    """Slices that are not of their tensor are errors."""
    with pytest.raises(FormatError, match=match):
        paramtool.read(sliced(tmp_path, pieces, shape))


def test_a_slice_without_a_row(tmp_path: Path) -> None:
    """The tensor says that there is one."""
    index = tf.write(tmp_path / "m", {b"v": tf.Tensor(1, (3,), b"", (((0, 3),),))})
    with pytest.raises(FormatError, match="its slice 0,3 has no row in the index"):
        paramtool.read(index)


# --- the graph of objects -------------------------------------------------------------------------------------------


def objects(folder: Path, graph: bytes, keys: list[str]) -> Any:
    """A bundle with a graph, and a number for each key."""
    rows = {f"{key}{tf.VALUE}".encode(): tf.tensor(np.array(k, "f4")) for k, key in enumerate(keys)}
    return paramtool.read(tf.write(folder / "m", rows, graph))


def test_paths_do_not_explode(tmp_path: Path) -> None:
    """Thirty diamonds one behind the other: 2 ** 30 paths to one variable, of which some are listed, with a note."""
    nodes = []
    for k in range(30):
        nodes += [
            tf.node([("a", 3 * k + 1), ("b", 3 * k + 2)]),
            tf.node([("c", 3 * k + 3)]),
            tf.node([("c", 3 * k + 3)]),
        ]
    found = objects(tmp_path, tf.graph(*nodes, tf.node(key="w")), ["w"])
    assert 0 < len(found.entries) <= read.MAX_NAMES
    assert found.notes == ("not all names of shared variables are listed: there are too many",)


def test_cycles_end(tmp_path: Path) -> None:
    """A node that is its own child, and two that are each other's."""
    graph = tf.graph(tf.node([("self", 0), ("x", 1)]), tf.node([("up", 0), ("v", 2)]), tf.node(key="x/v"))
    assert list(objects(tmp_path, graph, ["x/v"]).entries) == ["x/v"]


def test_deep_variables_are_called_by_their_rows(tmp_path: Path) -> None:
    """A chain that is deeper than any model's."""
    nodes = [tf.node([("n", k + 1)]) for k in range(200)]
    assert list(objects(tmp_path, tf.graph(*nodes, tf.node(key="deep")), ["deep"]).entries) == ["deep"]


def test_names_are_different(tmp_path: Path) -> None:
    """A full name that two variables have is no name; one that is another's path yields."""
    graph = tf.graph(
        tf.node([("a", 1), ("b", 2), ("c", 3)]),
        tf.node([], "s/n", "a"),
        tf.node([], "s/n", "b"),
        tf.node([], "x/y", "c"),
    )
    assert list(objects(tmp_path, graph, ["a", "b", "c"]).entries) == ["a", "b", "x/y"]
    graph = tf.graph(
        tf.node([("x", 1), ("c", 3)]), tf.node([("y", 2)]), tf.node([], "", "x/y"), tf.node([], "x/y", "c")
    )
    assert list(objects(tmp_path, graph, ["x/y", "c"]).entries) == ["x/y", "c"]


def test_a_variable_that_the_optimizer_lists_is_the_model_s(tmp_path: Path) -> None:
    """Keras 3 keeps rows of the model below the optimizer: `optimizer/_trainable_variables/0`."""
    key = "optimizer/_trainable_variables/0"
    graph = tf.graph(
        tf.node([("optimizer", 1), ("_layers", 2)]), tf.node([("_trainable_variables", 3), ("_momentums", 4)]),
        tf.node([("0", 5)]), tf.node([("0", 5)]), tf.node([("0", 6)]), tf.node([], "kernel", key),
        tf.node([], "adam/momentum", "optimizer/_momentums/0"),
    )  # fmt: skip
    found = objects(tmp_path, graph, [key, "optimizer/_momentums/0"])
    assert {name: entry.role for name, entry in found.entries.items()} == {
        "_layers/0": "model",
        "optimizer/adam/momentum": "optimizer",
    }


def test_rows_that_the_graph_does_not_know_keep_their_keys(tmp_path: Path) -> None:
    """Nothing of the index is lost."""
    assert list(objects(tmp_path, tf.graph(tf.node()), ["a"]).entries) == [f"a{tf.VALUE}"]


def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    """An edge that leads out of the graph."""
    with pytest.raises(FormatError, match="node_id is 7; the graph has 1 nodes"):
        objects(tmp_path, tf.graph(tf.node([("a", 7)])), [])


def test_a_changed_graph_is_an_error(tmp_path: Path) -> None:
    """Its CRC-32C is checked, and its length."""
    index = tf.write(tmp_path / "m", {}, tf.graph(tf.node([("abc", 0)])))
    data = tmp_path / "m.data-00000-of-00001"
    whole = data.read_bytes()
    for k in range(len(whole)):
        data.write_bytes(whole[:k] + bytes([whole[k] ^ 1]) + whole[k + 1 :])
        with pytest.raises(FormatError, match="the graph of objects"):
            paramtool.read(index)


# --- damage ---------------------------------------------------------------------------------------------------------


def test_every_changed_byte_of_an_index_is_an_error_or_harmless(tmp_path: Path) -> None:
    """Blocks have a CRC; what has none is the footer."""
    index = tf.write(tmp_path / "m", {b"w": tf.tensor(np.arange(3, dtype="f4")), b"x": tf.tensor(np.ones(2, "f4"))})
    expected = paramtool.read(index).entries
    data = index.read_bytes()
    for k in range(len(data)):
        index.write_bytes(data[:k] + bytes([data[k] ^ 0x41]) + data[k + 1 :])
        try:
            assert paramtool.read(index).entries == expected, k
        except FormatError as error:
            assert "m.index" in str(error)


def rewritten(folder: Path, rows: dict[bytes, bytes], **kw: Any) -> Path:
    """An index with these rows beside the usual header, and 100 bytes of data."""
    (folder / "m.data-00000-of-00001").write_bytes(bytes(100))
    (folder / "m.index").write_bytes(tf.table({b"": tf.header(1), **rows}, **kw))
    return folder / "m.index"


@pytest.mark.parametrize(
    ("row", "match"),
    [
        (tf.entry(1, (2,), (0, 96, 8), 0), "'w' ends at byte 104 of .*, which has 100 bytes"),
        (tf.entry(1, (2,), (0, 0, 9), 0), r"'w' is float32 \[2\], which has 8 bytes, and its row says 9"),
        (tf.entry(1, (2,), (1, 0, 8), 0), "'w' is in file 1 of 1"),
        (tf.entry(1, (-2,), (0, 0, 8), 0), "its shape is"),
        (tf.entry(1, (1 << 40, 1 << 40), (0, 0, 8), 0), "its row says 8"),
        (tf.entry(1, (2,), (0, -8, 8), 0), "expected no negative one"),
        (tf.entry(1, (1,) * 300, (0, 0, 4), 0), "expected up to"),
        (b"\x08", "a number does not end"),
        (b"\x0a\x01\x00", "dtype has wire type 2"),
    ],
)
def test_rows_that_lie(row: bytes, match: str, tmp_path: Path) -> None:
    """Sizes, files and shapes that the data does not have."""
    with pytest.raises(FormatError, match=match):
        paramtool.read(rewritten(tmp_path, {b"w": row}))


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (tf.header(1, needs=2), "needs a reader of version 2"),
        (tf.number(1, 200_000), "num_shards is 200000"),
        (tf.number(1, 1) + tf.number(2, 5), "endianness is 5"),
    ],
)
def test_headers_that_lie(header: bytes, match: str, tmp_path: Path) -> None:
    """Versions and counts that are not known."""
    (tmp_path / "m.index").write_bytes(tf.table({b"": header}))
    with pytest.raises(FormatError, match=match):
        paramtool.read(tmp_path / "m.index")


def test_tensors_that_overlap(tmp_path: Path) -> None:
    """One range under two keys is one storage; a range that begins inside another is an error."""
    same = rewritten(tmp_path, {b"v": tf.entry(1, (2,), (0, 0, 8), 0), b"w": tf.entry(1, (2,), (0, 0, 8), 0)})
    assert len(paramtool.read(same).storages) == 1
    with pytest.raises(FormatError, match="bytes 0 to 8 and 4 to 12 overlap"):
        paramtool.read(
            rewritten(tmp_path, {b"v": tf.entry(1, (2,), (0, 0, 8), 0), b"w": tf.entry(1, (2,), (0, 4, 8), 0)})
        )


def test_compression_that_is_not_known(tmp_path: Path) -> None:
    """Type 2 is none of LevelDB's in TensorFlow."""
    content = tf.entries([(b"", tf.header(1))]) + b"\2"
    part = content + np.uint32(_bundle.masked(_bundle.crc32c(content))).tobytes()
    index = tf.trailed(tf.entries([(b"", tf.varint(0) + tf.varint(len(part) - 5))], 1))
    (tmp_path / "m.index").write_bytes(part + index + tf.footer((len(part), len(index) - 5)))
    with pytest.raises(FormatError, match="the block has the compression 2; expected 0, or 1 for snappy"):
        paramtool.read(tmp_path / "m.index")


def test_blocks_that_are_read_twice(tmp_path: Path) -> None:
    """Many places of one block would make much of little."""
    part = tf.trailed(tf.entries([(b"", tf.header(1))]))
    place = tf.varint(0) + tf.varint(len(part) - 5)
    index = tf.trailed(tf.entries([(b"a", place), (b"b", place)], 1))
    (tmp_path / "m.index").write_bytes(part + index + tf.footer((len(part), len(index) - 5)))
    with pytest.raises(FormatError, match="a block begins at byte 0, before byte"):
        paramtool.read(tmp_path / "m.index")


def test_a_large_bundle_is_described_by_its_index(tmp_path: Path) -> None:
    """Of 4 GB of data nothing is read but the graph of objects."""
    import tracemalloc

    nbytes = 4 << 30
    (tmp_path / "m.data-00000-of-00001").write_bytes(b"")
    os.truncate(tmp_path / "m.data-00000-of-00001", nbytes)
    (tmp_path / "m.index").write_bytes(
        tf.table({b"": tf.header(1), b"w": tf.entry(1, (nbytes // 4,), (0, 0, nbytes), 0)})
    )
    tracemalloc.start()
    assert paramtool.read(tmp_path / "m").entries["w"].value.shape == (nbytes // 4,)
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()


def test_a_damaged_saved_model_is_a_note(tmp_path: Path) -> None:
    """The weights are whole; only what the layers are is not known."""
    place = tmp_path / "saved"
    shutil.copytree(FIXTURES / "keras_rnn" / "keras_rnn", place)
    (place / "keras_metadata.pb").write_bytes(b"\x0a\xff")
    (place / "saved_model.pb").write_bytes(b"")
    found = paramtool.read(place)
    assert any("its layers are not known" in note for note in found.notes)
    assert len(found.modules) == 3


def test_roles_by_name() -> None:
    """A slot stands behind the name of its variable."""
    assert read.role("w/Momentum", {"w"}) == "optimizer"
    assert read.role("cell/Adam", {"w"}) == "model"
