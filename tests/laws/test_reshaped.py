"""Laws of `reshaped`: a window in another shape is what NumPy's reshape gives, where that needs no copy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous, contiguous_strides, reshaped
from tests.examples import examples
from tests.laws.windows import element_positions, views
from tests.versions import needs


@st.composite
def shapes_of(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """A shape of so many elements, axes of length 1 among its own."""
    shape: list[int] = []
    while count > 1 and len(shape) < 5:
        size = draw(st.sampled_from([k for k in range(1, count + 1) if count % k == 0]))
        shape.append(size)
        count //= size
    return (*shape, count) if count != 1 or draw(st.booleans()) else tuple(shape)


@st.composite
def permuted(draw: st.DrawFn) -> View:
    """A window on a dense block whose axes stand in any order, with a gap behind some of them."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    strides, step = [0] * len(shape), draw(st.integers(1, 2))
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = step
        step *= shape[axis] + draw(st.sampled_from((0, 0, 1)))
    return View(0, DTYPES["float32"], draw(st.integers(0, 5)), tuple(shape), tuple(strides))


def by_numpy(view: View, shape: tuple[int, ...]) -> np.ndarray | None:
    """NumPy's reshape of the numbers of the elements, or None where it would have to copy."""
    numbers = element_positions(view)
    try:
        return np.reshape(numbers, shape, copy=False)
    except ValueError:
        return None


@needs("numpy", "2.1", "reshape(copy=False)")
@settings(max_examples=examples(800), deadline=None)
@given(permuted() | views(), st.data())
def test_reshaping_is_numpys(view: View, data: st.DataObject) -> None:
    """The same elements in the same order; None just where NumPy needs a copy."""
    shape = data.draw(shapes_of(view.numel)) if view.numel else (0, data.draw(st.integers(0, 3)))
    expected, found = by_numpy(view, shape), reshaped(view, shape)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.shape == shape
        assert element_positions(found).tolist() == expected.tolist()


@settings(max_examples=examples(200), deadline=None)
@given(permuted(), st.data())
def test_reshaping_back_gives_the_window(view: View, data: st.DataObject) -> None:
    """Where a window has another shape, that one has the window's shape, too."""
    there = reshaped(view, data.draw(shapes_of(view.numel)))
    assume(there is not None)
    assert there is not None and reshaped(there, view.shape) == view


@given(permuted(), st.lists(st.integers(0, 5), max_size=3))
def test_another_number_of_elements_is_none(view: View, shape: list[int]) -> None:
    """A shape with more or fewer elements is no shape of the window."""
    assume(prod(shape) != view.numel)
    assert reshaped(view, shape) is None


@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 6, 1), (3, 1, 2)])
def test_a_contiguous_window_has_every_shape(shape: tuple[int, ...]) -> None:
    """Row by row without a gap, any shape of the same length is a window."""
    view = contiguous(7, DTYPES["int16"], (2, 3), 5)
    assert reshaped(view, shape) == View(7, DTYPES["int16"], 5, shape, contiguous_strides(shape))
