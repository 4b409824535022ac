"""The law of damaged files: what paramtool reads of one, the format's own library reads as the same.

Where the library refuses a file, so does paramtool; that paramtool refuses more (a wrong CRC, a second member of one
name) is told in docs/formats.md.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import paramtool
from paramtool.errors import ParamtoolError
from tests.examples import IS_HARD

Arrays = Mapping[str, np.ndarray]


def changed(data: bytes, random: Random) -> bytes:
    """A file that is changed in one to three places, by a bit, a byte, a word, a piece moved or cut off."""
    raw = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(raw))
        match random.randrange(6):
            case 0:
                raw[at] ^= 1 << random.randrange(8)
            case 1:
                raw[at] = random.choice((0, 1, 0x20, 0x27, 0x2C, 0x7F, 0x80, 0xFF))
            case 2:
                raw[at : at + 4] = random.choice((b"\xff" * 4, bytes(4), random.randbytes(4)))
            case 3:
                other = random.randrange(len(raw))
                raw[at : at + 8] = raw[other : other + 8]
            case 4:
                raw[at:at] = random.choice((b"\0", b" ", b"L", b"1", raw[at : at + 4]))
            case 5:
                del raw[at : at + random.choice((1, 4))]
    return bytes(raw)


def npy(random: Random) -> bytes:
    """One array."""
    held = io.BytesIO()
    dtype = random.choice(("<f4", ">f8", "|i1", "<u2", "?", "<c8", "<i8", "<f2"))
    array = np.arange(random.choice((0, 1, 6))).astype(dtype).reshape(random.choice(((-1,), (-1, 1), (1, -1))))
    np.lib.format.write_array(held, np.asfortranarray(array) if random.random() < 0.3 else array)
    return held.getvalue()


def npy_header(random: Random) -> bytes:
    """One array whose header is changed, and is as long as it says."""
    data = npy(random)
    length = int.from_bytes(data[8:10], "little")
    text = changed(data[10 : 10 + length].rstrip(), random)
    text = text.replace(b"\n", b" ") + b" " * max(0, length - 1 - len(text)) + b"\n"
    return data[:8] + len(text).to_bytes(2, "little") + text + data[10 + length :]


def numpy_of(data: bytes) -> Arrays:
    return {"arr_0": np.load(io.BytesIO(data), allow_pickle=False)}


def npz(random: Random) -> bytes:
    """Two arrays, stored or deflated."""
    held = io.BytesIO()
    save = random.choice((np.savez, np.savez_compressed))
    save(held, a=np.arange(6, dtype="f4").reshape(2, 3), b=np.arange(3, dtype=">i4"))
    return held.getvalue()


def numpy_all(data: bytes) -> Arrays:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def pt(random: Random) -> bytes:
    """A state dict, in torch's zip form or the older one."""
    held = io.BytesIO()
    w = torch.arange(6.0).reshape(2, 3)
    torch.save({"w": w, "t": w.t(), "b": torch.ones(3, dtype=torch.int64), "epoch": 3}, held,
               _use_new_zipfile_serialization=random.random() < 0.7)  # fmt: skip
    return held.getvalue()


def torch_of(data: bytes) -> Arrays:
    found = torch.load(io.BytesIO(data), weights_only=True)
    if not isinstance(found, dict):
        raise ValueError("no dict")
    return {str(name): value.numpy() for name, value in found.items() if isinstance(value, torch.Tensor)}


def model(random: Random) -> bytes:
    """A graph of two constants."""
    arrays = {"w": np.arange(6, dtype="f4").reshape(2, 3), "b": np.arange(3, dtype="i8")}
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    made = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], held), producer_name="x")
    return bytes(made.SerializeToString())


def onnx_of(data: bytes) -> Arrays:
    found = onnx.load_model_from_string(data).graph.initializer
    return {one.name: numpy_helper.to_array(one) for one in found}


JUDGES: dict[str, tuple[Callable[[Random], bytes], Callable[[bytes], Arrays], str, int]] = {
    "npy": (npy, numpy_of, "m.npy", 400),
    "npy_header": (npy_header, numpy_of, "m.npy", 600),
    "npz": (npz, numpy_all, "m.npz", 200),
    "pt": (pt, torch_of, "m.pt", 250),
    "onnx": (model, onnx_of, "m.onnx", 300),
}
"""{format: (a maker, its library's reader, the name of the file, how many are made)}."""
LOOSER: dict[str, tuple[str, ...]] = {
    "npy": (), "npy_header": (), "npz": (),
    "pt": ("UnicodeDecodeError", "invalid literal for int()"),  # the archive's id, and its version and alignment
    "onnx": ("Wire format was corrupt",),  # a message that says nothing of tensors
}  # fmt: skip
"""What a library says of a file that paramtool reads, because it reads what no tensor depends on: docs/formats.md."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("key", JUDGES)
def test_what_is_read_is_what_the_library_reads(key: str, tmp_path: Path) -> None:
    """Names, types, shapes and elements; and a library that refuses is not contradicted."""
    make, library, name, count = JUDGES[key]
    outcomes: Counter[str] = Counter()
    for seed in range(count * (50 if IS_HARD else 1)):
        random = Random(seed)
        data = make(random)
        data = data if key == "npy_header" else changed(data, random)
        (tmp_path / name).write_bytes(data)
        try:
            mine: Arrays = paramtool.load_file(tmp_path / name)
        except ParamtoolError:
            outcomes["refused"] += 1
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                theirs = library(data)
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
                assert any(known in words for known in LOOSER[key]), (seed, words[:300], list(mine))
                outcomes["looser"] += 1
                continue
        assert {name: described(array) for name, array in mine.items()} == {
            name: described(array) for name, array in theirs.items()
        }, seed
        outcomes["read"] += 1
    assert outcomes["read"] >= count // 60 < outcomes["refused"], outcomes
    assert outcomes["looser"] <= count // 50 * (50 if IS_HARD else 1), outcomes


def described(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """An array without regard to the order of its bytes and axes."""
    little = array.astype(array.dtype.newbyteorder("<"))
    return little.dtype.str, array.shape, little.tobytes()
