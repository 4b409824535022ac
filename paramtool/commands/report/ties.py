"""What changed in sharing between two checkpoints: names that share memory in one of them only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from paramtool.commands.report.sharing import NUMBERS, SharedGroup, group
from paramtool.model.alias import AliasGraph
from paramtool.model.diff import TensorDiff

MAX_OWNERS = 6
"""Stored tensors of one side that are drawn."""


class TieChange(NamedTuple):
    """Names that share memory otherwise in the two checkpoints, as each stores them."""

    a: tuple[SharedGroup, ...]
    b: tuple[SharedGroup, ...]
    left_out: int
    """Stored tensors that are not drawn."""
    alike: int
    """How many others look like it, but for numbers in names."""


def changes(a: AliasGraph, b: AliasGraph, tensors: Sequence[TensorDiff]) -> list[TieChange]:
    """The changes, of names that at least one group has in common with the other checkpoint.

    A name of the first is that of the second which holds the same bytes, as `diff` found.
    """
    renamed = {one.a[0]: one.b[0] for one in tensors if len(one.a) == len(one.b) == 1}
    mine, theirs = _sets(a, renamed), _sets(b, {})
    made = [
        _change((a, b), (mine, theirs), names)
        for names in _components(mine, theirs)
        if (_partition(mine, names) != _partition(theirs, names))
        and any(name in mine and name in theirs for name in names)
    ]
    alike: dict[object, list[TieChange]] = {}
    for one in made:
        # What two changes that look alike have in common.
        alike.setdefault(
            (
                tuple(
                    tuple(
                        (
                            NUMBERS.sub("*", made.owner),
                            made.words,
                            tuple((NUMBERS.sub("*", wire.name), wire.mark) for wire in made.wires),
                        )
                        for made in side
                    )
                    for side in (one.a, one.b)
                )
            ),
            [],
        ).append(one)
    return [same[0]._replace(alike=len(same) - 1) for same in alike.values()]


class _SideName(NamedTuple):
    own: str
    """The name in its own checkpoint."""
    alias_set: str


def _sets(graph: AliasGraph, renamed: Mapping[str, str]) -> dict[str, _SideName]:
    return {renamed.get(name, name): _SideName(name, one.alias_set) for name, one in graph.names.items()}


def _components(*sides: Mapping[str, _SideName]) -> Iterator[tuple[str, ...]]:
    """Names that share memory with each other in either checkpoint, directly or through others."""
    heads: dict[str, str] = {}

    def head(name: str) -> str:
        while heads.setdefault(name, name) != name:
            heads[name] = name = heads[heads[name]]
        return name

    for side in sides:
        first: dict[str, str] = {}
        for name, one in side.items():
            heads[head(name)] = head(first.setdefault(one.alias_set, name))
    found: dict[str, list[str]] = {}
    for name in heads:
        found.setdefault(head(name), []).append(name)
    yield from (tuple(names) for names in found.values() if len(names) > 1)


def _partition(side: Mapping[str, _SideName], names: Iterable[str]) -> set[frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for name in names:
        if name in side:
            groups.setdefault(side[name].alias_set, set()).add(name)
    return set(map(frozenset, groups.values()))


def _change(
    graphs: tuple[AliasGraph, AliasGraph], sides: tuple[Mapping[str, _SideName], Mapping[str, _SideName]],
    names: Sequence[str],
) -> TieChange:  # fmt: skip
    a, b = (
        list(_drawn(graph, side, other, names, letter=letter))
        for graph, side, other, letter in zip(graphs, sides, sides[::-1], "AB", strict=True)
    )
    left_out = max(0, len(a) - MAX_OWNERS) + max(0, len(b) - MAX_OWNERS)
    return TieChange(tuple(a[:MAX_OWNERS]), tuple(b[:MAX_OWNERS]), left_out, 0)


def _drawn(
    graph: AliasGraph, side: Mapping[str, _SideName], other: Mapping[str, _SideName], names: Sequence[str], *,
    letter: str,
) -> Iterator[SharedGroup]:  # fmt: skip
    """The stored tensors of some names; marked are names that the other checkpoint lacks or does not tie to these."""
    keys = {side[name].own: name for name in names if name in side}
    owners: dict[str, list[str]] = {}
    for own in keys:
        owners.setdefault(graph.names[own].owner, []).append(own)
    for owner, members in owners.items():
        made = group(owner, [graph.names[own] for own in members], graph)
        first = keys[members[0]]
        marks = {own: _mark(keys[own], first, other, letter) for own in members}
        wires = tuple(wire._replace(mark=marks[wire.name]) for wire in made.wires)
        is_alone = [wire.name for wire in wires if not wire.mark] == [made.owner] and len(wires) == 1
        words = f"{made.words}, shares no memory" if is_alone else made.words
        yield made._replace(words=words, wires=() if is_alone else wires)


def _mark(name: str, first: str, other: Mapping[str, _SideName], letter: str) -> str:
    if name not in other:
        return f"in {letter} only"
    is_tied = first in other and other[first].alias_set == other[name].alias_set
    return "" if name == first or is_tied else f"tied in {letter} only"
