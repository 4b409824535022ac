"""NumPy's `.npz` and `.npy`, with NumPy as the oracle, and what MXNet 2 makes of them."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from paramtool.commands import inspect as inspect_command
from paramtool.commands import verify as verify_command
from paramtool.errors import FormatError, PlanError
from paramtool.formats.numpy import npz
from paramtool.formats.table import FORMATS
from paramtool.model.checkpoint import Compound
from paramtool.model.storage import ByteRange, Encoded
from paramtool.model.view import View
from tests.hostile.makers_arrays import npy
from tests.laws.sharing import raw
from tests.startup.test_imports import HEAVY, modules

FIXTURES = Path(__file__).parents[2] / "fixtures"
MXNET2 = FIXTURES / "npz" / "mxnet2_lstm"
ARRAYS = FIXTURES / "npz" / "numpy_arrays"
CODES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")


def save(folder: Path, packed: bool = False, **arrays: Any) -> Path:
    """np.savez, or np.savez_compressed."""
    (np.savez_compressed if packed else np.savez)(folder / "model.npz", **arrays)
    return folder / "model.npz"


def native(array: np.ndarray) -> np.ndarray:
    """The array with this machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="))


@pytest.mark.parametrize("packed", [False, True], ids=["stored", "deflated"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("code", CODES)
def test_every_type_in_every_order(code: str, order: str, packed: bool, tmp_path: Path) -> None:
    """Types, shapes and values are NumPy's, whatever order of bytes and axes they were saved in."""
    base = (np.arange(24).reshape(2, 3, 4) % 7).astype(order + code)
    path = save(tmp_path, packed, c=base, fortran=np.asfortranarray(base), scalar=base[1, 2, 3], none=base[:0])
    found, oracle = paramtool.load_file(path), np.load(path)
    for name in oracle.files:
        expected = native(oracle[name])
        assert (expected.dtype, expected.shape, raw(expected)) == (
            found[name].dtype,
            found[name].shape,
            raw(found[name]),
        )


@pytest.mark.parametrize("packed", [False, True], ids=["stored", "deflated"])
def test_fixture_is_what_numpy_reads(packed: bool) -> None:
    """Every array of a file with all that is odd."""
    path = ARRAYS / ("compressed.npz" if packed else "numpy_arrays.npz")
    found, oracle = paramtool.load_file(path), np.load(path)
    assert list(found) == oracle.files
    for name in oracle.files:
        expected = oracle[name].view(ml_dtypes.bfloat16) if oracle[name].dtype == "V2" else native(oracle[name])
        assert (str(expected.dtype), raw(expected)) == (str(found[name].dtype), raw(found[name])), name


def test_fortran_order_is_a_window_with_strides(tmp_path: Path) -> None:
    """Nothing is turned round in reading: the first axis runs fastest."""
    view = paramtool.read(save(tmp_path, w=np.asfortranarray(np.ones((2, 3, 4), "f4")))).entries["w"].value
    assert isinstance(view, View)
    assert (view.shape, view.strides) == ((2, 3, 4), (1, 2, 6))


def test_stored_elements_are_a_range_of_the_file(tmp_path: Path) -> None:
    """Behind the header, and with the CRC of just these bytes."""
    path = save(tmp_path, w=np.arange(300, dtype="<f4"))
    (storage,) = paramtool.read(path).storages.values()
    assert isinstance(storage.backing, ByteRange)
    data = path.read_bytes()[storage.backing.start : storage.backing.stop]
    assert (data, zlib.crc32(data)) == (np.arange(300, dtype="<f4").tobytes(), storage.backing.crc32)


def test_deflated_elements_are_decoded_step_by_step(tmp_path: Path) -> None:
    """Inflated, the header left out, turned round."""
    (storage,) = paramtool.read(save(tmp_path, packed=True, w=np.arange(300, dtype=">f4"))).storages.values()
    assert isinstance(storage.backing, Encoded)
    assert storage.backing.steps == ("inflate", "skip128", "swap4")
    assert storage.nbytes == 1200


@pytest.mark.parametrize("packed", [False, True], ids=["stored", "deflated"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_damaged_byte_is_found_by_the_crc(packed: bool, order: str, tmp_path: Path) -> None:
    """Describing does not read it; reading the values does."""
    path = save(tmp_path, packed, w=(np.arange(3000) * 40503 % 65521).astype(order + "f4"))
    (storage,) = paramtool.read(path).storages.values()
    place = storage.backing.source if isinstance(storage.backing, Encoded) else storage.backing
    data = bytearray(path.read_bytes())
    data[(place.start + place.stop) // 2] ^= 1
    path.write_bytes(data)
    paramtool.read(path)
    with pytest.raises(FormatError, match=r"CRC|inflate"):
        paramtool.load_file(path)


def test_a_header_that_is_longer_than_one_block_of_deflated_bytes(tmp_path: Path) -> None:
    """The header is inflated as far as it goes, and no further."""
    member = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(60_000), bytes(8))
    with zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", member)
    assert paramtool.load_file(tmp_path / "m.npz")["w"].tolist() == [0, 0]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_crc_of_the_rest(head: bytes, rest: bytes) -> None:
    """It follows from the CRC of all and the first bytes."""
    assert npz.crc32_of_rest(zlib.crc32(head + rest), head, len(rest)) == zlib.crc32(rest)


def test_the_crc_of_a_long_rest() -> None:
    """Its length counts modulo nothing."""
    rest = bytes(range(256)) * 70_001
    assert npz.crc32_of_rest(zlib.crc32(b"head" + rest), b"head", len(rest)) == zlib.crc32(rest)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_of_the_header(version: tuple[int, int], tmp_path: Path) -> None:
    """Two or four bytes of length."""
    with (tmp_path / "w.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(6.0).reshape(2, 3), version=version)
    assert paramtool.load_file(tmp_path / "w.npy")["arr_0"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("shape", ["(2L, 3L)", "(2L, 3L,)", "(2, 3)", " ( 2,3 ) "])
def test_shapes_as_others_write_them(shape: str, tmp_path: Path) -> None:
    """Python 2 wrote long numbers with an L; blanks say nothing."""
    text = f"{{'shape': {shape}, 'fortran_order': False, 'descr': '<f4'}}"
    (tmp_path / "w.npy").write_bytes(npy(text, bytes(24)))
    assert paramtool.load_file(tmp_path / "w.npy")["arr_0"].shape == (2, 3)


def test_a_bare_array_has_the_name_that_savez_gives(tmp_path: Path) -> None:
    """Whatever its file is called."""
    np.save(tmp_path / "one.npy", np.ones(3))
    np.savez(tmp_path / "two.npz", np.ones(3))
    assert list(paramtool.read(tmp_path / "one.npy").entries) == list(paramtool.read(tmp_path / "two.npz").entries)
    assert paramtool.read(tmp_path / "one.npy").format == "npy"


def test_names_that_differ_in_case_alone(tmp_path: Path) -> None:
    """NumPy keeps them apart; only torch's archives may not have them."""
    found = paramtool.load_file(save(tmp_path, W=np.ones(2), w=np.zeros(2)))
    assert {name: value.tolist() for name, value in found.items()} == {"W": [1, 1], "w": [0, 0]}


def test_roles_follow_the_words_of_names(tmp_path: Path) -> None:
    """As everywhere."""
    entries = paramtool.read(save(tmp_path, **{"aux:x": 1, "optimizer.m": 2, "w": 3})).entries
    assert {name: entry.role for name, entry in entries.items()} == {
        "aux:x": "buffer", "optimizer.m": "optimizer", "w": "model",
    }  # fmt: skip


class TestBfloat16:
    """NumPy has no name for it, and three forms are met."""

    VALUES = np.array([1, 2.5, -3], dtype="f4").astype(ml_dtypes.bfloat16)

    @pytest.mark.parametrize("descr", ["'<V2'", "'<b2'", "[('bfloat16', '<u2')]"])
    def test_forms(self, descr: str, tmp_path: Path) -> None:
        """All are read, and a note says who writes so."""
        text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (3,), }}"
        (tmp_path / "w.npy").write_bytes(npy(text, self.VALUES.tobytes()))
        assert paramtool.load_file(tmp_path / "w.npy")["arr_0"].tolist() == [1, 2.5, -3]
        (note,) = paramtool.read(tmp_path / "w.npy").notes
        assert "bfloat16" in note

    def test_as_ml_dtypes_writes_it(self, tmp_path: Path) -> None:
        """One note for all arrays."""
        path = save(tmp_path, a=self.VALUES, b=self.VALUES[:2])
        assert paramtool.read(path).notes == ("'<V2' is how ml_dtypes writes bfloat16: 2 arrays",)
        assert raw(paramtool.load_file(path)["a"]) == raw(self.VALUES)

    def test_as_mxnet_2_writes_it(self) -> None:
        """A structure of one field that is called so."""
        found = paramtool.load_file(MXNET2 / "bfloat16.npz")
        assert {name: value.tolist() for name, value in found.items()} == {"half": [1, 2.5, -3], "scalar": 3.0}

    def test_two_plain_bytes_are_not_bfloat16(self, tmp_path: Path) -> None:
        """`|V2` is NumPy's own void."""
        value = paramtool.read(save(tmp_path, w=np.zeros(3, "V2"))).entries["w"].value
        assert isinstance(value, Compound)
        assert value.kind == "NumPy |V2"


OTHERS = {
    "text": np.array(["row_sparse", "b"]),
    "bytes": np.array([b"abc"]),
    "date": np.array(["2020-01-01"], "M8[D]"),
    "span": np.array([1], "m8[s]"),
    "empty text": np.array([], "<U3"),
    "big text": np.array(["ab"], ">U2"),
    "structure": np.zeros((2, 3), [("a", "<f4"), ("b", "<i2", (2,))]),
    "no structures": np.zeros((0, 3), [("a", "<f4")]),
    "long double": np.ones((2,), np.longdouble),
    "float8": np.ones((4,), ml_dtypes.float8_e4m3fn),
}


@pytest.mark.parametrize("key", OTHERS)
@pytest.mark.parametrize("turned", [False, True], ids=["C", "F"])
def test_types_that_are_no_numbers_keep_their_bytes(key: str, turned: bool, tmp_path: Path) -> None:
    """A row of bytes for each element, named by NumPy's word for the type; dedup refuses them by name."""
    array = np.asfortranarray(OTHERS[key]) if turned else OTHERS[key]
    path = save(tmp_path, w=array, x=np.ones(3))
    value = paramtool.read(path).entries["w"].value
    assert isinstance(value, Compound)
    assert value.kind.startswith("NumPy ")
    found = paramtool.load_file(path)["w/bytes"]
    assert (found.shape, raw(found)) == ((*array.shape, array.itemsize if array.size else found.shape[-1]), raw(array))
    with pytest.raises(PlanError, match="'w': NumPy"):
        dedup_command.dedup(path, tmp_path / "out.safetensors")
    dedup_command.dedup(path, tmp_path / "out.safetensors", skip_unsupported=True)
    assert list(paramtool.load_file(tmp_path / "out.safetensors")) == ["x"]


class TestMxnet2:
    """Its parameters are an npz, whatever the extension says."""

    def test_names_and_values(self) -> None:
        """One flat vector, as its maker filled it."""
        found = paramtool.load_file(MXNET2 / "mxnet2_lstm.params")
        oracle = np.load(MXNET2 / "mxnet2_lstm.params")
        assert list(found) == ["enc.rnn_param", "out.weight", "out.bias"]
        assert all(raw(oracle[name]) == raw(found[name]) for name in oracle.files)

    def test_no_symbol_file_is_a_note(self) -> None:
        """A flat vector alone does not say what network it is."""
        assert paramtool.read(MXNET2 / "mxnet2_lstm.params").notes == (
            "there is no symbol file that describes its recurrent networks",
        )

    def test_sparse_folders_are_listed(self) -> None:
        """Its parts are tensors; the text that says the form has a broken header, and is read all the same."""
        found = paramtool.load_file(MXNET2 / "sparse.npz")
        assert list(found) == ["rows/data", "rows/indices", "rows/shape", "rows/format/bytes"]
        assert found["rows/shape"].tolist() == [5, 3]
        assert found["rows/format/bytes"].tobytes() == b"row_sparse"


@pytest.mark.parametrize("path", [MXNET2 / "mxnet2_lstm.params", ARRAYS / "compressed.npz", ARRAYS / "single.npy"])
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


@pytest.mark.parametrize("name", ["numpy_arrays.npz", "compressed.npz", "single.npy"])
def test_inspect_imports_nothing_heavy(name: str, tmp_path: Path) -> None:
    """NumPy's files are read without NumPy; names of recurrent networks ask all layouts, installed ones too."""
    (tmp_path / name).write_bytes((ARRAYS / name).read_bytes())
    assert not (HEAVY - {"paramtool.passes", "zipfile"}) & modules(tmp_path, "inspect", name)


def formats_of(path: Path) -> list[str]:
    """The rows of FORMATS that recognise a file."""
    head = path.read_bytes()[:4096]
    return [row.name for row in FORMATS if row.sniff(head, path.stat().st_size, str(path))]


def test_a_torch_archive_that_begins_with_an_array_is_torch(tmp_path: Path) -> None:
    """torch.jit.save puts extra files first, and they may be called anything."""
    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    writer.write_record("extra/w.npy", b"\x93NUMPY", 6)
    writer.write_end_of_file()
    (tmp_path / "model.pt").write_bytes(buffer.getvalue())
    assert zipfile.ZipFile(tmp_path / "model.pt").namelist()[0].endswith("extra/w.npy")
    assert formats_of(tmp_path / "model.pt") == ["torch"]


def test_every_truncation_of_a_deflated_archive_is_an_error(tmp_path: Path) -> None:
    """Wherever the file is cut, the directory is gone."""
    path = save(tmp_path, packed=True, w=np.arange(30.0), v=np.ones(2))
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError):
            paramtool.read(path)
