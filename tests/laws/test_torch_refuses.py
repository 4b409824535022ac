"""torch is the judge of its pickles: what it refuses of the values that tensors and arrays are made of is not read.

In each place of what torch and NumPy write there stands, one after the other, every value of a few of each type.
"""

from __future__ import annotations

import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
from paramtool.errors import ParamtoolError
from paramtool.model.checkpoint import Unreadable
from tests.fuzz.judges import SAFE, types_kept


class Name(str):
    """A class or function by its name."""


class Call(tuple[Any, ...]):
    """A call: a function, its arguments, and perhaps a state that is set on what it made."""


class Stored(tuple[Any, ...]):
    """A persistent id."""


def opcodes(value: object) -> bytes:
    """A value as a pickle of protocol 2 or later."""
    match value:
        case Name():
            return "c{}\n{}\n".format(*value.rsplit(".", 1)).encode()
        case Call():
            made = Name(value[0]), value[1]
            return b"".join(map(opcodes, made)) + b"R" + b"".join(opcodes(state) + b"b" for state in value[2:])
        case Stored():
            return opcodes(tuple(value)) + b"Q"
        case OrderedDict():
            return opcodes(Call(("collections.OrderedDict", ())))
        case dict():
            return b"}(" + b"".join(map(opcodes, (part for pair in value.items() for part in pair))) + b"u"
        case list():
            return b"](" + b"".join(map(opcodes, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(opcodes, value)) + b"t"
        case bool() | None:
            return {True: b"\x88", False: b"\x89", None: b"N"}[value]
        case int():
            return b"\x8a\x10" + value.to_bytes(16, "little", signed=True)
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()
        case bytes():
            return opcodes(Call(("_codecs.encode", (value.decode("latin1"), "latin1"))))
    raise AssertionError(value)


ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, 3, 2**40, 2**63, 0.5, "", "x", "1", b"", b"x", (), (1,), (3,), (2, 3), (-1,), (0.5,), [3], {},
    {"a": 1}, {1: 2}, {"conj": True}, OrderedDict(), Name("torch.float32"), Name("torch.int64"), Name("torch.Tensor"),
    Name("numpy.ndarray"), Name("torch.FloatStorage"),
)  # fmt: skip
"""Values that stand in for others."""
STORED = Stored(("storage", Name("torch.FloatStorage"), "0", "cpu", 6))
TYPED = Call(("numpy.dtype", ("f4", False, True), (3, "<", None, None, None, -1, -1, 0)))
VALUES: dict[str, Any] = {
    "tensor": Call(("torch._utils._rebuild_tensor_v2", (STORED, 0, (2, 3), (3, 1), False, OrderedDict()))),
    "tensor with metadata": Call(
        ("torch._utils._rebuild_tensor_v2", (STORED, 0, (2, 3), (3, 1), True, OrderedDict(), {"neg": True}))
    ),
    "untyped": Call(
        ("torch._utils._rebuild_tensor_v3",
         (Stored(("storage", Name("torch.storage.UntypedStorage"), "0", "cpu", 24)), 0, (2, 3), (3, 1), False,
          OrderedDict(), Name("torch.float32"))),
    ),
    "whole numbers": Call(
        ("torch._utils._rebuild_tensor_v2",
         (Stored(("storage", Name("torch.IntStorage"), "0", "cpu", 6)), 0, (2, 3), (3, 1), False, OrderedDict())),
    ),
    "dtype": TYPED,
    "scalar": Call(("numpy._core.multiarray.scalar", (TYPED, b"abcd"))),
    "array": Call(
        ("numpy._core.multiarray._reconstruct", (Name("numpy.ndarray"), (0,), b"b"), (1, (1,), TYPED, False, b"abcd"))
    ),
}  # fmt: skip
VALUES["parameter"] = Call(("torch._utils._rebuild_parameter", (VALUES["tensor"], True, OrderedDict())))
VALUES["parameter with attributes"] = Call(
    ("torch._utils._rebuild_parameter_with_state", (VALUES["tensor"], True, OrderedDict(), {"a": 1}))
)
OF_MACHINES = ("Storage device not recognized", "don't know how to restore data location")
"""What torch says of devices that this machine lacks."""
THEIRS = (
    "must be a sub-type of ndarray", "argument 1 must be type", "as a data type", "dtypes.ObjectDType",
    "to a NumPy dtype", "a leaf Variable that requires grad",
)  # fmt: skip
"""What a class refuses that paramtool knows by its name alone, and what torch saves and fails to load."""


def odd(value: object) -> Iterator[object]:
    """A value with one of its parts replaced, left out or added, at any depth."""
    if isinstance(value, tuple):
        start = 1 if isinstance(value, Call) else 0
        for k in range(start, len(value)):
            yield from (type(value)((*value[:k], one, *value[k + 1 :])) for one in odd(value[k]))
        if not isinstance(value, Call):
            yield from (type(value)((*value[:k], *value[k + 1 :])) for k in range(len(value)))
            yield type(value)((*value, None))
    if not isinstance(value, tuple) or type(value) is tuple:
        yield from ODD


def write(path: Path, value: object) -> None:
    """An archive as torch.save writes it, with a tensor beside the value."""
    held = b"\x80\x02" + opcodes({"w": VALUES["tensor"], "x": value}) + b"."
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {"data.pkl": held, "byteorder": b"little", "data/0": bytes(24), "version": b"3\n"}.items():
            archive.writestr(f"a/{name}", data)


def refused_by_torch(path: Path) -> str:
    """Why torch refuses a file; empty where it does not, or for the machine alone."""
    try:
        with torch.serialization.safe_globals(list(SAFE)), types_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        return "" if any(words in str(error) for words in (*OF_MACHINES, *THEIRS)) else str(error) or repr(error)
    return ""


@pytest.mark.parametrize("name", VALUES)
def test_what_torch_refuses_is_not_read(name: str, tmp_path: Path) -> None:
    path, read = tmp_path / "m.pt", []
    write(path, VALUES[name])
    assert not refused_by_torch(path) and paramtool.read(path).entries
    for value in odd(VALUES[name]):
        write(path, value)
        try:
            found = paramtool.read(path)
        except ParamtoolError:
            continue
        if any(isinstance(entry.value, Unreadable) for entry in found.entries.values()):  # it is named
            continue
        if why := refused_by_torch(path):
            read.append((value, why[-200:]))
    assert read == []
