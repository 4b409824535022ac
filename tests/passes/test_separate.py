"""Plans for formats without a record: every name is stored, and what becomes of names that share memory."""

from __future__ import annotations

import pytest

from paramtool.errors import PlanError
from paramtool.model import alias
from paramtool.model.alias import Derived
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Plan, check
from paramtool.model.view import View
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.separate import parted, separate
from tests.passes.made import checkpoint, view

MADE = checkpoint(
    {
        "w": view(0, 4, 6),
        "tied": view(0, 4, 6),
        "turned": View(0, DTYPES["float32"], 0, (6, 4), (1, 6)),
        "rows": view(0, 2, 6),
        "other": view(1, 3),
    }
)
PLAN = dedup_pass.plan(MADE, alias.build(MADE, parts=False, split_content=True))


def test_each_name_is_a_target() -> None:
    """Each with the window that the source has of it, and the plan is whole."""
    made = separate(PLAN)
    check(made, MADE.entries, MADE.storages)
    assert [target.name for target in made.targets] == list(MADE.entries)
    assert all(one.is_owner for one in made.names.values())
    found = {target.name: target.copies[0].terms[0][1] for target in made.targets}
    assert found == MADE.views()


def test_links_join_whole_tensors_of_one_alias_set() -> None:
    """A slice or a transpose is no whole tensor."""
    made = separate(PLAN, links=True)
    check(made, MADE.entries, MADE.storages)
    assert [one.name for one in made.aliases] == ["tied"]
    assert list(parted(PLAN, separate(PLAN, links=True))) == ["'w' and 'tied' and 'turned' and 1 more"]
    assert list(parted(PLAN, separate(PLAN))) == ["'w' and 'tied' and 'turned' and 1 more"]


def test_equal_content_is_no_link() -> None:
    """Names that content joined are in two alias sets, and are stored twice."""
    names = {name: one._replace(alias_set=name) for name, one in PLAN.names.items()}
    made = separate(Plan(PLAN.targets, names=names), links=True)
    assert not made.aliases


def test_calculated_on_load() -> None:
    """Needs a record."""
    with pytest.raises(PlanError, match="'w' is calculated on load"):
        separate(Plan(PLAN.targets, names=PLAN.names, derived={"w": Derived(None, b"\0" * 4)}))
