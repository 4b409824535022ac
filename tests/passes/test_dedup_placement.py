"""Names move onto the bytes of others: every value stays, and no alias set is touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model import alias
from paramtool.model.alias import AliasGraph, Derived, choose, fills
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.dtype import DTYPES
from paramtool.model.match import Content, Match
from paramtool.model.view import View, contiguous
from paramtool.passes.dedup.candidates import candidates, equal_groups
from paramtool.passes.dedup.placement import join, owned, settle
from tests.examples import examples
from tests.passes.made import checkpoint, view

BYTE, PAIR, FLOAT = DTYPES["uint8"], DTYPES["uint16"], DTYPES["float32"]
PATTERNS = [b"abcdef", b"adbecf", b"abcabc", b"cabcab", b"abcdefabcdef", b"xadbecfx", b"aaaaaa", b"abc", b"ad"]
"""Bytes of storages: slices, transposes and repetitions of each other."""
WINDOWS = [
    lambda k, n: contiguous(k, BYTE, (n,)),
    lambda k, n: contiguous(k, BYTE, (n // 3, 3)),
    lambda k, n: View(k, BYTE, 0, (3, n // 3), (1, 3)),
    lambda k, n: contiguous(k, BYTE, (n - 1,), 1),
    lambda k, n: contiguous(k, BYTE, (n - 1,)),
    lambda k, n: contiguous(k, PAIR, (n // 2,)),
    lambda k, n: View(k, BYTE, n % 2, (n // 2,), (2,)),
]
Bytes = list[bytes]


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[Checkpoint, Bytes]:
    """A checkpoint of few bytes, and the bytes of its storages."""
    data = draw(st.lists(st.sampled_from(PATTERNS), min_size=2, max_size=5))
    windows = [draw(st.sampled_from(WINDOWS))(k, len(data[k])) for k in range(len(data))]
    more = draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.sampled_from(WINDOWS)), max_size=4))
    windows += [window(k, len(data[k])) for k, window in more]
    return checkpoint({f"n{k}": one for k, one in enumerate(draw(st.permutations(windows)))}), data


def read(window: View, data: bytes) -> bytes:
    """The elements of a window, row by row."""
    size = window.dtype.block_bytes
    axes = zip(window.shape, window.strides, strict=True)
    places = product(*(range(0, count * step, step) for count, step in axes))
    starts = [(window.offset + sum(place)) * size for place in places]
    assert all(start + size <= len(data) for start in starts)
    return b"".join(data[start : start + size] for start in starts)


def values(graph: AliasGraph, data: Bytes) -> dict[str, bytes]:
    """What every name of a graph is, by way of what is stored."""
    stored = {}
    for owner, window in graph.owners.items():
        how = graph.derived.get(owner)
        assert how is None or how.window is None
        stored[owner] = how.element * window.numel if how else read(window, data[int(window.storage)])
    return {name: read(member.window, stored[member.owner]) for name, member in graph.names.items()}


def matches(graph: AliasGraph, data: Bytes) -> Iterator[Match]:
    """Every slice, transpose and other shape that is true of the bytes, looked for by force."""
    for a, b in product(graph.names.values(), repeat=2):
        if a.name == b.name or a.window.dtype != b.window.dtype:
            continue
        mine, theirs = (read(one.source, data[int(one.source.storage)]) for one in (a, b))
        shape, count = a.window.shape, b.window.numel
        found = [(contiguous(b.name, a.window.dtype, shape, k), "slice") for k in range(count - a.window.numel + 1)]
        if len(shape) == 2 and b.window.shape == shape[::-1]:
            found.append((View(b.name, a.window.dtype, 0, shape, (1, shape[0])), "transpose"))
        yield from (Match(a.name, b.name, window, what) for window, what in found if read(window, theirs) == mine)


def classes(made: Checkpoint, graph: AliasGraph, data: Bytes) -> list[list[str]]:
    """The names that are equal, as comparing their bytes would say."""
    found: list[list[str]] = []
    for group in equal_groups(candidates(made, graph, 1)):
        by_bytes: dict[bytes, list[str]] = {}
        for name, window in group:
            by_bytes.setdefault(read(window, data[int(window.storage)]), []).append(name)
        found += [names for names in by_bytes.values() if len(names) > 1]
    return found


def judge(before: AliasGraph, after: AliasGraph, data: Bytes) -> None:
    """Values, alias sets and their evidence stay; no more is stored; what changed its owner is there by content."""
    assert values(after, data) == {n: read(m.source, data[int(m.source.storage)]) for n, m in before.names.items()}
    assert list(after.names) == list(before.names)
    assert after.stored_nbytes <= before.stored_nbytes
    assert set(after.owners) >= {member.owner for member in after.names.values()} | after.anonymous
    for name, old in before.names.items():
        new = after.names[name]
        same = old._replace(window=new.window, evidence=new.evidence)
        assert new == same and new.set_evidence == "storage"
        native = after.names[new.owner].alias_set if new.owner in after.names else None
        assert native is None or new.evidence == ("storage" if new.alias_set == native else "content")


law = settings(max_examples=examples(50), deadline=None)
keeps = st.sampled_from(["first", "last", "n[135]"])


@law
@given(checkpoints(), keeps, st.data())
def test_values_stay_and_alias_sets_stay(found: tuple[Checkpoint, Bytes], keep: str, data: st.DataObject) -> None:
    """Whatever true findings come in whatever order."""
    made, bytes_ = found
    graph = alias.build(made, keep)
    equal = data.draw(st.permutations(classes(made, graph, bytes_)))
    joined = join(graph, equal, keep)
    judge(graph, joined, bytes_)
    true = list(matches(graph, bytes_))
    some = tuple(data.draw(st.lists(st.sampled_from(true), max_size=8))) if true else ()
    one = values(graph, bytes_)
    same = {n: one[n][: m.window.dtype.block_bytes] for n, m in graph.names.items() if len(set(one[n])) == 1}
    settled = settle(joined, Content(matches=some, constants=same), False, data.draw(st.booleans()))
    judge(joined, settled, bytes_)
    final = owned(settled, lambda names: choose(names, keep))
    judge(graph, final, bytes_)
    assert owned(final, lambda names: choose(names, keep)) == final
    for owner in final.owners.keys() - final.anonymous:
        whole = [n for n, m in final.names.items() if m.owner == owner and m.window.is_contiguous and fills(m, final)]
        if owner not in final.derived:
            assert owner == choose(whole, keep)


@law
@given(checkpoints(), keeps)
def test_equal_tensors_are_stored_once(found: tuple[Checkpoint, Bytes], keep: str) -> None:
    """After `join` equal names stand on equal places, except in larger tensors, which stay."""
    made, data = found
    graph = alias.build(made, keep)
    joined = join(graph, classes(made, graph, data), keep)
    for names in classes(made, graph, data):
        whole = [m for n in names if fills(m := graph.names[n], graph) and m.owner not in graph.anonymous]
        places = {joined.names[m.name].window for m in whole if m.window.dtype == graph.owners[m.owner].dtype}
        assert len(places) <= 1


# --- examples --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep, owner", [("first", "a"), ("last", "c"), ("b*", "b"), ("x*", "a")])
def test_who_owns(keep: str, owner: str) -> None:
    """As `keep` says, among all names that are the whole of it; a larger tensor that has it provides, whatever."""
    made = checkpoint({"a": (4,), "b": (4,), "c": (4,)})
    joined = join(alias.build(made, keep), [["a", "b", "c"]], keep)
    assert join(alias.build(made, keep), [["c", "b", "a"]], keep) == joined
    assert list(joined.owners) == [owner] and {m.owner for m in joined.names.values()} == {owner}
    assert {n: m.evidence for n, m in joined.names.items()} == {
        n: "storage" if n == owner else "content" for n in "abc"
    }
    assert [m.alias_set for m in joined.names.values()] == ["a", "b", "c"]
    inner = checkpoint({"a": (4,), "big": (8,), "part": view(1, 4, offset=4), "c": (4,)})
    joined = join(alias.build(inner, keep), [["a", "part", "c"]], keep)
    assert list(joined.owners) == ["big"] and joined.names["a"].window == contiguous("big", FLOAT, (4,), 4)


def test_a_tensor_of_two_shapes_connects_classes() -> None:
    """`a` equals one of its shapes and `c` the other, so all three are stored once."""
    made = checkpoint({"a": (2, 3), "b": (2, 3), "flat": view(1, 6), "c": (6,)})
    joined = join(alias.build(made), [["a", "b"], ["flat", "c"]], "first")
    assert list(joined.owners) == ["a"] and joined.names["c"].window == contiguous("a", FLOAT, (6,))


def test_a_larger_tensor_provides_for_all() -> None:
    """Also for those that it equals by way of another shape; of two larger ones the first in the file."""
    shapes = {"a": (2, 3), "b": (2, 3), "flat": view(1, 6), "c": (6,), "big": view(3, 8), "part": view(3, 6, offset=2)}
    joined = join(alias.build(checkpoint(shapes)), [["a", "b"], ["flat", "c", "part"]], "first")
    assert list(joined.owners) == ["big"] and joined.names["a"].window == contiguous("big", FLOAT, (2, 3), 2)
    two = checkpoint(
        {"a": (2,), "p": view(1, 2, offset=1), "x": view(1, 5), "q": view(2, 2, offset=1), "y": view(2, 4)}
    )
    assert join(alias.build(two), [["a", "q", "p"]], "last").names["a"].owner == "x"


def test_a_place_has_to_suit_the_type() -> None:
    """Four bytes into another tensor no float64 can stand, also where its float32 names could."""
    wide = view(0, 2, dtype="float64")
    for offset, stands in ((1, "wide"), (2, "big")):
        part = view(1, 4, offset=offset)
        made = checkpoint({"wide": wide, "narrow": view(0, 4), "big": view(1, 9), "part": part})
        joined = join(alias.build(made), [["narrow", "part"]], "first")
        assert joined.names["wide"].owner == stands


def test_what_could_not_be_found_again_stays() -> None:
    """A slice of a tensor across its rows has no window in the transposed one; then the other one moves, if it can."""
    turned = Match("w", "t", View("t", FLOAT, 0, (2, 3), (1, 2)), "transpose")
    plain = settle(alias.build(checkpoint({"w": (2, 3), "t": (3, 2)})), Content(matches=(turned,)), False, False)
    assert list(plain.owners) == ["t"] and plain.names["w"].window == View("t", FLOAT, 0, (2, 3), (1, 2))
    tied = checkpoint({"w": (2, 3), "across": view(0, 4, offset=1), "t": (3, 2)})
    other = settle(alias.build(tied), Content(matches=(turned,)), False, False)
    assert list(other.owners) == ["w"] and other.names["t"].window == View("w", FLOAT, 0, (3, 2), (1, 3))
    both = checkpoint({"w": (2, 3), "across": view(0, 4, offset=1), "t": (3, 2), "too": view(1, 4, offset=1)})
    assert settle(alias.build(both), Content(matches=(turned,)), False, False) == alias.build(both)


def test_what_came_with_others_counts() -> None:
    """A slice that has moved onto `w` has no window in what `w` would stand on; so `w` stays."""
    across = Match("c", "w", contiguous("w", FLOAT, (4,), 1), "slice")
    turned = Match("w", "t", View("t", FLOAT, 0, (2, 3), (1, 2)), "transpose")
    graph = alias.build(checkpoint({"w": (2, 3), "c": (4,), "t": (3, 2)}))
    found = settle(graph, Content(matches=(across, turned)), False, False)
    assert [member.owner for member in found.names.values()] == ["w", "w", "w"]
    assert found.names["c"].window == contiguous("w", FLOAT, (4,), 1)


def test_a_part_gives_no_place_to_the_whole() -> None:
    """Where a tensor cannot stand on a part of another, that other one does not stand on it, either."""
    made = checkpoint({"w": (2, 3), "across": view(0, 4, offset=1), "big": view(1, 8), "part": view(1, 3, 2, offset=2)})
    turned = Match("w", "part", View("part", FLOAT, 0, (2, 3), (1, 2)), "transpose")
    assert settle(alias.build(made), Content(matches=(turned,)), False, False) == alias.build(made)


def test_nothing_is_calculated_from_what_is_calculated() -> None:
    """Of a chain of casts only the first that is found; what stands elsewhere, or holds more, is not calculated."""
    types = {"double": "float64", "wide": "float32", "half": "float16"}
    made = checkpoint({name: view(k, 4, dtype=dtype) for k, (name, dtype) in enumerate(types.items())})
    wide = Match("wide", "double", contiguous("double", DTYPES["float64"], (4,)), "cast")
    half = Match("half", "wide", contiguous("wide", FLOAT, (4,)), "cast")
    for first, second in ((wide, half), (half, wide)):
        assert list(settle(alias.build(made), Content(matches=(first, second)), True, False).derived) == [first.name]
    other = checkpoint({"few": (2,), "more": (4,), "first": view(1, 2), "double": view(2, 2, dtype="float64")})
    cast = Match("few", "double", contiguous("double", DTYPES["float64"], (2,)), "cast")
    part = Match("few", "more", contiguous("more", FLOAT, (2,), 1), "slice")
    content = Content(matches=(cast, part), constants={"few": b"1234", "first": b"1234"})
    found = settle(alias.build(other), content, True, True)
    assert found.derived == {} and found.names["few"].owner == "more"


def test_casts_and_constants() -> None:
    """Calculated only where that is asked for, never from what is calculated, never what others need; slices first."""
    half = view(3, 2, 2, dtype="float16")
    made = checkpoint({"wide": (4,), "half": half, "ones": (4,), "few": (2,)})
    cast = Match("half", "wide", contiguous("wide", FLOAT, (2, 2)), "cast", lossless=False)
    back = Match("wide", "half", contiguous("half", DTYPES["float16"], (4,)), "cast")
    part = Match("few", "ones", contiguous("ones", FLOAT, (2,), 1), "slice")
    content = Content(matches=(cast, back, part), constants={"ones": b"1234", "half": b"12"})
    graph = alias.build(made)
    assert settle(graph, content, False, False).derived == {}
    found = settle(graph, content, True, False)
    assert found.derived == {"half": Derived(contiguous("wide", FLOAT, (2, 2)), lossless=False)}
    assert list(found.owners) == ["wide", "half", "ones"] and found.names["few"].owner == "ones"
    assert [m.evidence for m in found.names.values()] == ["storage", "storage", "storage", "content"]
    folded = settle(graph, content, False, True).derived
    assert folded == {"ones": Derived(None, b"1234"), "half": Derived(None, b"12")}
    assert settle(graph, replace(content, constants={"ones": b"12"}), False, True).derived == {}


def test_owners_of_what_is_calculated() -> None:
    """Another name can own it only in its type and shape; what it needs follows its owner's new name."""
    half = {
        "half": view(1, 2, 3, dtype="float16"),
        "row": view(1, 6, dtype="float16"),
        "bits": view(1, 6, dtype="int16"),
    }
    made = checkpoint({"a": (2, 3), "b": view(0, 6), **half})
    graph = alias.build(made)
    graph = replace(graph, derived={"half": Derived(contiguous("a", FLOAT, (2, 3)))})
    found = owned(graph, lambda names: names[-1])
    assert list(found.owners) == ["b", "row"] and found.derived == {"row": Derived(contiguous("b", FLOAT, (6,)))}
    assert found.owners["b"] == view(0, 6) and found.names["a"].evidence == "storage"


def test_evidence_is_about_the_owner() -> None:
    """With another owner the names of its alias set are there by storage, and all others by content."""
    graph = alias.build(checkpoint({"a": (4,), "b": (4,), "tied": view(1, 4)}))
    joined = join(graph, [["a", "b"]], "first")
    assert [member.evidence for member in joined.names.values()] == ["storage", "content", "content"]
    found = owned(joined, lambda names: names[-1])
    assert {n: (m.owner, m.evidence, m.alias_set) for n, m in found.names.items()} == {
        "a": ("tied", "content", "a"),
        "b": ("tied", "storage", "b"),
        "tied": ("tied", "storage", "b"),
    }


def test_spans_are_numbered_in_file_order() -> None:
    """Also where the names that stood first have moved to another span."""
    made = checkpoint({"a": view(0, 4), "b": view(0, 4, offset=2), "c": view(1, 4), "d": view(1, 4, offset=2)})
    graph = alias.build(made)
    names = {n: graph.names[n] for n in ("c", "d", "a", "b")}
    found = owned(replace(graph, names=names), lambda names: names[0])
    assert [m.owner for m in found.names.values()] == [f"paramtool.span/{k}" for k in (0, 0, 1, 1)]
    assert found.owners["paramtool.span/0"] == graph.owners["paramtool.span/1"] and len(found.anonymous) == 2
