"""Several checkpoints at once: which tensors are stored once for all of them, and in which shards.

There are four pure steps, with reading in between:

    agreed      the same owner in every input, for a tied tensor with several names
    namesakes   tensors of one name, dtype and shape, which the engine compares
    units       a stored tensor and the inputs that use it, from the classes of equal ones
    parts       units by the set of their users: a shard for each set, linked into the folder of each user

A unit has the same name in all of its users.  Equal bytes under *different* names can be shared only through the alias
record of the inputs that use another name (`renamed`): programs that do not read the record would miss those names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import AliasGraph
from paramtool.model.plan import Target
from paramtool.model.view import View
from paramtool.passes.dedup.placement import owned


class Held(NamedTuple):
    """A tensor that an input would store."""

    input: int
    target: Target
    mark: tuple[str, ...]
    """What else has to agree besides name, dtype, shape and bytes: the role, and the `format` in its file."""

    @property
    def window(self) -> View | None:
        """Its window on the source; None where it has to be calculated."""
        copies = self.target.copies
        if len(copies) == 1 and copies[0].is_plain and copies[0].destination == self.target.view:
            return copies[0].source
        return None


@frozen
class Unit:
    """A tensor that is written once for several inputs."""

    held: tuple[Held, ...]
    """The tensor as each of its users would store it, in the order of the inputs; the first is written."""
    lookers: tuple[int, ...] = ()
    """Inputs that use it under other names, through their alias records alone."""

    @property
    def name(self) -> str:
        """Its name, the same in every user."""
        return self.held[0].target.name

    @property
    def users(self) -> tuple[int, ...]:
        """The inputs that use it under its name."""
        return tuple(one.input for one in self.held)

    @property
    def nbytes(self) -> int:
        """Its size in bytes, counted once."""
        return self.held[0].target.nbytes


# --- names -----------------------------------------------------------------------------------------------------


def agreed(graphs: Sequence[AliasGraph]) -> list[AliasGraph]:
    """The graphs with the owners that most inputs have: of tied names, the one that occurs in most inputs."""
    known = Counter(name for graph in graphs for name in graph.names)
    rank: dict[str, int] = {}
    for graph in graphs:
        for name in graph.names:
            rank.setdefault(name, len(rank))
    return [owned(graph, lambda names: min(names, key=lambda name: (-known[name], rank[name]))) for graph in graphs]


def namesakes(held: Iterable[Held]) -> list[list[Held]]:
    """Tensors of one name, dtype, shape and mark in two or more inputs; calculated tensors are never matched."""
    groups = grouped(
        ((one.target.name, one.target.dtype, one.target.shape, one.mark), one) for one in held if one.window is not None
    )
    return [group for group in groups.values() if len(group) > 1]


# --- units -----------------------------------------------------------------------------------------------------


def units(held: Iterable[Held], classes: Iterable[Sequence[Held]], min_nbytes: int) -> list[Unit]:
    """Every tensor that is written, from the classes of equal namesakes, in the order of the inputs.

    A tensor below `min_nbytes` is shared only if a larger one has the same users: it is not worth a shard of its own.
    """
    found = [Unit(tuple(members)) for members in classes]
    large = {unit.users for unit in found if unit.nbytes >= min_nbytes}
    shared: dict[tuple[int, str], Unit] = {}
    for unit in found:
        if unit.users in large:
            shared |= {(one.input, unit.name): unit for one in unit.held}
    made: dict[tuple[int, str], Unit] = {}
    for one in held:
        unit = shared.get((one.input, one.target.name)) or Unit((one,))
        made.setdefault((unit.users[0], unit.name), unit)
    return list(made.values())


def with_other_names(found: Iterable[Unit], min_nbytes: int) -> list[list[Unit]]:
    """Groups of units of one dtype, shape and mark that differ in name, or have one name and different bytes."""
    groups = grouped(
        ((first.target.dtype, first.target.shape, first.mark), unit)
        for unit in found
        if (first := unit.held[0]).window is not None and unit.nbytes >= max(min_nbytes, 1)
    )
    return [group for group in groups.values() if len({unit.name for unit in group}) > 1]


@frozen
class SharedByRecord:
    """The units that are shared through alias records alone."""

    units: list[Unit]
    """The units that are still written, with the inputs that use them."""
    moved: Mapping[tuple[int, str], Unit]
    """{(input, owner): the unit that it is now a view of}"""


def renamed(found: Sequence[Unit], classes: Iterable[Sequence[Unit]]) -> SharedByRecord:
    """Store every class of equal units as the unit with the most users, or the first of these."""
    keeper: dict[int, Unit] = {}
    lookers: dict[int, set[int]] = {}
    for members in classes:
        best = max(members, key=lambda unit: len(unit.users))
        for unit in members:
            keeper[id(unit)] = best
            lookers.setdefault(id(best), set()).update(set(unit.users) - set(best.users))
    kept = {
        id(u): replace(u, lookers=tuple(sorted(lookers.get(id(u), ())))) for u in found if keeper.get(id(u), u) is u
    }
    moved = {
        (user, unit.name): kept[id(keeper[id(unit)])]
        for unit in found
        if id(unit) in keeper and id(unit) not in kept
        for user in unit.users
    }
    return SharedByRecord(list(kept.values()), moved)


def with_owners(graph: AliasGraph, moved: Mapping[str, str]) -> AliasGraph:
    """A graph in which owners become views of others with their dtype and shape: {owner: a name, here or elsewhere}."""
    gone = {
        name: m._replace(window=m.window.on(moved[m.owner], m.window.byte_start), evidence="content")
        for name, m in graph.names.items()
        if m.owner in moved
    }
    owners = {other: graph.owners[owner] for owner, other in moved.items()}
    owners |= omit(graph.owners, moved)
    return replace(graph, owners=owners, names={**graph.names, **gone})


# --- shards ----------------------------------------------------------------------------------------------------


@frozen
class UnitGroup:
    """Units with the same users and the same inputs that use them under other names."""

    users: tuple[int, ...]
    lookers: tuple[int, ...]
    units: tuple[Unit, ...]

    @property
    def using(self) -> tuple[int, ...]:
        """Every input whose folder needs the group."""
        return (*self.users, *self.lookers)

    @property
    def nbytes(self) -> int:
        """The size of its tensors in bytes."""
        return sum(unit.nbytes for unit in self.units)


def parts(found: Iterable[Unit]) -> list[UnitGroup]:
    """Groups of units by the set of their users, the largest sets first."""
    groups = grouped(((unit.users, unit.lookers), unit) for unit in found)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[0][0]), item[0]))
    return [UnitGroup(users, lookers, tuple(units)) for (users, lookers), units in ordered]
