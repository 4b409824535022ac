"""MXNet's `.params`: every version of its arrays, what its names mean, and what the symbol file beside it says."""

from __future__ import annotations

import json
from pathlib import Path
from struct import pack
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import paramtool
from paramtool import layouts
from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from paramtool.commands import inspect as inspect_command
from paramtool.commands import verify as verify_command
from paramtool.errors import PlanError
from paramtool.layouts.layout import stored
from paramtool.layouts.spec import Spec, parse
from paramtool.model.checkpoint import Compound, Module, NoData
from paramtool.model.view import View
from tests.contracts.makers_arrays import FLAGS, MARKS, dense, params, saved, shape_of, sparse
from tests.laws.sharing import raw

FIXTURES = Path(__file__).parents[2] / "fixtures" / "mxnet"
EXPORTED = FIXTURES / "exported-0000" / "exported-0000.params"
FUSED = FIXTURES / "fused_cell-0001" / "fused_cell-0001.params"


def pattern(seed: int, count: int) -> np.ndarray:
    """What the fixtures' makers fill tensors with."""
    numbers = [(k + 7919 * (seed + 1)) * 40503 % 65521 - 32760 for k in range(count)]
    return (np.array(numbers) / 65536).astype("f4")


def written(folder: Path, data: bytes, file: str = "model-0001.params") -> Path:
    """A file of these bytes."""
    (folder / file).write_bytes(data)
    return folder / file


class TestTheWriterOfTheTests:
    """The writer that the tests use makes MXNet's bytes, so that reading its files is reading MXNet's."""

    def test_element_types(self) -> None:
        """V2, one array of each type."""
        types = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
        values = {name: (np.arange(6).reshape(2, 3) + k).astype(name) for k, name in enumerate(types)}
        values["bfloat16"] = np.array([1, 2.5, -3], dtype=ml_dtypes.bfloat16)
        assert saved(values) == (FIXTURES / "arrays" / "arrays.params").read_bytes()

    def test_numpy_shapes(self) -> None:
        """V3, one without axes and one without elements among them."""
        values = {"scalar": np.ones((), "f4"), "none": np.zeros((0, 3), "f4"), "row": np.array([1, 2], "f4")}
        assert saved(values, "V3") == (FIXTURES / "arrays" / "numpy_shapes.params").read_bytes()

    def test_a_list_without_names(self) -> None:
        """No names at all."""
        arrays = [dense(np.ones((2,), "f4")), dense(np.zeros((1, 3), "f4"))]
        assert params(arrays) == (FIXTURES / "arrays" / "unnamed.params").read_bytes()

    def test_sparse(self) -> None:
        """row_sparse and csr, full ones and empty ones, between dense ones."""
        none, long = np.zeros((0,), "i8"), np.zeros((6,), "i8")
        arrays = {
            "first": dense(np.ones((2,), "f4")),
            "rows": sparse(1, (5, 3), np.arange(6, dtype="f4").reshape(2, 3), np.array([1, 3], "i8")),
            "csr": sparse(2, (2, 3), np.array([1, 2, 3], "f4"), np.array([0, 1, 3], "i8"), np.array([1, 0, 2], "i8")),
            "no_rows": sparse(1, (5, 3), np.zeros((0, 3), "f4"), none),
            "no_csr": sparse(2, (5, 3), np.zeros((0,), "f4"), long, none),
            "last": dense(np.zeros((3,), "f4")),
        }
        assert params(arrays.values(), arrays) == (FIXTURES / "arrays" / "sparse.params").read_bytes()


@pytest.mark.parametrize("version", ["V0", "V1", "V2", "V3"])
@pytest.mark.parametrize("dtype", FLAGS)
def test_every_type_in_every_version(version: str, dtype: str, tmp_path: Path) -> None:
    """Type, shape and bytes are those that were written, and the version is said."""
    values = {"a": np.arange(6).reshape(2, 3).astype(dtype), "b": np.arange(4).astype(dtype)}
    path = written(tmp_path, saved(values, version))
    found = paramtool.load_file(path)
    assert {n: (v.dtype.name, v.shape, raw(v)) for n, v in values.items()} == {
        n: (v.dtype.name, v.shape, raw(v)) for n, v in found.items()
    }
    assert paramtool.read(path).format == f"mxnet {version}"


def test_versions_may_be_mixed_in_a_file(tmp_path: Path) -> None:
    """Each array says for itself of which version it is."""
    value = np.arange(3, dtype="f4")
    path = written(tmp_path, params([dense(value, v) for v in ("V2", "V0", "V1")], "abc"))
    assert paramtool.read(path).format == "mxnet V0+V1+V2"
    assert all(raw(found) == raw(value) for found in paramtool.load_file(path).values())


def test_names_are_kept_as_they_are() -> None:
    """`arg:` and `aux:` are a part of the name."""
    assert list(paramtool.read(FUSED).entries) == ["arg:enc_parameters", "aux:bn_moving_mean"]


def test_auxiliary_states_and_statistics_are_buffers(tmp_path: Path) -> None:
    """By the prefix, or by what BatchNorm calls them where there is none."""
    one = np.ones((1,), "f4")
    names = ("aux:x", "bn0_running_var", "0.running_mean", "bn_moving_mean", "arg:bn_gamma", "meaning")
    entries = paramtool.read(written(tmp_path, saved(dict.fromkeys(names, one)))).entries
    assert [entries[name].role for name in names] == ["buffer"] * 4 + ["model"] * 2


def test_arrays_without_names_are_numbered() -> None:
    """As MXNet returns a list."""
    found = paramtool.load_file(FIXTURES / "arrays" / "unnamed.params")
    assert {name: value.tolist() for name, value in found.items()} == {"0": [1, 1], "1": [[0, 0, 0]]}


def test_an_empty_list_is_read(tmp_path: Path) -> None:
    """No arrays, no names."""
    assert paramtool.read(written(tmp_path, params([]))).entries == {}


@pytest.mark.parametrize(
    "array",
    {
        "V0": pack("<I", 0),
        "V1": pack("<Ii", MARKS["V1"], 0),
        "V2": pack("<Iii", MARKS["V2"], 0, 0),
        "V2 sparse": pack("<Ii", MARKS["V2"], 1) + shape_of((0, 3)) + shape_of(()),
        "V3": pack("<Iii", MARKS["V3"], 0, -1),
        "V3 axis": pack("<Ii", MARKS["V3"], 0) + shape_of((2, -1)),
    }.items(),
    ids=lambda item: item[0],
)
def test_an_array_of_nothing_has_no_data(array: tuple[str, bytes], tmp_path: Path) -> None:
    """Nothing follows it, the next array begins right behind; dedup refuses it by name."""
    path = written(tmp_path, params([array[1], dense(np.arange(3, dtype="f4"))], ["nothing", "w"]))
    entries = paramtool.read(path).entries
    assert isinstance(entries["nothing"].value, NoData)
    (storage,) = paramtool.read(path).storages.values()
    assert path.read_bytes()[storage.backing.start : storage.backing.stop] == raw(np.arange(3, dtype="f4"))
    with pytest.raises(PlanError, match="'nothing': empty"):
        dedup_command.dedup(path, tmp_path / "out.safetensors")


def test_devices_other_than_the_cpu_are_said(tmp_path: Path) -> None:
    """An array says where it was when it was saved."""
    value = np.ones((2,), "f4")
    arrays = [dense(value), dense(value, device=(2, 1)), dense(value, device=(3, 0))]
    assert paramtool.read(written(tmp_path, params(arrays))).producer == "MXNet, saved from gpu(1)"


class TestSparse:
    """row_sparse and csr: several windows make one tensor."""

    def test_parts(self) -> None:
        """Values under `data`, the rest under MXNet's own words; the dense shape is a fact."""
        entries = paramtool.read(FIXTURES / "arrays" / "sparse.params").entries
        rows, csr = entries["rows"].value, entries["csr"].value
        assert isinstance(rows, Compound)
        assert isinstance(csr, Compound)
        assert (rows.kind, list(rows.parts), rows.facts) == ("row_sparse", ["data", "indices"], {"shape": (5, 3)})
        assert (csr.kind, list(csr.parts), csr.facts) == ("csr", ["data", "indptr", "indices"], {"shape": (2, 3)})

    def test_values(self) -> None:
        """The bytes of every part, and of the dense arrays around them."""
        found = {n: v.tolist() for n, v in paramtool.load_file(FIXTURES / "arrays" / "sparse.params").items()}
        assert found == {
            "first": [1, 1], "rows/data": [[0, 1, 2], [3, 4, 5]], "rows/indices": [1, 3], "csr/data": [1, 2, 3],
            "csr/indptr": [0, 1, 3], "csr/indices": [1, 0, 2], "no_rows/data": [], "no_rows/indices": [],
            "no_csr/data": [], "no_csr/indptr": [0] * 6, "no_csr/indices": [], "last": [0, 0, 0],
        }  # fmt: skip

    def test_dedup_refuses_them_by_name(self, tmp_path: Path) -> None:
        """safetensors has no form for them; --skip-unsupported keeps the others."""
        path, output = FIXTURES / "arrays" / "sparse.params", tmp_path / "out.safetensors"
        with pytest.raises(PlanError, match="'rows': row_sparse tensor of data, indices"):
            dedup_command.dedup(path, output)
        dedup_command.dedup(path, output, skip_unsupported=True)
        assert list(paramtool.load_file(output)) == ["first", "last"]


@pytest.mark.parametrize("path", [EXPORTED, FUSED, FIXTURES / "gluon_lstm" / "gluon_lstm.params"], ids=lambda p: p.stem)
def test_commands(path: Path, tmp_path: Path) -> None:
    """inspect, dedup, verify and export take these files as any other."""
    expected = {name: raw(value) for name, value in paramtool.load_file(path).items()}
    output, plain = tmp_path / "out.safetensors", tmp_path / "plain.safetensors"
    assert list(inspect_command.inspect(path, equal=True).checkpoint.entries) == list(expected)
    dedup_command.dedup(path, output)
    assert verify_command.verify(output, path).differences == ()
    export_command.export(path, plain, names=list(expected))
    for found in (output, plain):
        assert {name: raw(value) for name, value in paramtool.load_file(found).items()} == expected


def test_values_of_a_fixture() -> None:
    """The flat vector holds what its maker put into it."""
    assert raw(paramtool.load_file(FUSED)["arg:enc_parameters"]) == raw(pattern(0, 432))


def test_safetensors_whose_header_has_the_length_of_the_magic_number(tmp_path: Path) -> None:
    """A header of 0x112 bytes makes the first eight bytes equal; the ninth tells them apart."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).ljust(0x112)
    path = written(tmp_path, pack("<Q", 0x112) + header.encode() + bytes(4), "model.safetensors")
    assert paramtool.read(path).format == "safetensors"


# --- the symbol file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (FUSED, ("arg:enc", "mxnet.flat", "lstm input=2 hidden=3 layers=2 bidirectional")),
        (FIXTURES / "gates-0001" / "gates-0001.params",
         ("arg:enc", "mxnet.gates", "gru input=2 hidden=3 layers=2 reset=after")),
        (EXPORTED, ("arg:net_enc", "mxnet", "lstm input=2 hidden=4 projection=3")),
        (FIXTURES.parent / "npz" / "mxnet2_exported-0000" / "mxnet2_exported-0000.params",
         ("arg:enc", "mxnet.v2", "gru input=2 hidden=3 reset=after")),
    ],
    ids=lambda item: item.stem if isinstance(item, Path) else "",
)  # fmt: skip
def test_networks_of_real_symbol_files(path: Path, expected: tuple[str, str, str]) -> None:
    """Prefix, layout and spec, as MXNet itself wrote them down."""
    checkpoint = paramtool.read(path)
    (module,) = checkpoint.modules
    assert (module.at, module.layout, module.spec) == expected
    assert (module.tensors, module.options, checkpoint.notes) == ({}, {}, ())
    assert "RNN node" in module.source
    assert "-symbol.json" in module.source
    assert stored_by(module).items() <= {n: view.shape for n, view in checkpoint.windows()}.items()


def stored_by(module: Module) -> dict[str, tuple[int, ...]]:
    """{name: shape} of every tensor that the module's layout has for its spec."""
    layout, spec = layouts.find(module.layout), Spec(**parse(module.spec))
    options = layout.chosen(module.options)
    tensors = stored(layout, layout.form(spec, options), spec, options)
    return {f"{module.at}{layout.separator}{tensor.name}": tensor.shape for tensor in tensors}


ATTRS = {"mode": "lstm", "state_size": "3", "num_layers": "1"}
NUMEL = {
    "lstm": 4 * 3 * (2 + 3 + 2),
    "gru": 3 * 3 * (2 + 3 + 2),
    "rnn_tanh": 3 * (2 + 3 + 2),
    "rnn_relu": 3 * (2 + 3 + 2),
}


def symbol(key: str = "attrs", variable: str = "enc_parameters", **attrs: object) -> dict[str, Any]:
    """A symbol file with one RNN node on one flat variable."""
    said = {name: value for name, value in {**ATTRS, **attrs}.items() if value is not None}
    return {"nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": variable, "inputs": []},
        {"op": "RNN", "name": "enc_rnn", "inputs": [[0, 0, 0], [1, 0, 0]], key: said},
    ]}  # fmt: skip


def beside(folder: Path, text: object, names: dict[str, int] | None = None, file: str = "m-symbol.json") -> Path:
    """A file of parameters with a symbol file beside it."""
    data = text if isinstance(text, bytes) else json.dumps(text).encode()
    (folder / file).write_bytes(data)
    values = {name: np.zeros((n,), "f4") for name, n in (names or {"arg:enc_parameters": NUMEL["lstm"]}).items()}
    return written(folder, saved(values), "m-0003.params")


def module_of(path: Path) -> Module:
    """The one network that is described."""
    checkpoint = paramtool.read(path)
    assert checkpoint.notes == ()
    (module,) = checkpoint.modules
    return module


@pytest.mark.parametrize("key", ["param", "attr", "attrs"])
def test_attributes_of_every_age(key: str, tmp_path: Path) -> None:
    """Three versions, three names for the same."""
    module = module_of(beside(tmp_path, symbol(key)))
    assert (module.at, module.layout, module.spec) == ("arg:enc", "mxnet.flat", "lstm input=2 hidden=3")


@pytest.mark.parametrize(
    ("mode", "spec"),
    [
        ("gru", "gru input=2 hidden=3 reset=after"),
        ("rnn_tanh", "rnn input=2 hidden=3 activation=tanh"),
        ("rnn_relu", "rnn input=2 hidden=3 activation=relu"),
    ],
)
def test_modes(mode: str, spec: str, tmp_path: Path) -> None:
    """What each mode is in words."""
    path = beside(tmp_path, symbol(mode=mode), {"arg:enc_parameters": NUMEL[mode]})
    assert module_of(path).spec == spec


def test_a_clipped_cell(tmp_path: Path) -> None:
    """Bounds of one size on both sides are a word of the spec."""
    said = symbol(lstm_state_clip_min="-3", lstm_state_clip_max="3.0", lstm_state_clip_nan="False")
    assert module_of(beside(tmp_path, said)).spec == "lstm input=2 hidden=3 cell_clip=3.0"


@pytest.mark.parametrize("name", ["enc_parameters", "arg:enc_parameters"])
def test_a_file_with_or_without_prefixes(name: str, tmp_path: Path) -> None:
    """The symbol says the variable's name, the file may say its kind as well."""
    assert module_of(beside(tmp_path, symbol(), {name: NUMEL["lstm"]})).at == name.removesuffix("_parameters")


@pytest.mark.parametrize("file", ["m-symbol.json", "m-0003-symbol.json"])
def test_where_it_is_looked_for(file: str, tmp_path: Path) -> None:
    """`X-0003.params` has `X-symbol.json`, `X.params` has it too."""
    assert module_of(beside(tmp_path, symbol(), file=file)).source == f"RNN node 'enc_rnn' of {file}"


@pytest.mark.parametrize("variable", ["w", "arg:parameters", "my_"])
def test_a_variable_with_a_name_of_its_own(variable: str, tmp_path: Path) -> None:
    """The module then says which tensor it is."""
    path = beside(tmp_path, symbol(variable=variable.removeprefix("arg:")), {variable: NUMEL["lstm"]})
    module = module_of(path)
    assert (module.at, module.layout, module.tensors) == ("enc_rnn", "mxnet.flat", {"parameters": variable})


def test_one_vector_of_two_nodes_is_one_network(tmp_path: Path) -> None:
    """A cell that is unrolled twice has its weights once."""
    said = symbol()
    said["nodes"].append({**said["nodes"][2], "name": "again"})
    assert module_of(beside(tmp_path, said)).source.startswith("RNN node 'enc_rnn'")


BROKEN: dict[str, object] = {
    "no JSON": b"{",
    "not UTF-8": b"\xff\xfe{}",
    "a list": [],
    "no nodes": {},
    "nodes a number": {"nodes": 7},
    "deep": b'{"nodes":' + b"[" * 100_000,
    "a key twice": b'{"nodes":[],"nodes":[]}',
    "mode missing": symbol(mode=None),
    "mode unknown": symbol(mode="lstm2"),
    "mode a number": symbol(mode=5),
    "size missing": symbol(state_size=None),
    "size zero": symbol(state_size="0"),
    "size negative": symbol(state_size="-3"),
    "size endless": symbol(state_size="9" * 5000),
    "size of another vector": symbol(state_size="5"),
    "layers of another vector": symbol(num_layers="999999999"),
    "directions of another vector": symbol(bidirectional="True"),
    "clipped on one side": symbol(lstm_state_clip_min="-3"),
    "clipped unevenly": symbol(lstm_state_clip_min="-3", lstm_state_clip_max="4"),
    "clipped at no number": symbol(lstm_state_clip_min="a", lstm_state_clip_max="nan"),
    "another variable": symbol(variable="dec_parameters"),
    "no inputs": {"nodes": [{"op": "RNN", "name": "r", "attrs": ATTRS}]},
    "one input": {"nodes": [{"op": "RNN", "name": "r", "attrs": ATTRS, "inputs": [[0, 0, 0]]}]},
    "inputs of text": {"nodes": [{"op": "RNN", "name": "r", "attrs": ATTRS, "inputs": ["a", "b"]}]},
    "input nowhere": {"nodes": [{"op": "RNN", "name": "r", "attrs": ATTRS, "inputs": [[0], [99]]}]},
    "input before the first": {"nodes": [{"op": "RNN", "name": "r", "attrs": ATTRS, "inputs": [[0], [-1]]}]},
    "input in a circle": {"nodes": [{"op": "RNN", "name": "r", "attrs": ATTRS, "inputs": [[0], [0]]}]},
    "attributes a list": {"nodes": [{"op": "RNN", "name": ["r"], "attrs": [], "inputs": [[0], [0]]}]},
    "very many": {"nodes": [{"op": "RNN", "name": "r" * 500, "attrs": ATTRS, "inputs": [[0], [0]]}] * 1001},
    "many": {"nodes": [{"op": "RNN", "name": "r" * 500, "attrs": ATTRS, "inputs": [[0], [0]]}] * 9},
}


@pytest.mark.parametrize("key", BROKEN)
def test_a_broken_symbol_file_is_a_note(key: str, tmp_path: Path) -> None:
    """The tensors are described as if it were not there; at least one short note says what is wrong."""
    path = beside(tmp_path, BROKEN[key])
    checkpoint = paramtool.read(path)
    assert list(checkpoint.entries) == ["arg:enc_parameters"]
    assert checkpoint.modules == ()
    assert 1 <= len(checkpoint.notes) <= 6
    assert all("symbol" in note and len(note) < 500 for note in checkpoint.notes)


def test_a_symbol_file_that_is_a_folder_is_not_there(tmp_path: Path) -> None:
    """Only regular files count."""
    (tmp_path / "m-symbol.json").mkdir()
    path = written(tmp_path, saved({"arg:enc_parameters": np.zeros((84,), "f4")}), "m-0003.params")
    assert paramtool.read(path).notes == ("there is no symbol file that describes its recurrent networks",)


def test_a_file_without_recurrent_networks_needs_no_symbol(tmp_path: Path) -> None:
    """No note where nothing more would be said."""
    path = written(tmp_path, saved({"arg:fc_weight": np.zeros((4, 2), "f4")}))
    assert paramtool.read(path).notes == ()


def test_a_layer_that_lacks_a_tensor_is_a_note(tmp_path: Path) -> None:
    """Gluon's symbol reads each variable; without all of them there is no network."""
    (tmp_path / "exported-symbol.json").write_bytes(EXPORTED.with_name("exported-symbol.json").read_bytes())
    values = paramtool.load_file(EXPORTED)
    del values["arg:net_enc_l0_h2r_weight"]
    checkpoint = paramtool.read(written(tmp_path, saved(values), "exported-0000.params"))
    assert checkpoint.modules == ()
    assert "net_enc_l0_i2h_weight" in checkpoint.notes[0]
    assert all(isinstance(entry.value, View) for entry in checkpoint.entries.values())
