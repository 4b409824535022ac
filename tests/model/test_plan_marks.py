"""`plan.check` of targets made of many copies, which compares no pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.errors import PlanError
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Plan, Target, check
from paramtool.model.storage import Inline, Storage
from paramtool.model.view import View, contiguous
from tests.examples import examples

F32 = DTYPES["float32"]
ROWS, COLUMNS = 36, 4
STORAGES = {0: Storage(0, 4 * ROWS * COLUMNS, Inline(bytes(4 * ROWS * COLUMNS)))}


def columns(rows: int = 2) -> list[Copy]:
    """72 copies that fill a matrix of 36 x 4: pieces of `rows` rows of each column, each in a gapped window."""
    found = []
    for start in range(0, ROWS, rows):
        for column in range(COLUMNS):
            view = View("w", F32, start * COLUMNS + column, (rows, 1), (COLUMNS, 1))
            found.append(Copy(view, ((1, contiguous(0, F32, (rows, 1))),)))
    return found


def proved(copies: list[Copy]) -> None:
    """Check a plan of one target."""
    check(Plan((Target("w", F32, (ROWS, COLUMNS), tuple(copies)),)), ["w"], STORAGES)


def test_many_copies_that_tile_are_right() -> None:
    """Interleaved windows, more than are compared pair by pair."""
    assert len(columns()) == 72
    proved(columns())


@settings(max_examples=examples(40), deadline=None)
@given(st.randoms(use_true_random=False))
def test_their_order_does_not_matter(random: object) -> None:
    """Copies may stand in any order."""
    copies = columns()
    random.shuffle(copies)  # type: ignore[attr-defined]
    proved(copies)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 71), st.integers(0, ROWS * COLUMNS - 5))
def test_a_copy_in_a_wrong_place_is_found(which: int, offset: int) -> None:
    """One window moved to any other place writes elements twice, or reaches outside; where it belongs it is right."""
    copies = columns()
    place = copies[which].destination
    copies[which] = replace(copies[which], destination=replace(place, offset=offset))
    if offset == place.offset:
        proved(copies)
        return
    with pytest.raises(PlanError, match=r"'w': (two copies write the same element|a copy reaches outside it)"):
        proved(copies)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (View("w", F32, 0, (2, 1), (4 * ROWS, 1)), "reaches outside"),
        (View("w", F32, ROWS * COLUMNS - 1, (2, 1), (4, 1)), "reaches outside"),
        (View("w", F32, 0, (2,), (0,)), "writes an element twice"),
        (View("w", F32, 0, (2, 2), (1, 1)), "do not fill it"),
    ],
)
def test_a_window_that_cannot_be_is_found(wrong: View, message: str) -> None:
    """Outside the target, or on an element twice."""
    copies = columns()
    copies[0] = Copy(wrong, ((1, contiguous(0, wrong.dtype, wrong.shape)),))
    with pytest.raises(PlanError, match=message):
        proved(copies)


def test_a_gap_is_found() -> None:
    """A copy left out, with another twice, fills the length but not the target."""
    copies = columns()
    with pytest.raises(PlanError, match="same element"):
        proved([*copies[:-1], copies[0]])
    with pytest.raises(PlanError, match="do not fill it"):
        proved(copies[:-1])


def test_scalars_and_empty_windows() -> None:
    """65 windows of no axis fill a vector; a window without elements marks nothing."""
    single = [Copy(contiguous("w", F32, (), k), ((1, contiguous(0, F32, ())),)) for k in range(65)]
    nothing = Copy(contiguous("w", F32, (0, 3)), ((1, contiguous(0, F32, (0, 3))),))
    check(Plan((Target("w", F32, (65,), (*single, nothing)),)), ["w"], STORAGES)
