"""`passes/compat/constraints.py` and `wanted.py`: windows that meet on one memory of a variant, and what it wants."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model.checkpoint import Compound, Entry, Link, NoData, Unreadable
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous
from paramtool.passes.compat import check as constraints
from paramtool.passes.compat import wanted as wants
from paramtool.passes.compat.check import TieQuestion
from paramtool.passes.compat.wanted import Wanted
from tests.examples import examples
from tests.passes.made import checkpoint, view

F32 = DTYPES["float32"]
CONJ = Compound("conj", {"data": view(3, 2, dtype="complex64")})
SPARSE = Compound("sparse_coo", {"values": view(3, 2)})


def elements(one: View) -> list[tuple[object, int]]:
    """(storage, element) of each element of a window, row by row."""
    return [
        (one.storage, one.offset + sum(i * step for i, step in zip(at, one.strides, strict=True)))
        for at in product(*map(range, one.shape))
    ]


def meetings(found: tuple[View, View], places: tuple[View, View]) -> set[tuple[object, object]]:
    """The pairs of elements of the file that would be one element of the memory."""
    a, b = (list(zip(elements(at), elements(f), strict=True)) for at, f in zip(places, found, strict=True))
    return {(x, y) for at, x in a for to, y in b if at == to}


def place(*shape: int, strides: tuple[int, ...] = (), offset: int = 0) -> View:
    """A window on the memory of a variant, row by row unless told."""
    return View("m", F32, offset, shape, strides or contiguous("m", F32, shape).strides)


BOXES = st.builds(
    lambda rows, columns, row, column, turned: (
        place(*((columns, rows) if turned else (rows, columns)), strides=(1, 4) if turned else (4, 1),
              offset=4 * row + column)
    ),
    st.integers(1, 2), st.integers(1, 3), st.integers(0, 2), st.integers(0, 1), st.booleans(),
)  # fmt: skip
PLACES = st.one_of(BOXES, st.sampled_from([place(4, 4), place(16), place(4, 4, strides=(1, 4)), place(2, offset=3)]))
MEMORIES = st.dictionaries(st.sampled_from("abcdef"), st.tuples(PLACES, st.sampled_from(["own", "turned", "shared"])))


def stored(number: int, at: View, how: str) -> Entry:
    """A tensor that fills a place: on a storage of its own, in either order, or on the one where it stands likewise."""
    if how == "shared":
        return Entry(View(0, F32, at.offset, at.shape, at.strides))
    if how == "turned" and len(at.shape) == 2:
        return Entry(View(number, F32, 0, at.shape, (1, at.shape[0])))
    return Entry(contiguous(number, F32, at.shape))


@given(MEMORIES)
@settings(max_examples=examples(50))
def test_the_questions_are_just_those_that_decide(memory: Mapping[str, tuple[View, str]]) -> None:
    """Whoever answers yes to all knows that each element of the memory gets one value, and none is asked in vain."""
    wanted = {name: Wanted("a", at) for name, (at, _) in memory.items()}
    present = {name: stored(k + 1, at, how) for k, (name, (at, how)) in enumerate(memory.items())}
    asked = list(constraints.questions(wanted, present))
    same: dict[tuple[object, object], set[object]] = {}
    for one in asked:
        views = tuple(present[name].value for name in (one.name, one.other))
        ends = tuple(wanted[name].view for name in (one.name, one.other))
        meet = meetings(one.found, one.places)
        assert meet == meetings(views, ends) and meet  # type: ignore[arg-type]  # aligned or not: the same elements
        for x, y in meet:
            joined = {x, y} | same.get(x, {x}) | same.get(y, {y})  # type: ignore[call-overload]
            same.update(dict.fromkeys(joined, joined))  # type: ignore[arg-type]
    first: dict[object, Any] = {}
    for name, (at, _) in memory.items():
        for where, value in zip(elements(at), elements(present[name].value), strict=True):  # type: ignore[arg-type]
            other = first.setdefault(where, value)
            assert other == value or value in same.get(other, ())
    for one in asked:  # one memory of both sides needs no bytes
        assert one.found[0] != one.found[1] or one.places[0] != one.places[1]


def ask(places: Mapping[str, Wanted | View], present: Mapping[str, Any]) -> list[TieQuestion]:
    """The questions of names that are all of the memory `a`, unless they say."""
    wanted = {n: one if isinstance(one, Wanted) else Wanted("a", one) for n, one in places.items()}
    return list(constraints.questions(wanted, {n: e if isinstance(e, Entry) else Entry(e) for n, e in present.items()}))


def test_with_one_that_covers_all_each_is_asked_once() -> None:
    """Three slices that overlap in a whole: three questions, not six; without the whole every pair that meets."""
    rows = {name: place(2, 4, offset=4 * k) for k, name in enumerate("bcd")}
    stores = {name: view(k, 2, 4) for k, name in enumerate("bcd")}
    whole = ask({**rows, "w": place(4, 4)}, {**stores, "w": view(3, 4, 4)})
    assert [{one.name, one.other} for one in whole] == [{"b", "w"}, {"c", "w"}, {"d", "w"}]
    assert [(one.name, one.other) for one in ask(rows, stores)] == [("b", "c"), ("c", "d")]
    twins = ask(dict.fromkeys("abc", place(4, 4)), {name: view(k, 4, 4) for k, name in enumerate("abc")})
    assert [(one.name, one.other) for one in twins] == [("a", "b"), ("a", "c")]


def test_windows_that_meet_element_by_element() -> None:
    """Of a whole the part that the slice or transpose is, and where it lies; columns that only mesh are not asked."""
    (one,) = ask({"w": place(2, 3), "t": place(3, 2, strides=(1, 3))}, {"w": view(0, 2, 3), "t": view(1, 3, 2)})
    assert one.found == (View(0, F32, 0, (3, 2), (1, 3)), view(1, 3, 2)) and one.places[0] == one.places[1]
    (one,) = ask({"r": place(3, offset=3), "w": place(2, 3)}, {"r": view(0, 3), "w": view(1, 2, 3, offset=6)})
    assert (one.name, one.found, one.places) == ("r", (view(0, 3), view(1, 3, offset=9)), (place(3, offset=3),) * 2)
    (one,) = ask({"x": place(4), "y": place(4, offset=3)}, {"x": view(0, 4), "y": view(1, 4)})
    assert one.found == (view(0, 4), view(1, 4)) and one.places == (place(4), place(4, offset=3))
    (one,) = ask({"x": place(4), "y": place(4, offset=1)}, {"x": view(0, 4), "y": view(0, 4)})
    assert one.found == (view(0, 4), view(0, 4)) and one.places == (place(4), place(4, offset=1))
    bits = View("m", DTYPES["int32"], 0, (2,), (1,))
    (one,) = ask({"x": place(4), "i": bits}, {"x": view(0, 4), "i": view(1, 2, dtype="int32")})
    assert one.places == (place(4), bits)
    left, right = place(5, 2, strides=(4, 1)), place(5, 2, strides=(4, 1), offset=2)
    assert ask({"l": left, "r": right}, {"l": view(0, 5, 2), "r": view(1, 5, 2)}) == []


@pytest.mark.parametrize(
    "places, present",
    [
        ({"a": place(2), "b": Wanted("b", place(2))}, {"a": view(0, 2), "b": view(1, 2)}),
        ({"a": place(2), "b": place(2, offset=2)}, {"a": view(0, 2), "b": view(1, 2)}),
        ({"a": Wanted("a"), "b": Wanted("a")}, {"a": view(0, 2), "b": view(1, 2)}),
        ({"a": place(0, 2), "b": place(0, 2)}, {"a": view(0, 0, 2), "b": view(1, 0, 2)}),
        ({"a": place(2), "b": place(2)}, {"a": view(0, 2), "b": view(0, 2)}),
        ({"a": place(2), "b": place(2)}, {"a": view(0, 2)}),
        ({"a": place(2), "b": place(2)}, {"a": view(0, 2), "b": SPARSE}),
        ({"a": place(4), "b": place(2, offset=2)}, {"a": view(0, 4), "b": view(0, 2, offset=2)}),
    ],
)
def test_what_needs_no_bytes(places: Any, present: Any) -> None:
    """Other memories, other places, names alone, no elements, one window, a name that lacks, no plain tensor."""
    assert ask(places, present) == []


def test_a_pending_sign_is_compared_by_its_window() -> None:
    """Both have it, or they would not be asked."""
    other = Compound("conj", {"data": view(4, 2, dtype="complex64")})
    (one,) = ask({"a": place(2), "b": place(2)}, {"a": CONJ, "b": other})
    assert one.found == (CONJ.parts["data"], other.parts["data"])


def test_what_a_checkpoint_wants() -> None:
    """Windows on its own memory, named by the first name in it; kinds, shapes and bare names of what has none."""
    file = checkpoint({
        "w": (6, 4), "rows": view(0, 2, 4, offset=8), "x": (6, 4), "log": Entry(view(2, 2), "other"),
        "conj": Entry(CONJ), "sparse": Entry(SPARSE), "meta": Entry(NoData(F32, (5,))), "odd": Entry(Unreadable("f")),
    })  # fmt: skip
    assert wants.wanted_by(file) == {
        "w": Wanted("w", contiguous("w", F32, (6, 4))), "rows": Wanted("w", contiguous("w", F32, (2, 4), 8)),
        "x": Wanted("x", contiguous("x", F32, (6, 4))),
        "conj": Wanted("conj", contiguous("conj", DTYPES["complex64"], (2,))),
        "sparse": Wanted("sparse", kind="sparse_coo"), "meta": Wanted("meta", contiguous("meta", F32, (5,))),
        "odd": Wanted("odd"),
    }  # fmt: skip


def test_equal_bytes_of_a_record_are_no_tie() -> None:
    """Names on one storage that a record counts to two memories are two for the variant."""
    file = checkpoint({
        "a": Entry(view(0, 4), link=Link("a", "storage")),
        "b": Entry(view(0, 4), link=Link("b", "storage", 1, "a", True)),
        "c": Entry(view(0, 4), link=Link("a", "declared", 2, "a")),
    })  # fmt: skip
    assert {name: one.alias_set for name, one in wants.wanted_by(file).items()} == {"a": "a", "b": "b", "c": "a"}


def test_windows_and_kinds() -> None:
    """One window, or the one whose sign is pending; a kind for everything else."""
    plain = view(0, 2)
    assert wants.plain_window(Compound("masked", {"data": plain})) is None
    assert [wants.plain_window(one) for one in (plain, CONJ, SPARSE, NoData(F32, (2,)), Unreadable("f"))] == [
        plain, CONJ.parts["data"], None, None, None,
    ]  # fmt: skip
    assert [wants.kind_of(one) for one in (plain, CONJ, SPARSE, NoData(F32, (2,), "cut"), Unreadable("f"))] == [
        "plain", "conj", "sparse_coo", "without data (cut)", "unreadable (needs f)",
    ]  # fmt: skip


def test_float4_in_pairs() -> None:
    """Two elements in one along the last axis, on the same bytes; an odd axis or another type stays."""
    one = view(0, 3, 8, offset=4, dtype="float4_e2m1fn")
    assert wants.as_pairs(one) == view(0, 3, 4, offset=2, dtype="float4_e2m1fn_x2")
    for other in (view(0, 2, 3, dtype="float4_e2m1fn"), view(0, 4), view(0, 2, dtype="uint8")):
        assert wants.as_pairs(other) == other


@given(PLACES, PLACES)
@settings(max_examples=examples(50))
def test_covering_is_filling(outer: View, inner: View) -> None:
    """What covers has every element; what is dense and has every element covers; other memories and names never."""
    has_all = set(elements(inner)) <= set(elements(outer))
    covers = wants.covers(outer, inner)
    assert has_all if covers else not (has_all and outer.is_contiguous)
    assert not wants.covers(outer, contiguous("n", F32, (1,))) and not wants.covers(None, inner)
    assert wants.covers(outer, outer) and not wants.covers(outer, None)
