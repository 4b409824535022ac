"""Lines of one type and length, sorted by their hashes: where equal lines are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from paramtool.engine.compare.lines import (
    BLOCK_NBYTES,
    Claim,
    Hashed,
    LineHashes,
    LineKind,
    LineRun,
    LineWay,
    Runs,
    are_varied,
    is_proved,
    is_sure,
)
from paramtool.engine.read.elements import Array
from paramtool.engine.read.source import Source

MAX_BITS = 24
MAX_SURE = 64
"""Tensors that are preferred, where a line is in several."""
WORD_BITS = 64
Place = tuple[int, int]
"""(number of a tensor, number of a line in it)"""


class LineMap(NamedTuple):
    """How the lines of one tensor are found in others."""

    runs: Runs
    is_unique: bool
    """Whether each line is found in one place only."""


class LineTable:
    """Where lines are, by their hashes."""

    def __init__(self, parts: Iterable[tuple[int, Array]]) -> None:
        """`parts` are (number of a tensor, hashes of its lines [2, lines]), in the order of the numbers."""
        import numpy as np

        listed = list(parts)
        hashes = np.concatenate([one for _, one in listed], axis=1)
        order = np.argsort(hashes[0], kind="stable")
        if _splits(hashes, order):
            order = np.lexsort((hashes[1], hashes[0]))
        first, second = hashes[0][order], hashes[1][order]
        is_new = np.ones(len(order), bool)
        is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._begin = np.flatnonzero(is_new)
        self._count = np.diff(self._begin, append=len(order))
        self._first, self._second = first[self._begin], second[self._begin]
        self._tensor = np.repeat([number for number, _ in listed], [one.shape[1] for _, one in listed])[order]
        self._line = np.concatenate([np.arange(one.shape[1]) for _, one in listed])[order]
        bits = min(MAX_BITS, max(1, len(self._first).bit_length()))
        self._shift = np.uint64(WORD_BITS - bits)
        self._buckets = np.searchsorted(self._first, np.arange(1 << bits, dtype="u8") << self._shift)

    def has(self, hashes: Array) -> bool:
        """Whether every line is there."""
        return bool((self._found(hashes) >= 0).all())

    def _found(self, hashes: Array) -> Array:
        """The number of each hash in the table; -1 where it is not there.

        The first bits of a hash lead to the few that share them, so that no search is needed.
        """
        import numpy as np

        last = len(self._first) - 1
        at = self._buckets[hashes[0] >> self._shift]
        while True:
            near = np.minimum(at, last)
            is_one = self._first[near] == hashes[0]
            is_same = is_one & (self._second[near] == hashes[1])
            passed = (at <= last) & ((self._first[near] < hashes[0]) | (is_one & ~is_same))
            if not passed.any():
                return np.where((at <= last) & is_same, at, -1)
            at = at + passed

    def find(self, hashes: Array, own: Iterable[int] = ()) -> LineMap | None:
        """The map that the hashes of a tensor's lines propose; None where one is not there.

        Where lines are in several places, and a tensor of `own` has all of them, the map is of that tensor.
        """
        found = self._found(hashes)
        if (found < 0).any():
            return None
        if (self._count[found] > 1).any():
            known: dict[int, list[Place]] = {}
            every = [known.setdefault(one, known.get(one) or self._places(one)) for one in found.tolist()]
            for number in own:
                mine = {one: _of(places, number) for one, places in known.items()}
                if all(mine.values()):
                    return found_in([mine[one] for one in found.tolist()])._replace(is_unique=False)
            return found_in(every)
        return self._only(found)

    def find_only(self, hashes: Array) -> LineMap | None:
        """The same where each line is in one place only; a map without runs where one is in several."""
        found = self._found(hashes)
        if (found < 0).any():
            return None
        return LineMap(Runs.of([]), False) if (self._count[found] > 1).any() else self._only(found)

    def places(self, hashes: Array, most: int) -> Iterator[tuple[int, list[Place]]]:
        """(number of a hash, where it is: at most `most` places) of those that are there."""
        found = self._found(hashes)
        for k, one in enumerate(found.tolist()):
            if one >= 0:
                yield k, self._places(one, most)

    def _only(self, found: Array) -> LineMap:
        at = self._begin[found]
        return LineMap(Runs.of_lines(self._tensor[at], self._line[at]), True)

    def _places(self, one: int, most: int | None = None) -> list[Place]:
        where = slice(self._begin[one], self._begin[one] + self._count[one])
        return list(zip(self._tensor[where][:most].tolist(), self._line[where][:most].tolist(), strict=True))


def _splits(hashes: Array, order: Array) -> bool:
    """Whether lines of one first half have two second halves: their order has to be that of both."""
    first, second = hashes[0][order], hashes[1][order]
    return bool(((first[1:] == first[:-1]) & (second[1:] != second[:-1])).any())


def found_in(lines: Iterable[Sequence[Place]]) -> LineMap:
    """The map of lines, each of which is in some places, sorted.

    Of several places, the one that continues the run is taken; else one in a tensor that other lines are surely of.
    """
    every = list(lines)
    sure = list(dict.fromkeys(places[0][0] for places in every if places[0][0] == places[-1][0]))[:MAX_SURE]
    runs: list[LineRun] = []
    is_unique = True
    for to, places in enumerate(every):
        is_unique = is_unique and len(places) == 1
        last = runs[-1] if runs else None
        if last is not None and _has(places, (last.tensor, last.start + last.length)):
            runs[-1] = last._replace(length=last.length + 1)
        else:
            tensor, start = _next_of(places, runs, sure)
            runs.append(LineRun(tensor, start, 1, to))
    return LineMap(Runs.of(runs), is_unique)


def _of(places: Sequence[Place], number: int) -> Sequence[Place]:
    """The places in one tensor, of some that are sorted."""
    return places[bisect_left(places, (number, 0)) : bisect_left(places, (number + 1, 0))]


def _has(places: Sequence[Place], wanted: Place) -> bool:
    """Whether a place is one of many, which are sorted."""
    at = bisect_left(places, wanted)
    return at < len(places) and places[at] == wanted


def _next_of(places: Sequence[Place], runs: Sequence[LineRun], sure: Sequence[int]) -> Place:
    """Of several places, the one behind what was taken of its tensor before; else one in a tensor that is sure."""
    behind = ((one.tensor, one.start + one.length) for one in runs[-8:] if one.tensor in sure or not sure)
    if found := min((place for place in behind if _has(places, place)), default=None):
        return found
    for tensor in sure:
        at = bisect_left(places, (tensor, 0))
        if at < len(places) and places[at][0] == tensor:
            return places[at]
    return places[0]


# --- A search for maps without a table: the rows and columns of tensors by 128-bit hashes -----------------------------
#
# A hash only proposes: what it finds is a map where every byte agrees, and all of them are compared.
#
# Rows are hashed while they are read in order.  Of lines that are stored across, a few elements are read first, the
# same of all lines, in whole rows of their tensor.  Where these samples are all different they are the map that has to
# be proved; else the sums of whole lines decide.


LOOKED_AT = 8
"""How many lines are looked for before all are."""
ENTRY_NBYTES = 128
"""About what one line takes in the index while it is sorted, and in the maps that are found."""


class Among(NamedTuple):
    """Lines of the first checkpoint that can be equal to each other."""

    kind: LineKind
    is_across: bool
    is_sampled: bool = False
    """Whether only their samples are."""


Parts = list[tuple[int, "Array"]]
"""(number of a tensor as lines, hashes)"""


class LineIndex:
    """The lines of many tensors by their hashes."""

    def __init__(self, memory: int) -> None:
        """`memory` is the most bytes that the index may take."""
        self.memory = memory
        self.hashes = LineHashes()
        self._parts: dict[Among, Parts] = {}
        self._tables: dict[Among, LineTable] = {}
        self._ways: dict[Among, dict[int, LineWay]] = {}
        self._left = memory // ENTRY_NBYTES
        self._lock = Lock()
        self.missed = 0
        """How many tensors did not fit into memory."""

    def has_room(self, lines: int) -> bool:
        """Whether this many more lines fit into memory; if so, they are counted."""
        if lines > self._left:
            self.missed += 1
            return False
        self._left -= lines
        return True

    def add(self, number: int, way: LineWay, hashed: Hashed) -> None:
        """The lines of a tensor, and their samples."""
        among = Among(way.kind, way.lines.is_across)
        self._ways.setdefault(among, {})[number] = way
        for is_sampled, found in ((False, hashed.whole), (True, hashed.samples)):
            if found is not None:
                self._parts.setdefault(among._replace(is_sampled=is_sampled), []).append((number, found))

    def sort(self) -> None:
        """Called after some were added, and before any is looked for."""
        while self._parts:
            among, some = self._parts.popitem()
            self._tables[among] = LineTable(some)

    def find(self, a_source: Source, b_source: Source, way: LineWay, own: Collection[int] = ()) -> LineMap | None:
        """The map that gives a tensor's lines as rows of the first, every byte compared; None if there is none.

        Of several maps, that of a tensor of `own`: the numbers of what has the same name.
        """
        among = Among(way.kind, is_across=False)
        table = self._tables.get(among)
        if table is None or not all(table.has(self.hashes.of_rows(row)) for row in _some_rows(b_source, way)):
            return None
        return self._proved(a_source, b_source, table.find(self.hashes.whole(b_source, way), own), way, among)

    def find_across(
        self, a_source: Source, b_source: Source, way: LineWay, own: Collection[int] = ()
    ) -> LineMap | None:
        """The same of lines of which at least one side is stored across."""
        for is_across in (True, False) if way.lines.is_across else (True,):
            among = Among(way.kind, is_across)
            table = self._tables.get(among._replace(is_sampled=True))
            found = None if table is None else self._sampled(b_source, way, table)
            if found is not None and not found.is_unique:
                whole = self._whole(a_source, among)
                found = None if whole is None else whole.find(self.hashes.whole(b_source, way), own)
            if proved := self._proved(a_source, b_source, found, way, among):
                return proved
        return None

    def _sampled(self, source: Source, way: LineWay, table: LineTable) -> LineMap | None:
        """The map that the samples of lines propose; without runs where a sample is in several places."""
        is_read = not way.lines.is_across  # as a whole
        if is_read and not all(table.has(self.hashes.of_samples(row)) for row in _some_rows(source, way)):
            return None
        return table.find_only(self.hashes.samples(source, way))

    def _whole(self, source: Source, among: Among) -> LineTable | None:
        """The whole lines of which the samples are in the index; None where they do not fit into memory."""
        with self._lock:
            if among not in self._tables:
                ways = self._ways[among]
                if not self.has_room(sum(way.lines.total for way in ways.values())):
                    return None
                self._tables[among] = LineTable((k, self.hashes.whole(source, way)) for k, way in ways.items())
        return self._tables[among]

    def _proved(
        self, a_source: Source, b_source: Source, found: LineMap | None, way: LineWay, among: Among
    ) -> LineMap | None:
        """A map that was found, if it is sure and every byte is what it says."""
        if found is None:
            return None
        olds = {number: self._ways[among][number].lines for number in found.runs.tensors()}
        claim = Claim(way, olds, found.runs, self.memory)
        return found if is_sure(b_source, way) and is_proved(a_source, b_source, claim) else None


def _some_rows(source: Source, way: LineWay) -> Iterator[Array]:
    """A few lines as rows, spread over the tensor."""
    count = way.lines.total
    return (way.rows(source, k, k + 1) for k in range(0, count, max(1, count // LOOKED_AT)))


# --- Long runs of short lines: vectors joined, split and sliced, and matrices of a few columns, or of a few rows ------
#
# A line of a few bytes is equal to others by chance, and so is a map of such lines.  So they are looked for together
# with their neighbours: windows of at least 32 bytes of the first, side by side, are hashed, and windows of the second
# from each of its lines on.  Where one is found, lines are compared in both directions for as long as they are equal.
#
#     first     [ w0 | w1 | w2 | ...]        windows side by side
#     second       [ ... w1 ...]             a run of two windows' length holds at least one of them
#
# A run counts only if it is long and varied, or a whole tensor: zeros are everywhere.


RUN_NBYTES = 64
"""Shorter runs are equal by chance."""
WINDOW_NBYTES = RUN_NBYTES // 2
"""The least bytes of a window, so that each run holds one of them."""
MAX_WINDOW_NBYTES = 64 << 10
DISTINCT = 4
"""How many different elements a run has to have, too: there are many masks and indices."""
LOOKED_AMONG = 4096
"""Among how many of its elements."""
MAX_RUNS = 4096
MAX_TRIED = 16
"""How many places of one window are compared."""
FIRST_NBYTES = 4 << 10
"""How much is compared at first; then twice as much, and so on."""


def window(line_nbytes: int, lines: int, memory: int) -> int:
    """How many lines a window has, so that the windows of `lines` lines fit into `memory`; 0 if no size would.

    >>> window(4, 1000, 1 << 20), window(4, 10**6, 1 << 20), window(4, 10**9, 1 << 20)
    (8, 128, 0)
    """
    count = -(-WINDOW_NBYTES // line_nbytes)
    while lines // count > memory // ENTRY_NBYTES:
        count *= 2
        if count * line_nbytes > MAX_WINDOW_NBYTES:
            return 0
    return count


class ShortLines(NamedTuple):
    """Short lines of a tensor of the first checkpoint."""

    number: int
    way: LineWay
    is_whole: bool = False
    """Whether runs of it are looked for from its first line on only."""

    def blocks(self, source: Source, hashes: LineHashes, size: int) -> Array:
        """The hashes of its windows of `size` lines, side by side: uint64 [2, windows]."""
        import numpy as np

        windows = min(self.way.lines.total // size, 1 if self.is_whole else 1 << 62)
        step = max(1, BLOCK_NBYTES // (size * self.way.nbytes))
        parts = [np.empty((2, 0), "u8")]
        for at in range(0, windows, step):
            lines = self.way.rows(source, at * size, min(at + step, windows) * size)
            parts.append(hashes.of_rows(lines.reshape(-1, size * lines.shape[1])))
        return np.concatenate(parts, axis=1)


class Windows:
    """The windows of short lines of one kind, and the runs that they are part of."""

    def __init__(self, size: int, hashes: LineHashes, parts: Iterable[tuple[ShortLines, Array]]) -> None:
        """`size` is in lines; `parts` are tensors and the hashes of their windows, by their numbers."""
        listed = list(parts)
        self.size, self.hashes = size, hashes
        self.ways: Mapping[int, LineWay] = {one.number: one.way for one, _ in listed}
        self.table = LineTable((one.number, blocks) for one, blocks in listed)

    def find(self, a_source: Source, b_source: Source, way: LineWay, own: Collection[int] = ()) -> LineMap | None:
        """The runs that a tensor of the second is made of, every byte compared; None if it is not made of runs.

        Of equal runs, that of a tensor of `own`: the numbers of what has the same name.
        """
        found = _RunsOfOne(self, (a_source, b_source), way, own).runs()
        if found is not None:
            b_source.prove_later(way.lines.view.number)
            for number in found.runs.tensors():
                a_source.prove_later(self.ways[number].lines.view.number)
            a_source.settle()
            b_source.settle()
        return found


class _RunsOfOne:
    """The search for the runs of one tensor."""

    def __init__(self, windows: Windows, sources: tuple[Source, Source], way: LineWay, own: Collection[int]) -> None:
        self.windows, self.way, self.own = windows, way, own
        self.a_source, self.b_source = sources
        self.least = -(-RUN_NBYTES // way.nbytes)
        """How many lines a run has."""
        self.is_unique = True

    def runs(self) -> LineMap | None:
        """The longest run from the first line on, then that from where it ends, and so on."""
        runs: list[LineRun] = []
        at = 0
        while at < self.way.lines.total:
            found = self._longest(at, runs[-1].to + self.least if runs else 0)
            if found is None or len(runs) == MAX_RUNS:
                return None
            if runs and found.to < at:  # the run before went on by chance
                runs[-1] = runs[-1]._replace(length=found.to - runs[-1].to)
            runs.append(found)
            at = found.to + found.length
        return LineMap(Runs.of(runs), self.is_unique) if all(map(self._is_sure, runs)) else None

    def _longest(self, at: int, least: int) -> LineRun | None:
        """The run that has line `at` of the second, begins at `least` or later, and ends last."""
        runs = [run for place in self._places(at, least) if (run := self._run(place, at, least)) is not None]
        if not runs:
            return None
        best = max(map(self._rank, runs))
        same = [run for run in runs if self._rank(run) == best]
        self.is_unique = self.is_unique and len(same) == 1
        return next((run for run in same if run.tensor in self.own), same[0])

    def _rank(self, run: LineRun) -> tuple[int, bool]:
        return run.to + run.length, self._is_tensor(run)

    def _places(self, at: int, least: int) -> Iterator[LineRun]:
        """Line `at` of the second, and where it is in the first if windows about it are what they are there."""
        import numpy as np

        size = self.windows.size
        low = min(at, max(least, at - size + 1))
        high = min(self.way.lines.total, at + 2 * size - 1)
        if high - low < size:
            return
        lines = self.way.rows(self.b_source, low, high)
        every = np.lib.stride_tricks.sliding_window_view(lines, size, axis=0).transpose(0, 2, 1)
        hashes = self.windows.hashes.of_rows(np.ascontiguousarray(every).reshape(len(every), -1))
        found = self.windows.table.places(hashes, MAX_TRIED)
        shifts = {(tensor, block * size - (low + k)): None for k, places in found for tensor, block in places}
        for tensor, shift in shifts:
            if at + shift >= 0:
                yield LineRun(tensor, at + shift, 0, at)

    def _run(self, place: LineRun, at: int, least: int) -> LineRun | None:
        """All lines from a place on that are equal, and those before it as far as the tensor begins or a run needs."""
        length = self._equal(place)
        before = min(self.least, place.start, max(0, at - least)) if length else 0
        run = place._replace(start=place.start - before, to=at - before)
        mine = self.windows.ways[run.tensor].rows(self.a_source, run.start, run.start + before)
        differs = (mine != self.way.rows(self.b_source, run.to, run.to + before)).any(axis=1)
        before -= int(differs.nonzero()[0][-1]) + 1 if differs.any() else 0
        before = before if before == place.start else min(before, max(0, self.least - length))
        if not length or length + before < self.least:
            return None
        return LineRun(place.tensor, place.start - before, length + before, at - before)

    def _equal(self, run: LineRun) -> int:
        """How many lines are equal from where a run begins."""
        mine = self.windows.ways[run.tensor]
        most = min(mine.lines.total - run.start, self.way.lines.total - run.to)
        done, step = 0, max(1, FIRST_NBYTES // self.way.nbytes)
        while done < most:
            stop = min(done + step, most)
            one = mine.rows(self.a_source, run.start + done, run.start + stop)
            other = self.way.rows(self.b_source, run.to + done, run.to + stop)
            differs = (one != other).any(axis=1)
            if differs.any():
                return done + int(differs.argmax())
            done, step = stop, min(2 * step, max(1, BLOCK_NBYTES // self.way.nbytes))
        return done

    def _is_tensor(self, run: LineRun) -> bool:
        """Whether a run is a whole tensor of the first."""
        return not run.start and run.length == self.windows.ways[run.tensor].lines.total

    def _is_sure(self, run: LineRun) -> bool:
        """Whether a run is varied, or a whole tensor."""
        if self._is_tensor(run):
            return True
        count = min(run.length, max(1, LOOKED_AMONG // self.way.lines.view.shape[1]))
        lines = self.way.rows(self.b_source, run.to, run.to + count).reshape(1, -1)
        return bool(are_varied(lines)[0]) and len(set(lines[0].tolist())) >= min(DISTINCT, RUN_NBYTES // lines.itemsize)
