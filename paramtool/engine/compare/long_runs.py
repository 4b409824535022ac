"""Long runs of short lines: vectors joined, split and sliced, and matrices of a few columns, or of a few rows.

A line of a few bytes is equal to others by chance, and so is a map of such lines.  So they are looked for together
with their neighbours: windows of at least 32 bytes of the first, side by side, are hashed, and windows of the second
from each of its lines on.  Where one is found, lines are compared in both directions for as long as they are equal.

    first     [ w0 | w1 | w2 | ...]        windows side by side
    second       [ ... w1 ...]             a run of two windows' length holds at least one of them

A run counts only if it is long and varied, or a whole tensor: zeros are everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.line_hashes import BLOCK_NBYTES, LineHashes, are_varied
from paramtool.engine.compare.line_table import LineMap, LineTable
from paramtool.engine.compare.lines import LineRun, LineWay, Runs
from paramtool.engine.read.source import Source

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

RUN_NBYTES = 64
"""Shorter runs are equal by chance."""
WINDOW_NBYTES = RUN_NBYTES // 2
"""The least bytes of a window, so that each run holds one of them."""
MAX_WINDOW_NBYTES = 64 << 10
ENTRY_NBYTES = 128
"""About what a window takes in the index."""
DISTINCT = 4
"""How many different elements a run has to have, too: there are many masks and indices."""
LOOKED_AT = 4096
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
            b_source.prove_later(int(way.lines.view.storage))
            for number in found.runs.tensors():
                a_source.prove_later(int(self.ways[number].lines.view.storage))
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
        count = min(run.length, max(1, LOOKED_AT // self.way.lines.view.shape[1]))
        lines = self.way.rows(self.b_source, run.to, run.to + count).reshape(1, -1)
        return bool(are_varied(lines)[0]) and len(set(lines[0].tolist())) >= min(DISTINCT, RUN_NBYTES // lines.itemsize)
