"""Moves are the map: lines that are put where they say give the tensor that its windows make."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from paramtool.model.diff import LineMove, LinePlace
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, contiguous
from paramtool.passes.diff.moves import MAX_MOVES, moves_of

F32 = DTYPES["float32"]
Flat = list[int]
"""The elements of a tensor, row by row: the element `k` of `w` is `k`, and what is not written is -1."""


def line(place: LinePlace, k: int, numel: int) -> range:
    """Where the elements of a row or column are."""
    across = numel // place.of
    return range(k, numel, place.of) if place.is_column else range(k * across, (k + 1) * across)


def moved(moves: tuple[LineMove, ...], here: tuple[int, ...], there: tuple[int, ...]) -> Flat:
    """The tensor to which lines are moved."""
    made = [-1] * prod(there)
    for one in moves:
        assert 0 < one.length <= min(one.here.of - one.here.start, one.there.of - one.there.start)
        for k in range(one.length):
            source = line(one.here, one.here.start + k, prod(here))
            for element, to in zip(source, line(one.there, one.there.start + k, prod(there)), strict=True):
                made[to] = element
    return made


def places(view: View) -> list[int]:
    """The elements of a window in its own order."""
    steps = (range(0, n * step, step) for n, step in zip(view.shape, view.strides, strict=True))
    return [view.offset + sum(index) for index in product(*steps)]


def made_of(target: Target) -> Flat:
    """What the copies make."""
    found = [-1] * prod(target.shape)
    for copy in target.copies:
        for element, to in zip(places(copy.terms[0][1]), places(copy.destination), strict=True):
            found[to] = element
    return found


def copied(shape: tuple[int, ...], here: tuple[int, tuple[int, ...]], there: tuple[int, tuple[int, ...]]) -> Copy:
    """A window of `w` becomes a window of the target: (offset, strides) of both."""
    source, destination = View(0, F32, here[0], shape, here[1]), View("t", F32, there[0], shape, there[1])
    return Copy(destination, ((1, source),), names=("w",))


@st.composite
def chunks(draw: st.DrawFn, count: int) -> list[tuple[int, int]]:
    """(start, stop) of parts of a range, in another order."""
    cuts = sorted(draw(st.sets(st.integers(1, count - 1), max_size=6))) if count > 1 else []
    edges = [0, *cuts, count]
    return draw(st.permutations(list(pairwise(edges))))


@given(st.data(), st.integers(1, 12), st.integers(2, 6), st.booleans(), st.booleans())
def test_parts_of_a_matrix_in_another_order(
    data: st.DataObject, rows: int, width: int, turned_here: bool, turned_there: bool
) -> None:
    """Rows or columns of one matrix become rows or columns of another."""
    parts = data.draw(chunks(rows))
    here = (width, rows) if turned_here else (rows, width)
    there = (width, rows) if turned_there else (rows, width)
    a_steps, b_steps = ((1, rows) if turned else (width, 1) for turned in (turned_here, turned_there))
    copies, to = [], 0
    for start, stop in parts:
        copies.append(copied((stop - start, width), (start * a_steps[0], a_steps), (to * b_steps[0], b_steps)))
        to += stop - start
    target = Target("t", F32, there, tuple(copies))
    found = moves_of(target, {"w": contiguous(0, F32, here)})
    assert found and sum(one.length for one in found) == found[0].there.of
    assert moved(found, here, there) == made_of(target)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_heads_that_take_turns(heads: int, size: int, width: int, interleaves: bool) -> None:
    """q, k and v of each head in turn, from or to three tensors behind each other."""
    rows = 3 * heads * size
    apart, turn = (heads * size * width, (size * width, width, 1)), (size * width, (3 * size * width, width, 1))
    copies = []
    for k in range(3):
        sides = [(k * offset, steps) for offset, steps in (apart, turn)]
        copies.append(copied((heads, size, width), *(sides if interleaves else sides[::-1])))
    target = Target("t", F32, (rows, width), tuple(copies))
    found = moves_of(target, {"w": contiguous(0, F32, target.shape)})
    assert found and moved(found, target.shape, target.shape) == made_of(target)


@given(st.data())
def test_any_windows_have_their_map_or_none(data: st.DataObject) -> None:
    """Parts of rows, stacks of matrices, flat runs: no map says something that is not so."""
    side = st.integers(1, 4)
    here, there = (data.draw(st.lists(side, min_size=1, max_size=3).map(tuple)) for _ in "ab")
    shape = data.draw(st.lists(side, min_size=1, max_size=3).map(tuple))
    views = []
    for outer in (here, there):
        steps = data.draw(st.tuples(*(st.integers(1, max(1, prod(outer))) for _ in shape)))
        view = View("w", F32, data.draw(st.integers(0, prod(outer))), shape, steps)
        if max(places(view)) >= prod(outer) or len({*places(view)}) < view.numel:
            return
        views.append((view.offset, steps))
    target = Target("t", F32, there, (copied(shape, *views),))
    found = moves_of(target, {"w": contiguous(0, F32, here)})
    assert not found or moved(found, here, there) == made_of(target)


def test_a_map_of_very_many_rows_is_left_out() -> None:
    count = MAX_MOVES + 1
    copies = tuple(copied((1, 2), (2 * (count - 1 - k), (2, 1)), (2 * k, (2, 1))) for k in range(count))
    assert moves_of(Target("t", F32, (count, 2), copies), {"w": contiguous(0, F32, (count, 2))}) == ()
