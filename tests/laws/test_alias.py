"""Laws of the alias graph: its sweep against the quadratic definition, and its owners byte by byte."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model.alias import AliasGraph, build, choose
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import Inline, SourceFile, Storage
from paramtool.model.view import View, contiguous
from tests.examples import examples
from tests.laws.windows import byte_positions, views

law = settings(max_examples=examples(400), deadline=None)


def checkpoint(windows: dict[str, View], nbytes: dict[int, int] | None = None) -> Checkpoint:
    """A checkpoint in memory, its storages just as large as needed unless said otherwise."""
    sizes = {int(v.storage): 0 for v in windows.values()}
    for view in windows.values():
        sizes[int(view.storage)] = max(sizes[int(view.storage)], view.byte_stop)
    sizes |= nbytes or {}
    storages = {n: Storage(n, size, Inline(bytes(size))) for n, size in sizes.items()}
    return Checkpoint("test", (SourceFile("x", 0, 0),), storages, {n: Entry(v) for n, v in windows.items()})


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    """Up to 9 names on up to two storages: random windows, and copies and slices of earlier ones."""
    windows: dict[str, View] = {}
    for k in range(draw(st.integers(1, 9))):
        view = draw(views(max_axes=2))
        if windows and draw(st.booleans()):
            earlier = draw(st.sampled_from(sorted(windows)))
            view = windows[earlier]
            if view.shape and view.shape[0] > 1 and draw(st.booleans()):
                view = View(view.storage, view.dtype, view.offset, (view.shape[0] - 1, *view.shape[1:]), view.strides)
        else:
            view = view.on(draw(st.integers(0, 1)), view.byte_start)
        windows[f"n{k}"] = view
    return checkpoint(windows)


def quadratic(described: Checkpoint) -> set[frozenset[str]]:
    """Sets of names connected by common bytes: the definition, without a sweep."""
    touched = {n: {(v.storage, p) for p in byte_positions(v)} for n, v in described.windows()}
    label = {name: name for name in touched}
    for a, b in combinations(touched, 2):
        if touched[a] & touched[b]:
            old, new = label[b], label[a]
            label = {name: new if mark == old else mark for name, mark in label.items()}
    return {frozenset(n for n in label if label[n] == mark) for mark in label.values()}


def memories(graph: AliasGraph) -> set[frozenset[str]]:
    """The graph's memories as sets of names."""
    found: dict[str, set[str]] = {}
    for name, member in graph.names.items():
        found.setdefault(member.alias_set, set()).add(name)
    return {frozenset(names) for names in found.values()}


@law
@given(checkpoints())
def test_memories_are_what_real_overlap_connects(described: Checkpoint) -> None:
    """Names are in one memory exactly where a chain of common bytes connects them."""
    assert quadratic(described) == memories(build(described))


@law
@given(checkpoints())
def test_a_memory_is_called_by_its_first_name(described: Checkpoint) -> None:
    """The memory's name is the first of its names in file order."""
    order = list(described.entries)
    graph = build(described)
    for names in memories(graph):
        first = min(names, key=order.index)
        assert {first} == {graph.names[name].alias_set for name in names}


@law
@given(checkpoints(), st.sampled_from(("first", "last", "n[135]", "n[02468]")))
def test_every_window_finds_its_own_bytes_on_its_owner(described: Checkpoint, keep: str) -> None:
    """Byte k of a name, looked up through its owner's row-major bytes, is byte k of its source window."""
    graph = build(described, keep)
    for name, member in graph.names.items():
        owner = graph.owners[member.owner]
        stored = byte_positions(owner)
        through = [stored[p] for p in byte_positions(member.window)]
        assert byte_positions(member.source) == through, name
        assert member.source == described.entries[name].value


@law
@given(checkpoints(), st.sampled_from(("first", "last", "n[135]")))
def test_every_name_has_one_place(described: Checkpoint, keep: str) -> None:
    """The members are the names, in file order; every owner is needed; anonymous owners are no names."""
    graph = build(described, keep)
    assert list(described.entries) == list(graph.names)
    assert {member.owner for member in graph.names.values()} == set(graph.owners)
    assert graph.anonymous == {owner for owner in graph.owners if owner not in described.entries}


@law
@given(checkpoints(), st.sampled_from(("first", "last", "n[135]", "n[02468]")))
def test_keep_never_changes_memories(described: Checkpoint, keep: str) -> None:
    """Which name owns the bytes says nothing about who shares memory."""
    assert memories(build(described)) == memories(build(described, keep))


@law
@given(checkpoints(), st.sampled_from(("last", "n[135]", "n[02468]")))
def test_keep_chooses_among_those_that_cover(described: Checkpoint, keep: str) -> None:
    """Of the names whose window is the same as the owner's, the owner is the one that `keep` asks for."""
    graph = build(described, keep)
    for owner in graph.owners.keys() - graph.anonymous:
        if 0 in graph.owners[owner].shape:
            continue  # windows without elements share nothing, and each owns itself
        alike = [n for n, m in graph.names.items() if m.source == graph.names[owner].source]
        assert choose(alike, keep) == owner


@given(st.lists(st.sampled_from(("a", "b.c", "b.d", "e")), min_size=1, unique=True), st.sampled_from(("b*", "*", "x")))
def test_choose_takes_the_first_that_matches(names: list[str], pattern: str) -> None:
    """A pattern takes the first name that it matches, else the first."""
    matching = [name for name in names if fnmatchcase(name, pattern)]
    assert choose(names, pattern) == (matching or names)[0]


@st.composite
def fused(draw: st.DrawFn) -> tuple[Checkpoint, list[tuple[str, int, int]], int]:
    """Disjoint contiguous windows on one storage, in any order of names, with gaps and a tail."""
    dtype = DTYPES[draw(st.sampled_from(("uint8", "float32")))]
    parts = []
    at = 0
    for k in range(draw(st.integers(2, 6))):
        at += draw(st.sampled_from((0, 0, 3)))
        count = draw(st.integers(1, 6))
        parts.append((f"n{k}", at, count))
        at += count
    nbytes = (at + draw(st.integers(0, 4))) * dtype.block_bytes
    shuffled = draw(st.permutations(parts))
    made = checkpoint({name: contiguous(0, dtype, (count,), start) for name, start, count in shuffled}, {0: nbytes})
    size = dtype.block_bytes
    return made, [(name, start * size, (start + count) * size) for name, start, count in parts], nbytes


@law
@given(fused())
def test_disjoint_windows_on_one_storage_are_a_fused_block(
    case: tuple[Checkpoint, list[tuple[str, int, int]], int],
) -> None:
    """The parts stand in the order of their bytes; gaps and tail are what is left; nothing is an alias."""
    described, parts, nbytes = case
    graph = build(described)
    (block,) = graph.fused
    assert tuple(parts) == block.parts
    free = set(range(nbytes)) - {p for _, start, stop in parts for p in range(start, stop)}
    assert free == {p for start, stop in (*block.gaps, (nbytes - block.tail, nbytes)) for p in range(start, stop)}
    assert {0: len(free)} == ({0: 0} | dict(graph.unused))
    assert not list(graph.groups())


@law
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), min_size=1, max_size=6), st.integers(0, 9))
def test_unused_is_what_no_contiguous_window_touches(windows: list[tuple[int, int]], tail: int) -> None:
    """For contiguous windows, however they overlap, `unused` counts the bytes that none of them touches."""
    made = {f"n{k}": contiguous(0, DTYPES["float32"], (n,), start) for k, (start, n) in enumerate(windows)}
    nbytes = max(v.byte_stop for v in made.values()) + tail
    touched = {p for v in made.values() for p in byte_positions(v)}
    unused = dict(build(checkpoint(made, {0: nbytes})).unused)
    assert {0: nbytes - len(touched)} == ({0: 0} | unused)


def test_a_tensor_and_an_empty_one_are_no_fused_block() -> None:
    """A window without elements is a part of nothing, so one tensor beside it is not a block of parts."""
    graph = build(
        checkpoint({"w": contiguous(0, DTYPES["float32"], (4,)), "e": contiguous(0, DTYPES["float32"], (0,))})
    )
    assert graph.fused == ()


def test_a_fused_part_is_the_whole_that_its_names_share() -> None:
    """A part of a block reaches over all bytes that its names share, whichever stands first in the file."""
    dtype = DTYPES["uint8"]
    windows = {
        "row": contiguous(0, dtype, (2,), 2),
        "w": contiguous(0, dtype, (6,)),
        "b": contiguous(0, dtype, (4,), 6),
    }
    (block,) = build(checkpoint(windows)).fused
    assert block.parts == (("w", 0, 6), ("b", 6, 10))
