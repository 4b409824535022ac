"""A checkpoint with parts in other tensors: what is written, what stays, what keeps its name, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import LayoutError, PlanError
from paramtool.model import plan as plans
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.parts.pieces import Stored, whole
from paramtool.passes.parts.rewrite import Rearranged, first_order, new_targets, renames, rewritten
from tests.passes.made import checkpoint, view

Q, K, OTHER = whole("q", (4, 3)), whole("k", (2, 3)), whole("other", (2, 2))
BOTH = Stored("qk", (6, 3), (Q.pieces[0], K.pieces[0]._replace(at=(4, 0))))
SHAPES = {one.name: one.shape for one in (Q, K, OTHER)}


def done(file: Checkpoint, change: Rearranged, keep: bool = False) -> tuple[plans.Plan, list[str]]:
    """The plan, proved, and its names in order."""
    plan, outcome = rewritten(file, change, keep_names=keep)
    plans.check(plan, [*outcome.made, *outcome.untouched, *outcome.windows], file.storages)
    return plan, list(plan.names)


@given(st.permutations(["x", "q", "y", "k", "z"]), st.booleans())
def test_new_names_are_where_the_first_old_one_was(order: list[str], keep: bool) -> None:
    file = checkpoint({name: SHAPES.get(name, (5,)) for name in order})
    plan, names = done(file, Rearranged((Q, K), (BOTH,)), keep)
    first = min(order.index("q"), order.index("k"))
    kept = [name for name in order if keep or name not in "qk"]
    expected = [name for name in order[:first] if name in kept]
    assert names == [*expected, "qk", *(name for name in kept if name not in expected)]
    if keep:
        assert (plan.names["q"].owner, plan.names["k"].owner) == ("qk", "qk")
        assert plan.names["k"].window.offset == 12


@given(st.permutations(["x", "q", "y", "k", "z"]))
def test_there_and_back_has_the_order_of_before(order: list[str]) -> None:
    """The record's positions restore it, whatever was between the parts."""
    file = checkpoint({name: SHAPES.get(name, (5,)) for name in order})
    plan, names = done(file, Rearranged((Q, K), (BOTH,)))
    fused = checkpoint({name: plan.names[name].window.shape for name in names})
    parts = {"q": ("q",), "k": ("k",)}
    record = PartsRecord(fused=(FusedTensor("qk", "qk", "", 0, {}, parts, (order.index("q"), order.index("k"))),))
    assert done(fused, Rearranged((BOTH,), (Q, K), first_order(names, record)))[1] == order


def test_another_name_alone_moves_nothing() -> None:
    file = checkpoint({"q": (4, 3), "k": (2, 3)})
    change = Rearranged((Q, K), (whole("queries", (4, 3), "q"), whole("k", (2, 3))))
    assert renames(change) == {"q": "queries", "k": "k"} and new_targets(file, change) == []
    plan, names = done(file, change)
    assert names == ["queries", "k"] and plan.names["queries"].source == file.entries["q"].value


def test_ties_follow() -> None:
    """Two modules with the same parts get one fused tensor under two names; a part alone loses its tie, with a word."""
    tied = checkpoint({"q": (4, 3), "k": (2, 3), "p": view(0, 4, 3), "l": view(1, 2, 3)})
    q, k = whole("p", (4, 3)), whole("l", (2, 3))
    other = Stored("pl", (6, 3), (q.pieces[0], k.pieces[0]._replace(at=(4, 0))))
    plan, _ = done(tied, Rearranged((Q, K, q, k), (BOTH, other)))
    assert plan.names["pl"].owner == "qk" and plan.names["pl"].alias_set == "qk"
    _, outcome = rewritten(checkpoint({"q": (4, 3), "k": (2, 3), "e": view(0, 4, 3)}), Rearranged((Q, K), (BOTH,)))
    assert any("untied" in text and "'e'" in text for text in outcome.warnings)


@pytest.mark.parametrize("keep", [False, True])
def test_names_that_are_taken(keep: bool) -> None:
    file = checkpoint({"q": (4, 3), "k": (2, 3), "qk": (1,)})
    with pytest.raises(PlanError, match="'qk' is another tensor"):
        done(file, Rearranged((Q, K), (BOTH,)), keep)


def test_what_would_be_lost() -> None:
    file = checkpoint(SHAPES)
    with pytest.raises(LayoutError, match=r"would lose 1 part:\n  'k'"):
        done(file, Rearranged((Q, K), (whole("new", (4, 3), "q"),)))
    with pytest.raises(LayoutError, match="the file has no 'k'"):
        done(file, Rearranged((Q,), (BOTH,)))


def test_a_name_that_is_no_view() -> None:
    """Rows in turn by two and one have no stride; the layout keeps no name for them."""
    piece = Q.pieces[0]
    split = Stored(
        "t", (6, 3),
        (piece._replace(digits=((piece.digits[0][0]._replace(length=2),), piece.digits[1])),
         piece._replace(start=(2, 0), digits=((piece.digits[0][0]._replace(length=2),), piece.digits[1]), at=(3, 0)),
         K.pieces[0]._replace(digits=((K.pieces[0].digits[0][0]._replace(step=3),), K.pieces[0].digits[1]), at=(2, 0))),
    )  # fmt: skip
    file = checkpoint({"q": (4, 3), "k": (2, 3)})
    assert done(file, Rearranged((Q, K), (split,)))[1] == ["t"]
    with pytest.raises(PlanError, match="'q' is not a view of the new tensors"):
        done(file, Rearranged((Q, K), (split,)), keep=True)
