"""What may be compared with what, from names, types and shapes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model import alias
from paramtool.model.alias import Derived
from paramtool.model.checkpoint import Checkpoint, Compound, Entry
from paramtool.model.dtype import DTYPES, NARROWER
from paramtool.model.match import Equal
from paramtool.model.view import View
from paramtool.passes.dedup.candidates import (
    Candidate,
    candidates,
    cast_groups,
    distinct,
    equal_groups,
    row_groups,
    shape_groups,
    transpose_groups,
)
from tests.examples import examples
from tests.passes.made import checkpoint, view

FLOAT = DTYPES["float32"]


def found(made: Checkpoint, least: int = 1, across_roles: bool = False) -> dict[str, Candidate]:
    """The candidates of a checkpoint, by name."""
    some = candidates(made, alias.build(made), least, across_roles)
    assert len({one.name for one in some}) == len(some)
    return {one.name: one for one in some}


def one(name: str, *shape: int, dtype: str = "float32", role: str = "model", whole: bool = True) -> Candidate:
    """A candidate on a storage for itself."""
    return Candidate(name, view(sum(name.encode()), *shape, dtype=dtype), role, whole)


SHAPES = [[(6,), (2, 3), (3, 2), (12,)], [(3,), (4, 3), (3, 4), (2, 2, 3), (3, 2, 2)], [(), (1,), (6,), (1, 6), (6, 1)]]
TYPES = [
    ["float32"],
    ["float32", "bfloat16"],
    ["float64", "float32", "float16"],
    ["int32", "int16"],
    ["float4_e2m1fn", "uint8"],
]


@st.composite
def some_candidates(draw: st.DrawFn) -> list[Candidate]:
    """Windows of few shapes, types and roles, so that many have something in common."""
    shapes, types = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(TYPES))
    mostly, found = st.sampled_from([True, True, False]), []
    for k in range(draw(st.integers(5, 9))):
        dtype = draw(st.sampled_from(types))
        shape = draw(st.sampled_from(shapes)) if dtype != "float4_e2m1fn" else draw(st.sampled_from([(12,), (3, 4)]))
        role = draw(st.sampled_from(["model", "model", "model", "ema"]))
        found.append(Candidate(f"n{k}", view(k, *shape, dtype=dtype), role, draw(mostly), draw(st.booleans())))
    return found


law = settings(max_examples=examples(50), deadline=None)


def pairs(found: list[Candidate]) -> list[tuple[Candidate, Candidate]]:
    """Every pair, both ways round."""
    return [(a, b) for a in found for b in found if a is not b]


# --- candidates ------------------------------------------------------------------------------------------------


def test_each_window_once_under_its_first_name() -> None:
    """Tied names have nothing to find out, whichever of them owns; a slice of them is another window."""
    made = checkpoint({"a": (2, 3), "b": view(0, 2, 3), "row": view(0, 3, offset=3), "c": (2, 3)})
    assert list(found(made)) == ["a", "row", "c"]
    last = candidates(made, alias.build(made, "last"), 1)
    assert [(one.name, one.view) for one in last] == [
        ("a", view(0, 2, 3)),
        ("row", view(0, 3, offset=3)),
        ("c", view(1, 2, 3)),
    ]


@pytest.mark.parametrize(
    "least, names", [(0, ["six", "one"]), (4, ["six", "one"]), (5, ["six"]), (24, ["six"]), (25, [])]
)
def test_sizes(least: int, names: list[str]) -> None:
    """At least so many bytes; a tensor without elements never."""
    assert list(found(checkpoint({"six": (2, 3), "none": (0, 3), "one": (1,)}), least)) == names


def test_what_is_contiguous_in_the_output() -> None:
    """A transposed tie is no question and marks its owner; a tensor that is transposed alone is stored row by row."""
    turned = View(0, FLOAT, 0, (3, 2), (1, 3))
    tied = found(checkpoint({"w": (2, 3), "w.T": turned, "v": (2, 3)}))
    assert {name: one.is_crossed for name, one in tied.items()} == {"w": True, "v": False}
    assert found(checkpoint({"w.T": turned})) == {"w.T": Candidate("w.T", turned, "model", True)}


def test_whole_or_inner() -> None:
    """Only a name that is all of a tensor need not be stored; on a span that bears no name nothing is."""
    inner = found(checkpoint({"big": (4, 3), "rows": view(0, 2, 3, offset=3), "flat": view(0, 12)}))
    assert {name: one.is_whole for name, one in inner.items()} == {"big": True, "rows": False, "flat": True}
    span = found(checkpoint({"head": view(0, 4), "tail": view(0, 4, offset=2)}))
    assert [one.is_whole for one in span.values()] == [False, False]


def test_roles() -> None:
    """As the file says, and all the same where it is asked for."""
    made = checkpoint({"w": (4,), "m": Entry(view(1, 4), "optimizer"), "e": Entry(view(2, 4), "ema")})
    assert [one.role for one in found(made).values()] == ["model", "optimizer", "ema"]
    assert equal_groups(found(made).values()) == []
    assert [[name for name, _ in group] for group in equal_groups(found(made, across_roles=True).values())] == [
        ["w", "m", "e"]
    ]


def test_what_is_never_compared() -> None:
    """Parts of compound tensors, and what is calculated."""
    parts = {"values": view(1, 4), "indices": view(2, 4)}
    made = checkpoint({"w": view(0, 4), "sparse": Entry(Compound("sparse_coo", parts)), "v": view(3, 4)})
    graph = alias.build(made)
    assert "sparse/values" in graph.names
    assert [one.name for one in candidates(made, graph, 1)] == ["w", "v"]
    calculated = replace(graph, derived={"v": Derived(None, bytes(4))})
    assert [one.name for one in candidates(made, calculated, 1)] == ["w"]


# --- groups ----------------------------------------------------------------------------------------------------


@law
@given(some_candidates())
def test_equal_groups(found: list[Candidate]) -> None:
    """Two stand in one group exactly where role, dtype and shape agree; nobody stands alone or twice."""
    groups = [[name for name, _ in group] for group in equal_groups(found)]
    assert sum(map(len, groups)) == len(set().union(*groups)) and all(len(group) > 1 for group in groups)
    for a, b in pairs(found):
        alike = (a.role, a.view.dtype, a.view.shape) == (b.role, b.view.dtype, b.view.shape)
        assert any(a.name in group and b.name in group for group in groups) == alike


@law
@given(some_candidates())
def test_shape_groups(found: list[Candidate]) -> None:
    """Two of different shapes meet exactly where role, dtype and size agree; each says whether it may move."""
    groups = [{name: is_whole for (name, _), is_whole in group} for group in shape_groups(found)]
    for a, b in pairs(found):
        alike = (a.role, a.view.dtype, a.view.nbytes) == (b.role, b.view.dtype, b.view.nbytes)
        alike = alike and a.view.dtype.block_elements == 1
        if a.view.shape != b.view.shape:
            assert any(a.name in group and b.name in group for group in groups) == alike
    wholes = {one.name: one.is_whole for one in found}
    assert all(wholes[name] == is_whole for group in groups for name, is_whole in group.items())
    assert all(len({one.view.shape for one in found if one.name in group}) > 1 for group in groups)
    assert not any(one.view.dtype.block_elements > 1 and one.name in group for one in found for group in groups)


@law
@given(some_candidates(), st.sets(st.sampled_from(["n0", "n1", "n2", "n3"]), min_size=1))
def test_row_groups(found: list[Candidate], done: set[str]) -> None:
    """A smaller one is sought in a larger one exactly where rows of one length, or a vector, could hold it."""
    offered = {
        (small.name, large.name, small.pitch)
        for smalls, larges in row_groups(found, done)
        for small in smalls
        for large in larges
        if small.view.nbytes < large.view.nbytes and small.pitch == large.pitch
    }
    expected = set()
    for a, b in pairs(found):
        plain = a.view.dtype.block_elements == 1 and a.view.shape and b.view.shape
        alike = (a.role, a.view.dtype) == (b.role, b.view.dtype) and a.is_whole and a.name not in done
        if plain and alike and a.view.nbytes < b.view.nbytes:
            size = a.view.dtype.block_bytes
            if len(b.view.shape) == 1:
                expected.add((a.name, b.name, size))
            elif a.view.shape[-1] == b.view.shape[-1]:
                expected.add((a.name, b.name, size * a.view.shape[-1]))
    assert offered == expected
    for smalls, larges in row_groups(found, done):
        assert smalls and larges and not done & {one.name for one in smalls}
        assert all(
            [one.view.nbytes for one in some] == sorted(one.view.nbytes for one in some) for some in (smalls, larges)
        )


@law
@given(some_candidates())
def test_transpose_groups(found: list[Candidate]) -> None:
    """Two meet exactly where role, dtype and the lengths of their axes agree; crossed ones stand in front."""
    groups = [[name for name, _ in group] for group in transpose_groups(found)]
    by_name = {one.name: one for one in found}
    for a, b in pairs(found):
        axes = sorted(a.view.shape) == sorted(b.view.shape) and sum(size > 1 for size in a.view.shape) > 1
        alike = (a.role, a.view.dtype) == (b.role, b.view.dtype) and a.view.dtype.block_elements == 1
        assert any(a.name in group and b.name in group for group in groups) == (axes and alike)
    for group in groups:
        assert group == sorted(group, key=lambda name: not by_name[name].is_crossed)


@law
@given(some_candidates())
def test_cast_groups(found: list[Candidate]) -> None:
    """A narrow and a wide one meet exactly where role and shape agree and both need not be stored."""
    offered = {(small, large) for narrow, wide in cast_groups(found) for small, _ in narrow for large, _ in wide}
    expected = {
        (a.name, b.name)
        for a, b in pairs(found)
        if (a.role, a.view.shape) == (b.role, b.view.shape)
        and a.is_whole
        and b.is_whole
        and a.view.dtype.name in NARROWER.get(b.view.dtype.name, ())
    }
    assert offered == expected


def test_nearest_first() -> None:
    """Small ones and those that may hold them ascend by size, whatever their order is in the file."""
    some = [one("big", 8, 3), one("middle", 4, 3), one("small", 2, 3), one("vector", 3), one("long", 30)]
    rows, vectors = row_groups(some, {"middle"})
    assert [[x.name for x in side] for side in rows] == [["vector", "small"], ["small", "middle", "big"]]
    assert [[x.name for x in side] for side in vectors] == [["vector", "small", "big"], ["long"]]
    assert [x.pitch for side in (rows, vectors) for x in side[0]] == [12, 12, 4, 4, 4]


def test_distinct() -> None:
    """One stands for equal ones, first of all one that stays in a larger tensor; those of `without` never."""
    some = [one("a", 4), one("b", 4), one("in", 4, whole=False), one("in2", 4, whole=False), one("c", 4)]
    assert [x.name for x in distinct(some, ())] == ["a", "b", "in", "in2", "c"]
    assert [x.name for x in distinct(some, [Equal(("a", "b"), "", False)])] == ["a", "in", "in2", "c"]
    assert [x.name for x in distinct(some, [Equal(("a", "b", "in", "in2"), "", False)])] == ["in", "c"]
    assert [x.name for x in distinct(some, [Equal(("a", "b"), "", False)], {"c", "in"})] == ["a", "in2"]
