"""`model/plan.py`: a plan that is wrong is refused before any byte moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paramtool.errors import PlanError
from paramtool.model.alias import Alias
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Plan, Target, check, whole
from paramtool.model.storage import Inline, Storage
from paramtool.model.view import View, contiguous

F32 = DTYPES["float32"]
STORAGES = {0: Storage(0, 48, Inline(bytes(48)))}


def target(*copies: Copy, shape: tuple[int, ...] = (12,)) -> Target:
    """A target w."""
    return Target("w", F32, shape, copies)


def part(start: int, count: int, source: int | None = None, storage: int = 0) -> Copy:
    """Copy `count` elements to `start` of w, from `source` of a storage."""
    terms = ((1, contiguous(storage, F32, (count,), start if source is None else source)),)
    return Copy(contiguous("w", F32, (count,), start), terms)


def alias(name: str, view: View) -> Alias:
    """An alias by storage."""
    return Alias(name, view, name, "storage", "storage", view)


def test_a_whole_and_its_parts_are_right() -> None:
    """A target may be filled in one copy or in disjoint ones, in any order."""
    check(Plan((whole("w", contiguous(0, F32, (12,))),)), ["w"], STORAGES)
    check(Plan((target(part(4, 8), part(0, 4)),)), ["w"], STORAGES)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (target(part(0, 4)), "do not fill it"),
        (target(part(0, 8), part(4, 4)), "the same element"),
        (target(part(0, 6), part(8, 6, source=0)), "reaches outside"),
        (target(part(0, 12, storage=1)), "source window does not fit"),
        (target(part(0, 12, source=1)), "source window does not fit"),
        (target(Copy(contiguous("w", F32, (12,)), ((1, contiguous(0, F32, (3, 4))),))), "source window does not fit"),
        (target(Copy(View("w", F32, 0, (6,), (0,)), ((1, contiguous(0, F32, (6,))),)), part(6, 6)), "twice"),
    ],
)
def test_a_wrong_target_is_named(wrong: Target, message: str) -> None:
    """Gaps, overlaps, and windows outside their storage are PlanErrors."""
    with pytest.raises(PlanError, match=f"'w'.*{message}"):
        check(Plan((wrong,)), ["w"], STORAGES)


def test_an_alias_must_lie_on_its_owner() -> None:
    """Beyond its end, or on a target that is not there, it is refused by name."""
    plan = Plan((whole("w", contiguous(0, F32, (12,))),))
    check(replace(plan, names={"a": alias("a", contiguous("w", F32, (6,), 6))}), ["w", "a"], STORAGES)
    for view in (contiguous("w", F32, (6,), 7), contiguous("v", F32, (1,))):
        with pytest.raises(PlanError, match="'a'"):
            check(replace(plan, names={"a": alias("a", view)}), ["w", "a"], STORAGES)


def test_no_name_is_lost() -> None:
    """Every name of the source is a target or an alias."""
    with pytest.raises(PlanError, match="'b' would be lost"):
        check(Plan((whole("w", contiguous(0, F32, (12,))),)), ["w", "b"], STORAGES)


def test_no_target_twice() -> None:
    """Two targets of one name are refused."""
    one = whole("w", contiguous(0, F32, (12,)))
    with pytest.raises(PlanError, match="twice"):
        check(Plan((one, one)), ["w"], STORAGES)
