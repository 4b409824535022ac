"""Pickles of NumPy arrays, against Python's own pickle, which runs files that this project made itself."""

from __future__ import annotations

import io
import os
import pickle
import tracemalloc
from pathlib import Path
from struct import pack
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import paramtool
from paramtool.errors import FormatError, UnsafeError
from paramtool.formats import read_file, sniff
from paramtool.model.storage import ByteRange, Encoded, Inline
from tests.hostile.command import quick
from tests.versions import needs

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "fixtures" / "pickle").glob("*/*.pkl"))
PROTOCOLS = range(6)


def same(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have one shape and equal elements; a file's byte order is not kept."""
    little = expected.astype(expected.dtype.newbyteorder("<"))
    return found.shape == expected.shape and found.tobytes() == little.tobytes()


NUMPY_2 = needs("numpy", "2", "opens pickles of NumPy 2")


def arrays_of(value: Any, path: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of numbers in a value, by their paths."""
    if isinstance(value, np.ndarray):
        is_number = value.dtype.kind in "biufc" or value.dtype == ml_dtypes.bfloat16
        return {path: value} if is_number else {}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return {k: v for key, child in pairs for k, v in arrays_of(child, f"{path}.{key}" if path else str(key)).items()}


@NUMPY_2
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
@pytest.mark.filterwarnings("ignore:numpy.core")
def test_what_pickle_loads(path: Path) -> None:
    """Names, values and sharing of every protocol, of NumPy 1 and 2, and of Python 2's strings."""
    expected = arrays_of(pickle.loads(path.read_bytes(), encoding="latin1"))
    found = paramtool.load_file(path)
    assert found.keys() == expected.keys() and len(found) >= 9
    for name, value in expected.items():
        assert same(found[name], value), name
    entries = paramtool.read(path).entries
    for one in expected:
        for other in expected:
            is_shared = entries[one].value.storage == entries[other].value.storage
            assert is_shared == (expected[one] is expected[other]), (one, other)


@NUMPY_2
def test_a_file_of_python_2() -> None:
    """NumPy's own tests have one that Python 2 wrote (`test_astype_copy` in test_regression.py)."""
    path = Path(np._core.__file__).parent / "tests" / "data" / "astype_copy.pkl"
    if not path.is_file():
        pytest.skip("this NumPy has no tests")
    data = path.read_bytes()
    assert b"U\x02f8" in data  # a string of Python 2
    expected = pickle.loads(data, encoding="latin1")
    assert same(paramtool.load_file(path)["tensor"], expected)


def test_where_the_bytes_are() -> None:
    """In protocols 3 to 5 nothing but big-endian numbers is decoded; the text of the others is."""
    for path in FILES:
        backings = [storage.backing for storage in paramtool.read(path).storages.values()]
        steps = {step for one in backings if isinstance(one, Encoded) for step in one.steps}
        if path.stem in ("protocol3", "protocol4", "protocol5", "numpy_arrays", "numpy1-protocol5"):
            assert steps == {"swap8"} and not any(isinstance(one, Inline) for one in backings)
        elif path.parent.name == "numpy_arrays":
            assert steps & {"utf8", "unicode"} and not any(isinstance(one, ByteRange) for one in backings)
        else:
            assert ("string" in steps) == (path.stem == "protocol0")


STRINGS = st.binary(max_size=40) | st.text(max_size=20).map(str.encode) | st.binary(min_size=1500, max_size=1600)
DTYPES = (
    hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(sizes=(16, 32, 64), endianness="?")
    | hnp.complex_number_dtypes(sizes=(64, 128), endianness="?")
    | hnp.boolean_dtypes()
)


@st.composite
def trees(draw: st.DrawFn) -> Any:
    """Arrays of all types, shapes and orders in dicts and lists, some of them twice."""
    arrays = []
    for _ in range(draw(st.integers(1, 4))):
        array = draw(hnp.arrays(draw(DTYPES), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))
        half = array[..., ::2] if array.ndim else array
        arrays.append(draw(st.sampled_from([array, np.asfortranarray(array), array.T, half])))
    leaves = st.sampled_from(arrays) | st.integers() | STRINGS | st.text() | st.none()
    keys = st.text("ab.", max_size=3)
    containers = st.lists(leaves, max_size=3) | st.dictionaries(keys, leaves | st.lists(leaves, max_size=2), max_size=3)
    inside = leaves | containers
    return {"first": arrays[0], "more": draw(inside)}


@given(trees(), st.sampled_from(PROTOCOLS))
def test_pickle_is_the_judge(tmp_path_factory: pytest.TempPathFactory, value: Any, protocol: int) -> None:
    """Whatever is pickled comes back with equal values."""
    path = tmp_path_factory.mktemp("law") / "x.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    expected = list(arrays_of(value).values())
    found = list(paramtool.load_file(path).values())
    assert len(found) == len(expected) and all(map(same, found, expected))


@given(STRINGS, st.sampled_from((0, 1, 2)))
def test_strings_of_python_2(tmp_path_factory: pytest.TempPathFactory, data: bytes, protocol: int) -> None:
    """The bytes of an array come back whatever they spell: text, UTF-8, escapes."""
    path = tmp_path_factory.mktemp("law") / "x.pkl"
    path.write_bytes(python2({"w": np.frombuffer(data, "u1"), "t": data}, protocol))
    assert paramtool.load_file(path)["w"].tobytes() == data


def python2(value: Any, protocol: int) -> bytes:
    """A pickle as the fixture's maker writes it."""
    import runpy

    made = io.BytesIO()
    MAKER.setdefault("kind", runpy.run_path(str(ROOT / "fixtures/pickle/python2/make.py"))["Python2"])
    MAKER["kind"](made, protocol).dump(value)
    return made.getvalue()


MAKER: dict[str, Any] = {}


@pytest.mark.sample(2)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_truncation(tmp_path: Path, protocol: int) -> None:
    """Cut after any byte, a pickle is an error: of text as well as of bytes."""
    whole = pickle.dumps({"w": np.arange(3, dtype="f4"), "v": np.arange(300, dtype="u1")}, protocol)
    path = tmp_path / "x.pkl"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            read_file(str(path))


def test_several_pickles(tmp_path: Path) -> None:
    """One after the other, as programs that call dump twice write them."""
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(np.ones(2), 2) + pickle.dumps({"w": np.zeros(3)}, 4) + b"junk")
    found = paramtool.read(tmp_path / "x.pkl")
    assert list(found.entries) == ["0", "1.w"] and found.left_out == ("4 bytes after the pickle were not read",)


def rewritten(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


WHOLE = pickle.dumps({"w": np.arange(6, dtype="<f4").reshape(2, 3)}, 3)
LIES = {
    "another shape": (rewritten(WHOLE, b"K\2K\3\x86", b"K\2K\4\x86"), "needs 32 bytes; found 24"),
    "a huge shape": (rewritten(WHOLE, b"K\2K\3\x86", b"J\xff\xff\xff\x7fK\3\x86"), "found 24"),
    "a wider type": (rewritten(WHOLE, b"f4", b"f8"), "needs 48 bytes; found 24"),
    "a longer string": (rewritten(WHOLE, b"C\x18", b"C\xff"), "pickle byte"),
    "an unknown opcode": (b"\x80\x03\xff.", "the opcode 0xff"),
    "an unknown order": (rewritten(WHOLE, b"X\1\0\0\0<", b"X\1\0\0\0!"), "holds no NumPy arrays"),
    "a negative axis": (rewritten(WHOLE, b"K\2K\3\x86", b"J\xff\xff\xff\xffK\3\x86"), "whole numbers"),
    "protocol 6": (b"\x80\x06" + WHOLE[2:], "not in a format"),
}


@pytest.mark.parametrize("what", LIES)
def test_sizes_that_lie(tmp_path: Path, what: str) -> None:
    data, says = LIES[what]
    (tmp_path / "x.pkl").write_bytes(data)
    with pytest.raises(FormatError, match=says):
        read_file(str(tmp_path / "x.pkl"))


@pytest.mark.parametrize(("old", "new"), [(b"\\x00", b"\\xzz"), (b"\\x00", b"\\q00"), (b"\\x01'", b"\\x0'")])
def test_damaged_escapes(tmp_path: Path, old: bytes, new: bytes) -> None:
    """The text of an array is checked where it is decoded."""
    data = python2({"w": np.array([0] * 999 + [1], "u1")}, 0)
    (tmp_path / "x.pkl").write_bytes(data.replace(old, new, 1))
    assert sniff.is_pickle(data, len(data))
    with pytest.raises(FormatError, match=r"damaged|decodes to"):
        paramtool.load_file(tmp_path / "x.pkl")


def test_damaged_utf8(tmp_path: Path) -> None:
    data = pickle.dumps({"w": np.arange(256, dtype="u1").repeat(8)}, 2)
    (tmp_path / "x.pkl").write_bytes(data.replace(b"\xc3\xbf", b"\xff\xff"))
    with pytest.raises(FormatError, match="is damaged"):
        paramtool.load_file(tmp_path / "x.pkl")


def test_nothing_is_called(tmp_path: Path) -> None:
    """As in torch files: what is called is listed, exit code 4; a class that only holds data is named."""
    class_ = b"cmylib\nModel\n)\x81}X\1\0\0\0w" + WHOLE[WHOLE.index(b"cnumpy") : -2] + b"sb."
    (tmp_path / "data.pkl").write_bytes(b"\x80\x03" + class_)
    (tmp_path / "evil.pkl").write_bytes(WHOLE[:-1] + b"0cposix\nsystem\nX\2\0\0\0ls\x85R." + WHOLE)
    ran = quick("inspect", "data.pkl", cwd=tmp_path)
    assert ran.code == 0 and "mylib.Model" in ran.out + ran.err, ran
    ran = quick("inspect", "evil.pkl", cwd=tmp_path)
    assert ran.code == 4 and "posix.system" in ran.err, ran
    ran = quick("dedup", "evil.pkl", "-o", "x.safetensors", cwd=tmp_path)
    assert ran.code == 4 and not (tmp_path / "x.safetensors").exists(), ran
    with pytest.raises(UnsafeError):
        paramtool.read(tmp_path / "evil.pkl")


OTHERS = {
    "no arrays": (pickle.dumps({"a": [1]}), "holds no NumPy arrays"),
    "objects": (pickle.dumps({"a": np.array([None])}), "holds no NumPy arrays"),
    "torch": (b"\x80\x02X\7\0\0\0storageq\0" + b"\x85Q.", "the storages of a torch archive"),
    "joblib": (b"\x80\x02cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81.", "joblib"),
    "tensors": (b"\x80\x02ctorch.storage\n_load_from_bytes\nC\1x\x85R.", "a pickle of torch tensors"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_pickles_of_something_else(tmp_path: Path, what: str) -> None:
    data, says = OTHERS[what]
    (tmp_path / "x.pkl").write_bytes(data)
    with pytest.raises(FormatError, match=says):
        read_file(str(tmp_path / "x.pkl"))


def test_a_large_array_is_not_read(tmp_path: Path) -> None:
    """2 GB of one array, which take no space on the disk: described in a few megabytes, and from its first bytes."""
    count = 2 << 30
    head, _, tail = pickle.dumps({"w": np.zeros(1000, "u1"), "b": np.ones(3)}, 4).partition(b"B\xe8\3\0\0")
    head = head.replace(b"M\xe8\3\x85", b"J" + pack("<i", count - 1 << 0) + b"\x85")
    path = tmp_path / "x.pkl"
    with path.open("wb") as file:
        frame = head[:2] + head[11:]  # without its first frame, whose length no longer fits
        file.write(frame + b"\x8e" + pack("<Q", count - 1))
        file.seek(count - 1, os.SEEK_CUR)
        file.write(tail[1000:])
    tracemalloc.start()
    found = paramtool.read(path)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert found.entries["w"].value.shape == (count - 1,) and found.entries["b"].value.shape == (3,)


class Closed(pickle.Unpickler):
    """Loads what NumPy's arrays are made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"{module}.{name}")


@NUMPY_2
def test_a_real_file(samples: Path, tmp_path: Path) -> None:
    """g2pM's weights: torch's names in a dict of arrays; read, converted as from a torch file, and back."""
    path = samples / "kakaobrain__g2pm__np_ckpt.pkl"
    with path.open("rb") as file:
        expected = Closed(file).load()
    found = paramtool.load_file(path)
    assert found.keys() == expected.keys() and all(same(found[name], value) for name, value in expected.items())
    for words in (("--to", "cudnn", "-o", "fused.safetensors"), ("--to", "onnx", "-o", "onnx.safetensors")):
        assert quick("convert", str(path), *words, cwd=tmp_path).code == 0
    assert quick("convert", "fused.safetensors", "--to", "torch", "-o", "back.safetensors", cwd=tmp_path).code == 0
    back = paramtool.load_file(tmp_path / "back.safetensors")
    assert all(same(back[name], value) for name, value in expected.items())


def test_torch_opens_what_a_pickle_becomes(tmp_path: Path) -> None:
    """As `.pt` the arrays are tensors, in Fortran's order, too."""
    import torch

    weight = np.arange(12, dtype="<f4").reshape(3, 4)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"w": weight, "tied": weight, "f": np.asfortranarray(weight)}, 4))
    assert quick("dedup", "x.pkl", "-o", "x.pt", cwd=tmp_path).code == 0
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    assert all(torch.equal(value, torch.from_numpy(weight)) for value in found.values())
    assert found["w"].data_ptr() == found["tied"].data_ptr() and set(found) == {"w", "tied", "f"}


def test_paddle_says_so() -> None:
    assert paramtool.read(ROOT / "fixtures/pickle/paddle/paddle.pdparams").format == "paddle pickle"
