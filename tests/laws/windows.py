"""Random windows, and what they address by brute force: NumPy's `as_strided` is the judge."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from paramtool.model.dtype import DTYPES
from paramtool.model.view import View

SIZES = ("uint8", "int16", "bfloat16", "float32", "complex64", "complex128")
"""Names of dtypes with 1, 2, 2, 4, 8 and 16 bytes."""


def element_positions(view: View) -> np.ndarray:
    """The element of the storage that each element of a window is, in the window's own shape."""
    numbers = np.arange(view.offset + view.extent + 1, dtype=np.int64)
    strides = [stride * numbers.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(numbers[view.offset :], view.shape, strides, writeable=False)


def byte_positions(view: View) -> list[int]:
    """The byte of the storage that each byte of a window is, in row-major order."""
    size = view.dtype.block_bytes
    if view.dtype.block_elements != 1:
        return list(range(view.byte_start, view.byte_stop))
    return [int(element) * size + k for element in element_positions(view).flat for k in range(size)]


@st.composite
def views(draw: st.DrawFn, max_axes: int = 3, max_size: int = 4, max_stride: int = 9, max_offset: int = 24) -> View:
    """Any window: gaps, overlaps within itself, stride 0, axes of length 0 and 1."""
    dtype = DTYPES[draw(st.sampled_from(SIZES))]
    shape = draw(st.lists(st.integers(0, max_size), max_size=max_axes))
    strides = [draw(st.integers(0, max_stride)) for _ in shape]
    return View(0, dtype, draw(st.integers(0, max_offset)), tuple(shape), tuple(strides))


@st.composite
def packed_views(draw: st.DrawFn) -> View:
    """A contiguous window of a type that packs several elements into a block."""
    dtype = DTYPES[draw(st.sampled_from(("float4_e2m1fn", "float6_e2m3fn")))]
    count = draw(st.integers(0, 6)) * dtype.block_elements
    return View(0, dtype, draw(st.integers(0, 6)) * dtype.block_elements, (count,), (1,))
