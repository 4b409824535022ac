"""Operations on places against the same operations on arrays of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.parts import operations
from paramtool.parts.operations import Misfit, stored
from paramtool.parts.pieces import Stored, whole
from tests.dialects.asking_transformers import numbered, values_of

Array = np.ndarray[Any, Any]
SHAPES = st.lists(st.integers(1, 4).map(lambda k: 2 * k), min_size=2, max_size=3).map(tuple)
Step = tuple[Callable[[Stored], Stored], Callable[[Array], Array]]


def holds(made: Stored, expected: Array, parts: dict[str, Array]) -> None:
    one = stored("made", made)
    assert one.shape == expected.shape
    assert (values_of(one, parts) == expected).all()


def shuffles(size: int, axis: int, draw: Any) -> Step:
    heads = draw(st.sampled_from([k for k in range(1, size + 1) if size % (2 * k) == 0]))
    half = size // heads // 2
    lengths, order = draw(st.sampled_from([((heads, half, 2), (0, 2, 1)), ((heads, 2, half), (0, 2, 1))]))

    def of_array(array: Array) -> Array:
        moved = np.moveaxis(array, axis, 0)
        digits = moved.reshape(*lengths, *moved.shape[1:])
        return np.moveaxis(digits.swapaxes(1, 2).reshape(moved.shape), 0, axis)

    return lambda tensor: operations.shuffled(tensor, axis, lengths, order), of_array


@given(st.data())
def test_a_shuffle_and_a_window_of_it(data: st.DataObject) -> None:
    """Interleave, Chunk and PermuteForRope; each second row of a part is not one box of it."""
    shape = data.draw(SHAPES)
    axis = data.draw(st.integers(0, len(shape) - 1))
    parts = numbered({"a": shape})
    places, array = shuffles(shape[axis], axis, data.draw)
    made, expected = places(whole("a", shape)), array(parts["a"])
    holds(made, expected, parts)
    first = data.draw(st.integers(0, shape[axis] - 1))
    length = data.draw(st.integers(1, shape[axis] - first))
    cut = np.take(expected, range(first, first + length), axis)
    holds(operations.window(made, axis, first, length), cut, parts)


@given(st.data())
def test_groups_of_an_axis_and_a_window_of_them(data: st.DataObject) -> None:
    """Inkling2LoopMergeMessageQueries: two rows for each layer."""
    shape = data.draw(SHAPES)
    axis = data.draw(st.integers(0, len(shape) - 1))
    length = data.draw(st.sampled_from([k for k in range(1, shape[axis] + 1) if shape[axis] % k == 0]))
    parts = numbered({"a": shape})
    made = operations.unflattened(whole("a", shape), axis, length)
    expected = parts["a"].reshape(*shape[:axis], -1, length, *shape[axis + 1 :])
    holds(made, expected, parts)
    first = data.draw(st.integers(0, length - 1))
    holds(operations.window(made, axis + 1, first, 1), np.take(expected, [first], axis + 1), parts)
    with pytest.raises(Misfit, match="without groups"):
        operations.unflattened(whole("a", shape), axis, shape[axis] + 1)


@given(st.data())
def test_a_window_and_a_shuffle_of_it(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    axis = data.draw(st.integers(0, len(shape) - 1))
    parts = numbered({"a": shape})
    half = shape[axis] // 2
    if half % 2:
        return
    places, array = shuffles(half, axis, data.draw)
    second = operations.window(whole("a", shape), axis, half, half)
    holds(places(second), array(np.take(parts["a"], range(half, 2 * half), axis)), parts)


@given(SHAPES, st.integers(1, 4), st.data())
def test_stacks_side_by_side(shape: tuple[int, ...], count: int, data: st.DataObject) -> None:
    """MergeModulelist and Concatenate; parts of unequal size; then the axes exchanged."""
    axis = data.draw(st.integers(1, len(shape)))
    other = list(shape)
    other[axis - 1] = data.draw(st.integers(1, 5))
    names = {f"a{k}": shape for k in range(count)} | {f"b{k}": tuple(other) for k in range(count)}
    parts = numbered(names)
    stacks = [operations.stacked([whole(f"{n}{k}", names[f"{n}{k}"]) for k in range(count)], 0) for n in "ab"]
    made = operations.side_by_side(stacks, axis)
    arrays = [np.stack([parts[f"{n}{k}"] for k in range(count)]) for n in "ab"]
    expected = np.concatenate(arrays, axis)
    holds(made, expected, parts)
    holds(operations.swapped(made, 1, 2), expected.swapaxes(1, 2), parts)


@given(st.lists(st.integers(1, 3), min_size=5, max_size=5).map(tuple))
def test_kernels_as_rows(shape: tuple[int, ...]) -> None:
    parts = numbered({"a": shape})
    holds(operations.flattened(whole("a", shape)), parts["a"].reshape(shape[0], -1), parts)


@pytest.mark.parametrize(
    "shapes, call",
    [
        ([(2, 3), (2, 4)], lambda tensors: operations.stacked(tensors, 0)),
        ([(2, 3), (2, 4)], lambda tensors: operations.side_by_side(tensors, 0)),
        ([(2, 3)], lambda tensors: operations.side_by_side(tensors, 2)),
        ([(2, 3)], lambda tensors: operations.swapped(tensors[0], 1, 2)),
        ([(6, 3)], lambda tensors: operations.shuffled(tensors[0], 0, (4, 2), (1, 0))),
        ([(6, 3, 1)], lambda tensors: operations.flattened(tensors[0])),
    ],
)
def test_what_does_not_fit(shapes: Sequence[tuple[int, ...]], call: Callable[[list[Stored]], object]) -> None:
    with pytest.raises(Misfit, match=r"\["):
        call([whole(f"a{k}", shape) for k, shape in enumerate(shapes)])
