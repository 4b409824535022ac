"""Several checkpoints: what is stored once for all that hold it, under which name, and in which shard."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model import alias
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Copy, Target, resolved, whole
from paramtool.model.view import View, contiguous
from paramtool.passes.dedup import many
from paramtool.passes.dedup.many import Held, Unit
from tests.examples import examples
from tests.passes.made import checkpoint, view

FLOAT = DTYPES["float32"]
MARK = ("model", "pt")


def held(input: int, name: str, *shape: int, mark: tuple[str, ...] = MARK, dtype: str = "float32") -> Held:
    """A tensor that an input would store."""
    return Held(input, whole(name, view(0, *(shape or (4,)), dtype=dtype)), mark)


def unit(name: str, *users: int, size: int = 4) -> Unit:
    """A unit of some inputs."""
    return Unit(tuple(held(user, name, size) for user in users))


users = st.sets(st.integers(0, 3), min_size=1).map(sorted)
law = settings(max_examples=examples(50), deadline=None)


@st.composite
def families(draw: st.DrawFn) -> tuple[list[Held], list[list[Held]]]:
    """Tensors of four inputs in their order, and disjoint classes of equal namesakes."""
    sizes = {name: draw(st.integers(1, 12)) for name in "abcd"}
    contents = {(k, name): draw(st.integers(0, 2)) for k in range(4) for name in "abcd" if draw(st.booleans())}
    all_held = {key: held(*key, sizes[key[1]]) for key in contents}
    classes = {(name, content) for (_, name), content in contents.items()}
    alike = [[all_held[key] for key in contents if (key[1], contents[key]) == one] for one in sorted(classes)]
    return list(all_held.values()), [one for one in draw(st.permutations(alike)) if len(one) > 1]


# --- names -----------------------------------------------------------------------------------------------------


def test_the_owner_that_most_inputs_know() -> None:
    """Of names that could own, the commonest; of equally common ones, the one that was met first."""
    tensors = [("head", "embed"), ("embed",), ("embed", "lm")]
    graphs = [alias.build(checkpoint({name: view(0, 4) for name in names})) for names in tensors]
    assert [list(graph.owners) for graph in graphs] == [["head"], ["embed"], ["embed"]]
    found = many.agreed(graphs)
    assert [list(graph.owners) for graph in found] == [["embed"]] * 3
    for before, after in zip(graphs, found, strict=True):
        assert {n: (m.alias_set, m.set_evidence, m.evidence) for n, m in after.names.items()} == {
            n: (m.alias_set, "storage", "storage") for n, m in before.names.items()
        }
    swapped = [alias.build(checkpoint({name: view(0, 4) for name in names})) for names in ("ba", "ab")]
    assert [list(graph.owners) for graph in many.agreed(swapped)] == [["b"], ["b"]]
    slices = [alias.build(checkpoint({"w": (4,), "part": view(0, 2)})), alias.build(checkpoint({"part": (2,)}))]
    assert [list(graph.owners) for graph in many.agreed([*slices, slices[1]])] == [["w"], ["part"], ["part"]]


def test_namesakes() -> None:
    """One name, dtype, shape and mark in two or more inputs; what is calculated is nobody's."""
    same = [held(0, "w"), held(1, "w"), held(2, "w")]
    other = [held(3, "v"), held(3, "w", 2, 2), held(3, "w", dtype="int32"), held(3, "w", mark=("ema", "pt"))]
    signed = [Held(k, resolved("n", "neg", view(0, 4)), MARK) for k in (0, 1)]
    assert many.namesakes([*same[:2], *other, *signed, same[2]]) == [same]
    assert many.namesakes([*other, same[0]]) == []


def test_where_the_bytes_of_a_target_are() -> None:
    """The window of one plain copy that fills it in its order; nothing where something has to be calculated."""
    turned = View(0, FLOAT, 0, (3, 2), (1, 3))
    assert Held(0, whole("w", turned), MARK).window == turned
    crossed = Target("w", FLOAT, (2, 3), (Copy(View("w", FLOAT, 0, (3, 2), (1, 3)), ((1, view(0, 3, 2)),)),))
    halves = [Copy(contiguous("w", FLOAT, (2,), k), ((1, view(0, 2)),)) for k in (0, 2)]
    cast = Copy(contiguous("w", FLOAT, (4,)), ((1, view(0, 4, dtype="float16")),))
    for target in (crossed, Target("w", FLOAT, (4,), tuple(halves)), Target("w", FLOAT, (4,), (cast,))):
        assert Held(0, target, MARK).window is None


# --- units -----------------------------------------------------------------------------------------------------


@law
@given(families(), st.sampled_from([0, 16, 24, 1000]))
def test_units(family: tuple[list[Held], list[list[Held]]], least: int) -> None:
    """Every tensor of every input is in one unit; equal ones in the same, unless it would be a tiny shard."""
    all_held, classes = family
    units = many.units(all_held, classes, least)
    written = [(one.input, one.target.name) for found in units for one in found.held]
    assert sorted(written) == sorted((one.input, one.target.name) for one in all_held)
    assert all(one.target.name == found.name for found in units for one in found.held)
    worth = {tuple(one.input for one in members) for members in classes if members[0].target.nbytes >= least}
    shared = {found.held for found in units if len(found.held) > 1}
    assert shared == {tuple(members) for members in classes if tuple(one.input for one in members) in worth}
    firsts = [(one.input, one.target.name) for one in all_held]
    order = [firsts.index((found.users[0], found.name)) for found in units]
    assert order == sorted(order) and all(not found.lookers for found in units)


def test_small_ones_need_larger_ones_of_the_same_users() -> None:
    """One that is too small for a shard of its own goes into that of a larger one, and only of the same users."""
    large, small, lonely = (
        [held(k, name, size) for k in ks] for name, size, ks in (("w", 8, (0, 1)), ("b", 1, (0, 1)), ("c", 1, (0, 2)))
    )
    found = many.units([*large, *small, *lonely], [small, lonely, large], 16)
    assert [(one.name, one.users) for one in found] == [("w", (0, 1)), ("b", (0, 1)), ("c", (0,)), ("c", (2,))]


def test_with_other_names() -> None:
    """Units of one dtype, shape and mark under two names; not calculated, not small, not of one name alone."""
    a, a2, b, small = unit("a", 0, 1), unit("a", 2), unit("b", 2), unit("c", 2, size=3)
    marked = Unit((held(0, "d", mark=("ema", "pt")),))
    signed = Unit((Held(0, resolved("n", "neg", view(0, 4)), MARK),))
    assert many.with_other_names([a, small, b, marked, signed, a2], 16) == [[a, b, a2]]
    assert many.with_other_names([a, a2, small], 16) == [] == many.with_other_names([a, b], 17)
    empty = [Unit((held(0, name, 0),)) for name in "ab"]
    assert many.with_other_names(empty, 0) == []


@law
@given(st.lists(st.tuples(users, st.integers(0, 2)), min_size=1, max_size=7))
def test_renamed(rows: list[tuple[list[int], int]]) -> None:
    """What is gone is looked at by all that used it, on the unit of most users, the first; the rest stays."""
    units = [unit(f"u{k}", *some) for k, (some, _) in enumerate(rows)]
    alike = [[one for one, (_, content) in zip(units, rows, strict=True) if content == k] for k in range(2)]
    found = many.renamed(units, [one for one in alike if one])
    kept = {one.name: one for one in found.units}
    assert list(kept) == [one.name for one in units if one.name in kept]
    for one, (_, content) in zip(units, rows, strict=True):
        members = alike[content] if content < 2 else [one]
        best = next(x for x in members if len(x.users) == max(len(y.users) for y in members))
        assert (one.name in kept) == (one is best)
        assert kept[best.name].held == best.held
        assert kept[best.name].lookers == tuple(sorted({u for x in members for u in x.users} - set(best.users)))
        for user in one.users:
            assert found.moved.get((user, one.name)) == (None if one is best else kept[best.name])


@pytest.mark.parametrize("other", ["elsewhere", "v"])
def test_with_owners(other: str) -> None:
    """Every name of an owner goes with it, by content; its alias set is what it was."""
    made = checkpoint({"w": (4,), "part": view(0, 2, offset=1), "v": (4,)})
    graph = alias.build(made)
    found = many.with_owners(graph, {"w": other})
    assert {n: m.window for n, m in found.names.items()} == {
        "w": contiguous(other, FLOAT, (4,)),
        "part": contiguous(other, FLOAT, (2,), 1),
        "v": contiguous("v", FLOAT, (4,)),
    }
    assert [(m.alias_set, m.evidence, m.set_evidence) for m in found.names.values()] == [
        ("w", "content", "storage"),
        ("w", "content", "storage"),
        ("v", "storage", "storage"),
    ]
    assert set(found.owners) == {other, "v"} and found.owners["v"] == graph.owners["v"]
    assert found.owners[other] == graph.owners["v" if other == "v" else "w"] and list(found.names) == list(graph.names)


# --- shards ----------------------------------------------------------------------------------------------------


@law
@given(st.lists(st.tuples(users, st.sets(st.integers(4, 6)).map(sorted)), max_size=8))
def test_parts(rows: list[tuple[list[int], list[int]]]) -> None:
    """Units of the same users and lookers stand together, in order; parts of most users first."""
    units = [replace(unit(f"u{k}", *some), lookers=tuple(looking)) for k, (some, looking) in enumerate(rows)]
    parts = many.parts(units)
    assert sorted(one.name for part in parts for one in part.units) == sorted(one.name for one in units)
    for part in parts:
        assert list(part.units) == [one for one in units if (one.users, one.lookers) == (part.users, part.lookers)]
        assert part.using == part.users + part.lookers and part.nbytes == 16 * len(part.units)
    keys = [(-len(part.users), part.users, part.lookers) for part in parts]
    assert keys == sorted(set(keys))
