"""Copies from assembled tensors as copies from their parts, on plans alone."""

from __future__ import annotations

import pytest

from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Plan, Target, check, whole
from paramtool.model.storage import Assembled, ByteRange, Part, Storage
from paramtool.model.view import View, contiguous
from paramtool.passes.assembled import direct, direct_target, is_assembled

FLOAT = DTYPES["float32"]


def storages(axis: int) -> dict[int, Storage]:
    """Storages 0 and 1 with two halves of a tensor of shape (4, 6), which is storage 2."""
    shape = (2, 6) if axis == 0 else (4, 3)
    parts = (
        Part(View(-1, FLOAT, k * (12 if axis == 0 else 3), shape, (6, 1)), contiguous(k, FLOAT, shape)) for k in (0, 1)
    )
    halves = {k: Storage(k, 48, ByteRange("f", 100 * k, 100 * k + 48)) for k in (0, 1)}
    return halves | {2: Storage(2, 96, Assembled(tuple(parts)))}


def sources(target: Target) -> list[tuple[object, int, tuple[int, ...]]]:
    """The storage, offset and shape of each term."""
    views = [copy.terms[0][1] for copy in target.copies]
    return [(view.storage, view.offset, view.shape) for view in views]


def test_rows_are_runs() -> None:
    """Each part is a run of the target."""
    made = direct_target(whole("w", contiguous(2, FLOAT, (4, 6))), storages(0))
    assert sources(made) == [(0, 0, (2, 6)), (1, 0, (2, 6))]
    assert all(copy.destination.is_contiguous for copy in made.copies)
    check(Plan((made,)), ["w"], storages(0))


def test_columns_take_turns() -> None:
    made = direct_target(whole("w", contiguous(2, FLOAT, (4, 6))), storages(1))
    assert [copy.destination.strides for copy in made.copies] == [(6, 1), (6, 1)]
    assert [copy.destination.offset for copy in made.copies] == [0, 3]


def test_rows_of_a_slice() -> None:
    """Only what is asked for is copied; a part without any of it is not read."""
    made = direct_target(whole("w", contiguous(2, FLOAT, (2, 6), 6)), storages(0))
    assert sources(made) == [(0, 6, (6,)), (1, 0, (6,))]
    made = direct_target(whole("w", contiguous(2, FLOAT, (1, 6), 18)), storages(0))
    assert sources(made) == [(1, 6, (6,))]


def test_a_transposed_copy() -> None:
    """The target is filled column by column, from the rows of the parts."""
    made = direct_target(whole("w", View(2, FLOAT, 0, (6, 4), (1, 6))), storages(0))
    assert [copy.destination.strides for copy in made.copies] == [(1, 4), (1, 4)]
    check(Plan((made,)), ["w"], storages(0))


@pytest.mark.parametrize("axis", [0, 1])
def test_what_stays(axis: int) -> None:
    """Sums, and windows with gaps, are read through the assembled tensor; other plans are the same object."""
    term = contiguous(2, FLOAT, (4, 6))
    sums = Target("w", FLOAT, (4, 6), (Copy(contiguous("w", FLOAT, (4, 6)), ((1, term), (-1, term))),))
    gaps = whole("g", View(2, FLOAT, 0, (2, 2), (12, 1)))
    plain = whole("p", contiguous(0, FLOAT, (2, 6)))
    for target in (sums, gaps, plain):
        assert direct_target(target, storages(axis)) is target
    only = {0: storages(axis)[0]}
    plan = Plan((plain,))
    assert direct(plan, only) is plan and not is_assembled(only) and is_assembled(storages(axis))
