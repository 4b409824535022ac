"""Laws of pieces: what two tensors have in common is what a walk over all elements finds."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paramtool.model.dtype import DTYPES
from paramtool.model.view import contiguous
from paramtool.parts.pieces import Digit, Digits, Piece, Stored, joined, whole
from tests.parts.moving import elements, moved, numbered, strided

PART = "w"
LENGTHS = (1, 2, 3, 4, 6, 7, 8, 12, 24, 30)


@st.composite
def radixes(draw: st.DrawFn, length: int) -> list[int]:
    """Lengths of digits that multiply to a length."""
    found = []
    while length > 1:
        factors = [k for k in range(2, length + 1) if length % k == 0]
        found.append(draw(st.sampled_from(factors)))
        length //= found[-1]
    return draw(st.permutations(found))


@st.composite
def laid(draw: st.DrawFn, name: str, shape: tuple[int, ...], starts: tuple[int, ...] | None = None) -> Stored:
    """A tensor that holds a box of a part, its digits in any order along two axes, behind a margin."""
    flat = [(k, length) for k, size in enumerate(shape) for length in draw(radixes(size))]
    order = draw(st.permutations(range(len(flat))))
    margin = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    steps, placed = [1, 1], dict[int, Digit]()
    for k in order:
        axis = draw(st.integers(0, 1))
        placed[k] = Digit(flat[k][1], axis, steps[axis])
        steps[axis] *= flat[k][1]
    digits: list[Digits] = [
        tuple(placed[k] for k, (axis, _) in enumerate(flat) if axis == one) or (Digit(1, 0, 1),)
        for one in range(len(shape))
    ]
    piece = Piece(PART, starts or (0,) * len(shape), tuple(digits), margin)
    return Stored(name, (steps[0] + margin[0], steps[1] + margin[1]), (piece,))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Stored, Stored]:
    """Two tensors, each with a box of one part."""

    def one(name: str) -> Stored:
        shape = draw(st.tuples(st.sampled_from(LENGTHS), st.sampled_from((1, 2, 3, 4, 6))))
        return draw(laid(name, shape, draw(st.tuples(st.integers(0, 9), st.integers(0, 3)))))

    return one("a"), one("b")


@given(boxes())
def test_joined_is_what_a_walk_over_all_elements_finds(both: tuple[Stored, Stored]) -> None:
    """Every common element once, at its place in both; nothing else."""
    mine, other = elements(both[0].pieces[0]), elements(both[1].pieces[0])
    found: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for pair in joined(both[0].pieces, both[1].pieces):
        assert pair.mine.start == pair.other.start
        assert [[d.length for d in axis] for axis in pair.mine.digits] == [
            [d.length for d in axis] for axis in pair.other.digits
        ]
        here, there = elements(pair.mine), elements(pair.other)
        assert not found.keys() & here.keys()
        found |= {index: (here[index], there[index]) for index in here}
    assert found == {index: (mine[index], other[index]) for index in mine.keys() & other.keys()}


@given(boxes())
def test_a_view_shows_what_an_index_finds(both: tuple[Stored, Stored]) -> None:
    """The view of a piece, in the order of the part, is the tensor indexed element by element."""
    tensor, _ = both
    piece = tensor.pieces[0]
    array = numbered([tensor])[tensor.name]
    shown = strided(array, piece.view(contiguous("a", DTYPES["int64"], tensor.shape)))
    assert (
        shown.reshape(piece.shape).tolist()
        == np.array([array[index] for index in elements(piece).values()]).reshape(piece.shape).tolist()
    )


@st.composite
def three_of_one(draw: st.DrawFn) -> list[Stored]:
    """Three tensors that each hold all of one part, in any digits."""
    shape = draw(st.tuples(st.sampled_from(LENGTHS), st.sampled_from((1, 2, 3, 4, 6))))
    return [draw(laid(name, shape)) for name in "abc"]


@given(three_of_one())
def test_two_steps_are_one(tensors: list[Stored]) -> None:
    """A to B to C is A to C, and A to B to A is A where B holds all that A does."""
    a, b, c = tensors
    start = numbered([whole("p", a.pieces[0].shape, PART)])
    first = moved([whole("p", a.pieces[0].shape, PART)], start, [a])
    by_b = moved([b], moved([a], first, [b]), [c])
    straight = moved([a], first, [c])
    assert by_b["c"].tolist() == straight["c"].tolist()
    assert sorted(straight["c"][straight["c"] >= 0].tolist()) == list(range(prod(a.pieces[0].shape)))
    assert moved([b], moved([a], first, [b]), [a])["a"].tolist() == first["a"].tolist()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_a_part_cut_in_boxes_comes_together(shape: list[int], data: st.DataObject) -> None:
    """A part in boxes, each a tensor of its own, is the part again; the boxes may be in any order."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    cuts = sorted({0, shape[axis], *data.draw(st.lists(st.integers(0, shape[axis])))})
    boxed = []
    for k, (low, high) in enumerate(pairwise(cuts)):
        size = (*shape[:axis], high - low, *shape[axis + 1 :])
        start = tuple(low if one == axis else 0 for one in range(len(shape)))
        one = whole(f"box{k}", size, PART)
        boxed.append(one._replace(pieces=(one.pieces[0]._replace(start=start),)))
    tensor = whole("w", shape, PART)
    arrays = numbered([tensor])
    back = moved(data.draw(st.permutations(boxed)), moved([tensor], arrays, boxed), [tensor])
    assert back["w"].tolist() == arrays["w"].tolist()
