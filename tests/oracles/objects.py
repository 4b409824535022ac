"""Objects that torch files hold, and whether two are the same; run by any Python with torch and NumPy, without pytest.

python objects.py save FOLDER          a file for each, made by torch.save
python objects.py same FOLDER FOLDER   exit status 1, and a line for each file that torch.load gives as another object
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import fractions
import pathlib
import sys
import types
import uuid
from typing import Any

import numpy as np
import torch

TABLE: dict[str, Any] = {
    "namespace": argparse.Namespace(lr=0.1, name="x", nested=argparse.Namespace(a=[1])),
    "empty namespace": argparse.Namespace(),
    "simple": types.SimpleNamespace(q=1, r={"k": (1, 2)}),
    "array": np.arange(6, dtype="f4").reshape(2, 3), "fortran": np.arange(6, dtype="f8").reshape(2, 3).T,
    "integers": np.arange(3), "no axes": np.array(3.0), "no elements": np.zeros((0, 3)),
    "flags": np.array([True, False]),
    "big-endian": np.arange(3, dtype=">f4"), "half": np.ones(3, "f2"), "complex array": np.ones(2, "c8"),
    "strings": np.array(["a", "bb"]), "bytes array": np.array([b"a", b"bb"]),
    "dates": np.array(["2020-01-01", "2021-02-03"], "M8[D]"), "spans": np.array([1, 2], "m8[25s]"),
    "records": np.zeros(2, [("a", "f4"), ("b", "i8", (2,))]),
    "float64": np.float64(2.5), "int64": np.int64(-3), "bool_": np.bool_(True), "str_": np.str_("hi"),
    "datetime64": np.datetime64("2020-01-01T00:00"), "complex64": np.complex64(1 + 2j),
    "dtype": np.dtype("f4"), "record dtype": np.dtype([("a", "f4")]), "type": np.float32,
    "range": range(3), "step": range(1, 10, 2), "slice": slice(1, None, 2),
    "path": pathlib.PurePosixPath("/a/b"), "relative": pathlib.Path("x/y.txt"),
    "windows": pathlib.PureWindowsPath("c:/x"),
    "date": datetime.date(2020, 1, 2), "time": datetime.time(1, 2, 3, 4), "delta": datetime.timedelta(1, 2, 3),
    "moment": datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
    "zoned": datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=1), "X")),
    "utc": datetime.timezone.utc,
    "decimal": decimal.Decimal("1.50"), "fraction": fractions.Fraction(3, 4), "id": uuid.UUID(int=3),
    "frozen": frozenset({1, (2, "x")}), "set": {1, (2, 3)}, "deque": collections.deque([1, [2]]),
    "ring": collections.deque([1, 2], 3), "lazy": collections.defaultdict(list, {"a": [1]}),
    "no factory": collections.defaultdict(None, {1: 2}), "counter": collections.Counter("aab"),
    **{f"lazy {kind.__name__}": collections.defaultdict(kind, {"a": kind()}) for kind in (dict, int, set, float)},
    **{f"class {kind.__name__}": kind for kind in (
        argparse.Namespace, pathlib.PurePosixPath, uuid.UUID, datetime.date, range, slice, collections.OrderedDict,
        collections.Counter, collections.deque, collections.defaultdict, frozenset, bytearray, complex, set, torch.Size,
        torch.device, np.ndarray)},
    "empty": [argparse.Namespace(), bytearray(), frozenset(), 0j],
    "types": [int, str, float, bool, bytes, list, dict, set, tuple, complex],
    "ordered": collections.OrderedDict(b=1, a=2), "complex": 1 - 2j, "bytes": b"\0\xff", "bytearray": bytearray(b"ab"),
    "size": torch.Size([1, 2]), "device": torch.device("cuda", 1), "torch dtype": torch.bfloat16,
    "layout": torch.strided, "scheme": torch.per_tensor_affine,
    "version": torch.__version__,
    "keys": {np.int64(3): "n", pathlib.PurePosixPath("z"): "p", (1, frozenset({2})): "t", 1.5: "f", None: 0, b"b": 1},
}  # fmt: skip


def same(a: Any, b: Any) -> None:
    """Assert that two values are the same: types, order, bytes, strides."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert [(type(k), k) for k in a] == [(type(k), k) for k in b]
        for key in a:
            same(a[key], b[key])
        assert getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
    elif isinstance(a, (list, tuple, collections.deque)):
        assert len(a) == len(b)
        assert getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
        assert torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.strides, a.tobytes()) == (b.dtype, b.shape, b.strides, b.tobytes())
    elif isinstance(a, (argparse.Namespace, types.SimpleNamespace)):
        same(vars(a), vars(b))
    else:
        assert a == b
        assert repr(a) == repr(b)


def save(folder: pathlib.Path) -> None:
    """One file for each object, beside a tensor."""
    for word, value in TABLE.items():
        torch.save({"w": torch.ones(2), "it": value}, folder / f"{word}.pt")


def differences(one: pathlib.Path, other: pathlib.Path) -> list[str]:
    """The files of a folder that another does not hold as the same objects."""
    found = []
    for path in sorted(one.iterdir()):
        try:
            for more in ({}, {"mmap": True}):
                same(*(torch.load(str(folder / path.name), weights_only=False, **more) for folder in (one, other)))
        except Exception as error:
            found.append(f"{path.name}: {type(error).__name__}: {error}")
    return found


if __name__ == "__main__":
    folders = [pathlib.Path(word) for word in sys.argv[2:]]
    if sys.argv[1] == "save":
        save(*folders)
    else:
        lines = differences(*folders)
        print(torch.__version__, np.__version__, *lines, sep="\n")
        sys.exit(bool(lines))
