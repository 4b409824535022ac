"""Ties that differ between two checkpoints: which names share memory, and which of their elements.

    A  l.0.q = l.1.q, l.0.k = l.1.k   B  l.0.qk and l.1.qk apart    the ties are lost
    A  q = k                          B  qk = [q; k]                one tensor has no room for the tie

What each tensor of the second checkpoint is made of, as windows on the first, says it in both directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from paramtool.commands._differences import declared_names
from paramtool.engine.read.elements import Array
from paramtool.grouping import grouped
from paramtool.model import alias
from paramtool.model.checkpoint import BY_CONFIG, Checkpoint, Compound, pending
from paramtool.model.diff import TensorDiff
from paramtool.model.view import View, Views, contiguous_strides, overlaps

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

    def __init__(
        self, a: SharedNames, b: SharedNames, rows: Mapping[str, TensorDiff], made: Mapping[str, Sequence[View]],
        copied: AbstractSet[str],
    ) -> None:  # fmt: skip
        """`rows` are {name in the second: its verdict}; `made` and `copied` are as of `ties`."""
        self.a, self.b, self.rows, self.copied = a, b, rows, copied
        known = {name: made[name] for name in b.sets if name in rows and name in made}
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
    once = view.with_axes(shape, strides)
    return [once] * min(view.numel // once.numel, MAX_REPEATS) if view.numel else []


def _place(view: View) -> Place:
    if view.is_contiguous:
        return view.storage, view.byte_start, view.byte_stop
    return view.storage, view.dtype, view.offset, view.shape, view.strides


# --- The ties of whole tensors, and what a config.json declares ------------------------------------------------------


def memory_of(checkpoint: Checkpoint) -> SharedNames:
    """The alias sets of all tensors, also of those whose sign is pending: they are windows on the memory of another."""
    signed = {name: sign[1] for name, entry in checkpoint.entries.items() if (sign := pending(entry.value))}
    graph = alias.build(checkpoint, parts=bool(signed), counts_unused=False)
    entries = checkpoint.entries
    labels = {f"{name}/data": name for name in signed if f"{name}/data" not in entries}
    sets = {
        labels.get(name, name): labels.get(one.alias_set, one.alias_set)
        for name, one in graph.names.items()
        if name in labels or (name in entries and not isinstance(entries[name].value, Compound))
    }
    windows = {name: entries[name].value for name in sets if isinstance(entries[name].value, View)}
    return SharedNames(sets, {**windows, **signed})  # type: ignore[dict-item]


Names = set[tuple[str, ...]]
"""The names of each tie."""


def ties(
    a: Checkpoint, b: Checkpoint, tensors: Sequence[TensorDiff], paths: tuple[str, str], *,
    made: Mapping[str, Sequence[View]], copied: AbstractSet[str],
) -> tuple[list[str], list[LostTie]]:  # fmt: skip
    """What is tied in one checkpoint and not in the other, or in another way; what a config.json declares.

    And ties that the other side cannot have, since one tensor holds what is tied.  `made` is {name in the second:
    windows on the first}, and `copied` are tensors of the first with lines that are found in place of equal ones.
    """
    renamed = _renamed(a, tensors)
    for name, entry in a.entries.items():  # a pending sign that both have is compared by what is below it
        new = renamed.get(f"{name}/data", "").removesuffix("/data")
        if new in b.entries and pending(entry.value) and pending(b.entries[new].value):
            renamed[name] = new
    mine, theirs = memory_of(a), memory_of(b)
    sets = list(_sets(mine, theirs, renamed))
    known = {frozenset((one.name, one.other, one.where)) for one in sets}
    parts = list(TiedParts(mine, theirs, {one.b[0]: one for one in tensors if one.a and one.b}, made, copied).lost())
    sets += [one for one in parts if one.has_room and frozenset((one.name, one.other, one.where)) not in known]
    declared = declared_names(a, paths[0]), declared_names(b, paths[1])
    moved: Names = set()
    own: Names = set()
    if declared[0] is not None and declared[1] is not None:  # of names that both have
        both = set(renamed.values()) & b.entries.keys()
        moved, own = (
            {cut for names in ties if len(cut := tuple(sorted(both.intersection(names)))) > 1}
            for ties in ([{renamed.get(name, name) for name in names} for names in declared[0]], declared[1])
        )
    sets = [one for one in sets if not any({one.name, one.other} <= {*names} for names in moved & own)]
    by_config = {
        (where, renamed.get(name, name) if where == "A" else name)
        for where, side in (("A", a), ("B", b))
        for name, one in side.entries.items()
        if one.link is not None and one.link.evidence == BY_CONFIG
    }
    groups = _together(sets)
    told = {where: [{*names} for side, names in groups if side == where] for where in ("A", "B")}
    alone = moved ^ own
    moved, own = (
        {names for names in alone & ties if not any(one >= {*names} for one in told[where])}
        for where, ties in (("A", moved), ("B", own))
    )
    differences = [
        *(_told(where, names, by_config) for where, names in groups),
        *(_told(one.where, [one.other, one.name], (), one.olds) for one in sets if one.olds),
        *_shared_elements(mine, theirs, renamed),
        *_declared_by_one(moved, own, renamed, mine, theirs),
    ]
    return differences, [one for one in parts if not one.has_room]


def _renamed(a: Checkpoint, tensors: Iterable[TensorDiff]) -> dict[str, str]:
    """{name in the first: name in the second} of whole tensors; of several, its own name where the second has it."""
    found: dict[str, str] = {}
    for one in tensors:
        is_whole = len(one.a) == len(one.b) == 1 and (one.a == one.b or _numel(one.shapes[0]) == _numel(one.shapes[1]))
        if is_whole:
            (old,), (new,) = one.a, one.b
            if old == new:
                found[old] = new
            else:
                found.setdefault(old, new)
    return found


def _numel(shape: Sequence[int] | None) -> int:
    return prod(shape) if shape is not None else -1


def _together(sets: Iterable[LostTie]) -> list[tuple[str, list[str]]]:
    """(A or B, names that share memory there alone), once for all names of one memory."""
    found: list[tuple[str, list[str]]] = []
    for one in sets:
        if one.olds:
            continue
        pair = [one.other, one.name]
        known = next((names for where, names in found if where == one.where and not {*names}.isdisjoint(pair)), None)
        if known is None:
            found.append((one.where, pair))
        else:
            known += [name for name in pair if name not in known]
    return found


def _told(where: str, names: Sequence[str], by_config: Container[tuple[str, str]], olds: Sequence[str] = ()) -> str:
    """A tie that is in one of the two only, in words; `by_config` are (A or B, name) of those that a config adds."""
    first, *others = names
    text = ", ".join(map(repr, others))
    if any((where, name) in by_config for name in names):
        return f"{text}: tied to {first!r} by the config.json of {where}, and apart in {'B' if where == 'A' else 'A'}"
    share = "shares" if len(others) == 1 else "share"
    more = f", as {olds[0]!r} and {olds[1]!r}" if olds else ""
    return f"{text}: {share} memory with {first!r} in {where} only{more}"


def _sets(a: SharedNames, b: SharedNames, renamed: Mapping[str, str]) -> Iterator[LostTie]:
    """Names that share memory in one checkpoint and not in the other, of those that both have.

    A tensor that only one has can hold two others that have no byte in common, which are not tied by it.
    """
    mine = {renamed[name]: renamed.get(head, head) for name, head in a.sets.items() if name in renamed}
    theirs = {name: head for name, head in b.sets.items() if name in mine}
    windows = {renamed[name]: view for name, view in a.windows.items() if name in renamed}
    for one, other, where, views in ((mine, theirs, "A", windows), (theirs, mine, "B", b.windows)):
        together: dict[str, list[str]] = {}
        for name in one:
            mates = together.setdefault(one[name], [])
            if not any(other.get(mate) == other.get(name) for mate in mates[:MAX_NAMES]):
                met = (mate for mate in mates[:MAX_NAMES] if _may_meet(views.get(mate), views.get(name)))
                if mate := next(met, ""):
                    yield LostTie(name, mate, where=where)
            mates.append(name)


def _may_meet(one: View | None, other: View | None) -> bool:
    """Whether two windows can have an element in common; those on storages of their own by what a record declares."""
    return one is None or other is None or one.storage != other.storage or overlaps(one, other)


def _shared_elements(a: SharedNames, b: SharedNames, renamed: Mapping[str, str]) -> Iterator[str]:
    """Names that share memory in both, and other elements of it."""
    together = grouped(
        ((a.sets[name], b.sets[new]), name)
        for name, new in renamed.items()
        if name in a.windows and new in b.windows and name in a.sets and new in b.sets
    )
    for names in together.values():
        for k, name in enumerate(names):
            others = names[:k] if len(names) <= MAX_NAMES else names[: min(k, 1)]
            if other := _otherwise(name, others, a, b, renamed=renamed):
                yield f"{renamed[name]!r}: shares other elements with {renamed[other]!r} in B than in A"


def _otherwise(name: str, others: Sequence[str], a: SharedNames, b: SharedNames, *, renamed: Mapping[str, str]) -> str:
    """The first name with which another one shares other elements; "" if there is none."""
    for other in others:
        mine = TiedPair(a.windows[other], a.windows[name])
        theirs = TiedPair(b.windows[renamed[other]], b.windows[renamed[name]])
        if any(pair.one.storage != pair.other.storage for pair in (mine, theirs)):
            continue  # declared, and stored apart
        if not (overlaps(*mine) or overlaps(*theirs)):
            continue
        if [one.shape for one in mine] == [one.shape for one in theirs] and not share_alike(mine, theirs):
            return other
    return ""


def _declared_by_one(
    moved: Names, own: Names, renamed: Mapping[str, str], mine: SharedNames, theirs: SharedNames
) -> Iterator[str]:
    """Ties that only one of two config.json declares.

    Where the names share memory in both files, and the config of one is about other names, that is no difference.
    """
    olds = {new: old for old, new in renamed.items()}
    for names in sorted(moved ^ own):
        heads = {mine.sets.get(olds[name], name) for name in names}, {theirs.sets.get(name, name) for name in names}
        if all(olds[name] != name for name in names) and len(heads[0]) == len(heads[1]) == 1:
            continue
        where = "A" if names in moved else "B"
        yield f"{' = '.join(map(repr, names))}: tied by the config.json of {where} only"


# --- Whether two tensors share the same elements in one checkpoint as in another, wherever their storages hold them ---
#
#     A   x = s[0:8], y = s[4:12]      y[k] is x[k + 4], for 4 elements
#     B   x = t[0:8], y = t[2:10]      y[k] is x[k + 2], for 6 elements: other ties, though both overlap
#
# No byte is read: where an element is follows from the windows.


BLOCK_ELEMENTS = 1 << 18
MAX_SORTED = 1 << 22
"""The most elements of a window whose strides no digits undo that are sorted.  Larger ones, and those that contain an
element twice, count as tied otherwise where their places differ."""


class TiedPair(NamedTuple):
    """Two windows on one storage."""

    one: View
    other: View


def share_alike(a: TiedPair, b: TiedPair) -> bool:
    """Whether each element of the second window is the same element of the first one, or none, in both pairs.

    Windows of unequal types are compared by their places alone.
    """
    if _places(a) == _places(b):
        return True
    if a.one.shape != b.one.shape or a.other.shape != b.other.shape:
        return False
    if any(pair.one.dtype != pair.other.dtype for pair in (a, b)):
        return False
    if any(_repeats(x) != _repeats(y) for x, y in zip(a, b, strict=True)):
        return False
    first, second = (TiedPair(_once(pair.one), _once(pair.other)) for pair in (a, b))
    import numpy as np

    finders = [_Finder(pair.one) for pair in (first, second)]
    if not all(finder.has_each_once() for finder in finders):
        return False
    for start in range(0, first.other.numel, BLOCK_ELEMENTS):
        flat = np.arange(start, min(start + BLOCK_ELEMENTS, first.other.numel))
        mine, theirs = (
            finder.find(_addresses(pair.other, flat)) for finder, pair in zip(finders, (first, second), strict=True)
        )
        if not np.array_equal(mine, theirs):
            return False
    return True


def _places(pair: TiedPair) -> tuple[object, ...]:
    one, other = pair
    return one.shape, one.strides, other.shape, other.strides, other.byte_start - one.byte_start


def _repeats(view: View) -> list[bool]:
    """Which axes repeat their elements."""
    return [size > 1 and not stride for size, stride in view.axes]


def _once(view: View) -> View:
    """A window without its axes that repeat elements."""
    keep = [k for k, is_repeated in enumerate(_repeats(view)) if not is_repeated]
    shape, strides = (tuple(of[k] for k in keep) for of in (view.shape, view.strides))
    return view.with_axes(shape, strides)


def _addresses(view: View, flat: Array) -> Array:
    """Where elements are in the storage, by their row-major numbers."""
    import numpy as np

    index = np.unravel_index(flat, view.shape) if view.shape else ()
    found: Array = np.full(flat.shape, view.offset, "i8")
    for at, stride in zip(index, view.strides, strict=True):
        found = found + at * stride
    return found


class _Finder:
    """The row-major numbers of the elements of a window at some places in its storage; -1 where it has none."""

    def __init__(self, view: View) -> None:
        self.view = view
        axes = [k for k, size in enumerate(view.shape) if size > 1]
        self.axes = sorted(axes, key=lambda k: -view.strides[k])
        inner = 0
        self.is_nested = True
        for k in reversed(self.axes):
            self.is_nested = self.is_nested and view.strides[k] > inner
            inner += (view.shape[k] - 1) * view.strides[k]
        self._sorted: tuple[Array, Array] | None = None

    def has_each_once(self) -> bool:
        """Whether it is known that no two elements are at one place."""
        if self.is_nested or self.view.numel > MAX_SORTED:
            return self.is_nested
        own, _ = self._in_order()
        return bool((own[1:] != own[:-1]).all())

    def find(self, addresses: Array) -> Array:
        """Their numbers."""
        return self._by_digits(addresses) if self.is_nested else self._by_order(addresses)

    def _by_digits(self, addresses: Array) -> Array:
        import numpy as np

        rest = addresses - self.view.offset
        is_inside = rest >= 0
        numbers = np.zeros(addresses.shape, "i8")
        weights = contiguous_strides(self.view.shape)
        for k in self.axes:
            digit, rest = rest // self.view.strides[k], rest % self.view.strides[k]
            is_inside &= digit < self.view.shape[k]
            numbers += digit * weights[k]
        return np.where(is_inside & (rest == 0), numbers, -1)

    def _in_order(self) -> tuple[Array, Array]:
        """The places of all elements, ascending, and their numbers."""
        import numpy as np

        if self._sorted is None:
            own = _addresses(self.view, np.arange(self.view.numel))
            order = np.argsort(own, kind="stable")
            self._sorted = own[order], order
        return self._sorted

    def _by_order(self, addresses: Array) -> Array:
        import numpy as np

        own, order = self._in_order()
        place = np.minimum(np.searchsorted(own, addresses), len(own) - 1)
        return np.where(own[place] == addresses, order[place], -1)
