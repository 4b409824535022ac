"""Laws of windows: what a View says of its bytes is what NumPy's `as_strided` addresses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous, contiguous_strides, overlaps
from tests.examples import examples
from tests.laws.windows import byte_positions, element_positions, packed_views, views

law = settings(max_examples=examples(300), deadline=None)


@law
@given(views() | packed_views())
def test_the_span_is_from_the_first_byte_to_the_last(view: View) -> None:
    """`byte_start` and `byte_stop` are the least and the greatest byte that is addressed, exactly."""
    touched = byte_positions(view)
    expected = (min(touched), max(touched) + 1) if touched else (0, 0)
    assert expected == (view.byte_start, view.byte_stop)


@law
@given(views() | packed_views())
def test_nbytes_counts_every_element_of_the_shape(view: View) -> None:
    """`nbytes` is the length of the window written out, repeated elements included."""
    assert len(byte_positions(view)) == view.nbytes


@law
@given(views())
def test_contiguous_means_row_by_row_without_a_gap(view: View) -> None:
    """`is_contiguous` holds exactly where the elements are `offset`, `offset + 1`, ... in row-major order."""
    in_order = list(range(view.offset, view.offset + view.numel))
    assert (element_positions(view).flatten().tolist() == in_order) == view.is_contiguous


@law
@given(views())
def test_injective_windows_meet_no_element_twice(view: View) -> None:
    """`is_injective` is never True where an element is met twice."""
    if view.is_injective:
        met = element_positions(view).flatten().tolist()
        assert len(set(met)) == len(met)


@law
@given(st.lists(st.integers(1, 4), max_size=4), st.randoms())
def test_permuted_dense_windows_are_injective(shape: list[int], random: object) -> None:
    """Every permutation of a contiguous window is seen to be injective, so it can be stored dense."""
    axes = list(range(len(shape)))
    random.shuffle(axes)  # type: ignore[attr-defined]
    strides = contiguous_strides(shape)
    view = View(0, DTYPES["float32"], 0, tuple(shape[a] for a in axes), tuple(strides[a] for a in axes))
    assert view.is_injective


@law
@given(views(), st.integers(0, 1 << 40))
def test_the_stride_of_an_axis_of_length_one_says_nothing(view: View, other: int) -> None:
    """Windows that differ only in such a stride are equal."""
    strides = tuple(other if size == 1 else stride for size, stride in zip(view.shape, view.strides, strict=True))
    assert view == View(view.storage, view.dtype, view.offset, view.shape, strides)


@law
@given(views(max_offset=3), st.integers(0, 3), st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_equal_meaning_is_equal_value(a: View, offset: int, strides: list[int]) -> None:
    """Two windows of one dtype and shape that address the same elements in the same order are equal."""
    b = View(a.storage, a.dtype, offset, a.shape, tuple(strides[: len(a.shape)]))
    same = element_positions(a).flatten().tolist() == element_positions(b).flatten().tolist()
    assert same == (a == b)


@law
@given(views())
def test_the_normal_form_is_stable(view: View) -> None:
    """Making a window from a window's own numbers changes nothing, and equal windows have one hash."""
    again = View(view.storage, view.dtype, view.offset, view.shape, view.strides)
    assert (again, hash(again), repr(again)) == (view, hash(view), repr(view))


@law
@given(views() | packed_views(), st.integers(0, 64))
def test_on_moves_every_byte_by_the_same_distance(view: View, start: int) -> None:
    """`on` begins at the byte that is asked for, with the same pattern, or says that elements do not fall there."""
    if start % view.dtype.block_bytes:
        with pytest.raises(ValueError, match="not a multiple"):
            view.on("w", start)
        return
    moved = view.on("w", start)
    assert moved.storage == "w"
    assert byte_positions(moved) == [p - view.byte_start + start for p in byte_positions(view)]


@settings(max_examples=examples(1500), deadline=None)
@given(views() | packed_views(), views() | packed_views())
def test_overlap_is_a_common_byte(a: View, b: View) -> None:
    """`overlaps` is exact for small windows: True where one byte is addressed by both, else False."""
    assert bool(set(byte_positions(a)) & set(byte_positions(b))) == overlaps(a, b)


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_columns_of_one_matrix(left: int, right: int, data: st.DataObject) -> None:
    """Blocks of columns span each other; they overlap exactly where they have a column in common."""
    width = left + right
    rows = data.draw(st.integers(2, 6))
    start = data.draw(st.integers(0, left))
    dtype = DTYPES[data.draw(st.sampled_from(("uint8", "float32")))]
    a = View(0, dtype, 0, (rows, left), (width, 1))
    b = View(0, dtype, start, (rows, right), (width, 1))
    assert (start < left) == overlaps(a, b)


@law
@given(views(), views())
def test_overlap_is_symmetric(a: View, b: View) -> None:
    """Which of two windows is named first does not matter."""
    assert overlaps(a, b) == overlaps(b, a)


@law
@given(views(), views())
def test_other_storages_never_overlap(a: View, b: View) -> None:
    """Windows on different storages have nothing in common, whatever their numbers."""
    assert not overlaps(a, b.on(1, b.byte_start))


def test_a_search_that_is_too_long_answers_true() -> None:
    """Where the search gives up the answer is the safe one: they may share bytes."""
    sizes = (9973, 9967, 9949, 9941)
    a = View(0, DTYPES["uint8"], 0, (5000,) * 4, sizes)
    b = View(0, DTYPES["uint8"], 1, (5000,) * 4, sizes[::-1])
    assert overlaps(a, b)


@law
@given(st.lists(st.integers(0, 5), max_size=4), st.integers(0, 9))
def test_contiguous_is_contiguous(shape: list[int], offset: int) -> None:
    """`contiguous` makes what `is_contiguous` recognises, and NumPy has the same strides."""
    view = contiguous(0, DTYPES["float32"], shape, offset)
    assert view.is_contiguous
    if 0 not in shape:
        assert element_positions(view).flatten().tolist() == list(range(offset, offset + view.numel))
