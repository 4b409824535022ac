"""The largest difference of two windows is what NumPy finds of the whole arrays at once."""

from __future__ import annotations

import math
import os
import tempfile

import ml_dtypes  # noqa: F401 - gives NumPy bfloat16
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.engine.compare.changes import largest
from paramtool.engine.read import blocks, open_files, source
from paramtool.engine.read.source import Source
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import ByteRange, SourceFile, Storage
from paramtool.model.view import View, contiguous
from tests.laws.windows import element_positions

NUMBERS = ("bool", "uint8", "int16", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "complex64")


def between(a: View, b: View, data: tuple[bytes, bytes]) -> float | None:
    """The largest difference of windows on two storages in one file."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(data[0] + data[1])
    status = os.stat(file.name)
    first = len(data[0])
    ranges = ((0, 0, first), (1, first, status.st_size))
    storages = {k: Storage(k, stop - start, ByteRange(file.name, start, stop)) for k, start, stop in ranges}
    files = (SourceFile(file.name, status.st_size, status.st_mtime_ns),)
    try:
        with Source(Checkpoint("raw", files, storages, {"a": Entry(a), "b": Entry(b)})) as opened:
            return largest(opened, a, opened, b)
    finally:
        os.unlink(file.name)


def by_numpy(a: np.ndarray, b: np.ndarray) -> float:
    """The same question asked one element after the other, integers in Python's own."""
    apart = [0.0]
    for x, y in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True):
        if isinstance(x, complex) or isinstance(y, complex):
            x, y = complex(x), complex(y)
            both = all(math.isnan(z.real) or math.isnan(z.imag) for z in (x, y))
        else:
            both = x != x and y != y
        if x == y or both:
            continue
        with np.errstate(all="ignore"):
            gap = float(np.abs(np.complex128(x) - np.complex128(y))) if isinstance(x, complex) else float(abs(x - y))
        apart.append(math.inf if math.isnan(gap) else gap)
    return max(apart)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[View, View, tuple[bytes, bytes]]:
    """Two windows of one shape, each with strides of its own, on random bytes: NaNs and infinities are among them."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    names = [draw(st.sampled_from(NUMBERS))]
    names.append(draw(st.sampled_from([*names, *names, *NUMBERS])))
    found, data = [], []
    for number, name in enumerate(names):
        strides = tuple(draw(st.integers(0, 9)) for _ in shape)
        view = View(number, DTYPES[name], draw(st.integers(0, 3)), shape, strides)
        nbytes = max(view.byte_stop, 1)
        raw = draw(st.binary(min_size=nbytes, max_size=nbytes))
        data.append(bytes(byte & 1 for byte in raw) if name == "bool" else raw)
        found.append(view)
    return found[0], found[1], (data[0], data[1])


@given(pairs(), st.integers(1, 64))
def test_the_largest_difference_is_numpys(pair, block):
    """Whatever the geometry, the types and the size of the blocks."""
    a, b, data = pair
    arrays = []
    for view, raw in zip((a, b), data, strict=True):
        whole = np.frombuffer(raw[: len(raw) // view.dtype.block_bytes * view.dtype.block_bytes], view.dtype.name)
        arrays.append(whole[element_positions(view)] if view.numel else whole[:0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_files, "CHUNK_NBYTES", block)
        patch.setattr(source, "BLOCK_NBYTES", max(block, 16))
        patch.setattr(blocks, "BLOCK_NBYTES", max(block, 16))
        found = between(a, b, data)
    expected = by_numpy(*arrays)
    exact = a.dtype == b.dtype and "complex" not in a.dtype.name
    assert found == (expected if exact else pytest.approx(expected, rel=1e-9))


def test_what_has_no_difference():
    """Shapes that differ, and types without numbers, are no question; it is not answered with a number."""
    row, wide = contiguous(0, DTYPES["float32"], (2,)), contiguous(1, DTYPES["float32"], (1, 2))
    assert between(row, wide, (bytes(8), bytes(8))) is None
    packed = contiguous(0, DTYPES["float4_e2m1fn"], (2,)), contiguous(1, DTYPES["float4_e2m1fn"], (2,))
    assert between(*packed, (b"\1", b"\2")) is None
    quantised = contiguous(0, DTYPES["qint8"], (2,)), contiguous(1, DTYPES["qint8"], (2,))
    assert between(*quantised, (b"\1\1", b"\2\2")) is None
