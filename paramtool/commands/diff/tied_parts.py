"""Ties of what tensors are made of: joined or split tensors, and several tensors that are made of one.

    A  l.0.q = l.1.q, l.0.k = l.1.k   B  l.0.qk and l.1.qk apart    the ties are lost
    A  q = k                          B  qk = [q; k]                one tensor has no room for the tie

What each tensor of the second checkpoint is made of, as windows on the first, says it in both directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paramtool.grouping import grouped
from paramtool.model.diff import TensorDiff
from paramtool.model.view import View, Views, overlaps

MAX_NAMES = 32
"""The most names of one alias set that are compared in pairs; of more, each with the first."""
MAX_WINDOWS = 64
"""Of tensors that are made of more windows, only equal windows count as common."""
MAX_REPEATS = 16
"""The most often that a window counts."""

Place = tuple[object, ...]
"""A window, whatever its shape: its storage and bytes, and its strides where it is not dense."""


@dataclass
class SharedNames:
    """The names of a checkpoint by the memory that they share."""

    sets: Mapping[str, str]
    """{name: the first name of its alias set}"""
    windows: Views


class MadeFrom(NamedTuple):
    """What tensors of the second checkpoint are made of."""

    windows: Mapping[str, Sequence[View]]
    """{name in the second: windows on the first}"""
    copied: frozenset[str]
    """Tensors of the first with lines that are found in place of equal ones."""


class LostTie(NamedTuple):
    """Two tensors of the second checkpoint that are tied in one of the two only."""

    name: str
    other: str
    """The same name where one tensor holds both."""
    olds: tuple[str, ...] = ()
    """What is tied in the first, where that has other names."""
    where: str = "A"
    has_room: bool = True
    """Whether the side without the tie could have it: no tensor shares memory with a part of itself."""


class TiedParts:
    """The ties of what tensors of the second are made of."""

    def __init__(self, a: SharedNames, b: SharedNames, rows: Mapping[str, TensorDiff], made: MadeFrom) -> None:
        """`rows` are {name in the second: its verdict}."""
        self.a, self.b, self.rows, self.copied = a, b, rows, made.copied
        known = {name: made.windows[name] for name in b.sets if name in rows and name in made.windows}
        self.sources = {name: [one for view in views for one in _each(view)] for name, views in known.items()}
        self.by_storage = grouped((view.storage, name) for name, view in a.windows.items() if name in a.sets)
        """{storage of the first: its names}"""
        self.places = {name: Counter(map(_place, views)) for name, views in self.sources.items()}

    def lost(self) -> Iterator[LostTie]:
        """Each name once for each side that alone ties it."""
        told: set[tuple[object, ...]] = set()
        for one in (*self._of_a(), *self._of_b()):
            key = (one.name, one.where, () if one.has_room else one.olds)
            if key not in told:
                told.add(key)
                yield one

    def _of_a(self) -> Iterator[LostTie]:
        """Ties of the first whose tensors are in memory of their own in the second."""
        users: dict[Place, list[str]] = {}
        views = {place: view for own in self.sources.values() for view in own for place in (_place(view),)}
        for name, places in self.places.items():
            for place, count in places.items():
                users.setdefault(place, []).extend([name] * count)
        for place, found in users.items():
            names = self._names_at(views[place]) if len(found) > 1 else ()
            if len(names) > 1:
                yield from self._of_place(found, names)

    def _names_at(self, view: View) -> Sequence[str]:
        """The names of the first that have memory in common with a window."""
        known = self.by_storage.get(view.storage, ())
        return [name for name in known if overlaps(self.a.windows[name], view)] if len(known) > 1 else known

    def _is_tied_in_a(self, name: str, other: str) -> bool:
        """Whether two names that share memory are tied: equal tensors that a record stores once are separate."""
        return self.a.sets[name] == self.a.sets[other]

    def _of_place(self, users: Sequence[str], names: Sequence[str]) -> Iterator[LostTie]:
        """What is lost of some names of the first that share memory, of which tensors of the second are made."""
        for name, count in Counter(users).items():
            row = self.rows[name]
            olds = [old for old in row.a if old in names]
            if (
                count > 1
                and (len(olds) > 1 or not row.layout)
                and self._is_tied_in_a(*(olds if len(olds) > 1 else names)[:2])
            ):
                yield LostTie(name, name, tuple(olds if len(olds) > 1 else names)[:2], has_room=False)
        of = self._matched(dict.fromkeys(users), names)
        first = next(iter(of), "")
        for name, old in of.items():
            if self.b.sets[name] != self.b.sets[first] and self._is_tied_in_a(old, of[first]):
                yield LostTie(name, first, (old, of[first]) if (old, of[first]) != (name, first) else ())

    def _matched(self, users: Collection[str], names: Sequence[str]) -> dict[str, str]:
        """{tensor of the second: which of some names it is}: its own, else one that its map names, else a free one."""
        found = {name: name for name in users if name in names}
        free = [name for name in names if name not in found]
        for name in users:
            if name not in found and free:
                old = next((one for one in self.rows[name].a if one in free), free[0])
                free.remove(old)
                found[name] = old
        return {name: found[name] for name in users if name in found}

    def _of_b(self) -> Iterator[LostTie]:
        """Ties of the second that are made of separate memory of the first."""
        sets = grouped((self.b.sets[name], name) for name in self.sources)
        for names in sets.values():
            for k, name in enumerate(names):
                others = names[:k] if len(names) <= MAX_NAMES else names[: min(k, 1)]
                if other := next((one for one in others if self._is_tied_in_b_only(name, one)), ""):
                    olds = {*self.rows[name].a, *self.rows[other].a}
                    is_whole = len(olds) > 1 or (self._has_copies(name, other) and not self.copied <= olds)
                    yield LostTie(name, other, where="B", has_room=is_whole)

    def _is_tied_in_b_only(self, name: str, other: str) -> bool:
        mine, theirs = self.b.windows.get(name), self.b.windows.get(other)
        if mine is None or theirs is None or not overlaps(mine, theirs):
            return False
        if self._has_copies(name, other):
            return True
        sets = self.a.sets
        olds = [(x, y) for x in self.rows[name].a for y in self.rows[other].a if x != y]
        if any(sets.get(x, x) == sets.get(y, y) for x, y in olds) or self.places[name].keys() & self.places[other]:
            return False
        views = [self.sources[one] for one in (name, other)]
        if not all(views):
            return False
        return max(map(len, views)) > MAX_WINDOWS or not any(overlaps(x, y) for x in views[0] for y in views[1])

    def _has_copies(self, name: str, other: str) -> bool:
        """Whether two tensors are made of the same lines, and the first has these lines more often, apart."""
        rows = self.rows[name], self.rows[other]
        if not self.copied or any(one.is_unique for one in rows) or self.places[name] != self.places[other]:
            return False
        return not any(len(self._names_at(view)) > 1 for view in self.sources[name])


def _each(view: View) -> list[View]:
    """A window as often as its axes repeat it."""
    axes = [(size, stride) for size, stride in view.axes if stride or size == 1]
    shape, strides = (tuple(axis[k] for axis in axes) for k in (0, 1))
    once = View(view.storage, view.dtype, view.offset, shape, strides)
    return [once] * min(view.numel // once.numel, MAX_REPEATS) if view.numel else []


def _place(view: View) -> Place:
    if view.is_contiguous:
        return view.storage, view.byte_start, view.byte_stop
    return view.storage, view.dtype, view.offset, view.shape, view.strides
