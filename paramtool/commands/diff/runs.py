"""Tensors made of long runs of vectors, and of matrices whose rows or columns are too short to be looked for alone."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from paramtool.commands.diff.found import FoundMap, NamedLines, ProvedMap, casts, distinct, looked_for, named_map, types
from paramtool.engine.compare.line_hashes import LineHashes
from paramtool.engine.compare.lines import LineKind, Lines, LineWay, elements, has_short_rows, short_columns
from paramtool.engine.compare.long_runs import ShortLines, Windows, window
from paramtool.engine.compare.runs import Runs
from paramtool.engine.compare.sides import Sides
from paramtool.engine.read.source import Source
from paramtool.model.view import View, Views


class RunSearch:
    """The runs of short lines of the first checkpoint, and what of the second is made of them."""

    def __init__(self, a: Views, b: Views, sides: Sides, memory: int) -> None:
        self.a, self.b, self.sides = a, b, sides
        self.missed: set[str] = set()
        """Tensors of the second for which the lines of the first did not fit into memory."""
        self._memory = memory
        self._lines: list[NamedLines] = []
        self._numbers: dict[View, list[int]] = {}
        """{tensor of the first: its numbers}"""
        self._windows: dict[LineKind, Windows] = {}
        self._ways = self._wanted()

    def _wanted(self) -> dict[str, list[LineWay]]:
        """How each tensor of the second is tried.

        One with long rows can be a slice of a vector; of fewer elements than the longest vector.
        """
        longest = max((view.numel for view in self.a.values() if has_short_rows(view)), default=0)
        others, found = types(self.a), dict[str, list[LineWay]]()
        for name, view in self.b.items():
            flat = elements(view) if has_short_rows(view) or view.numel <= longest else None
            every = [*([flat] if flat is not None else []), *short_columns(view)]
            found[name] = [way for lines in every for way in (LineWay(lines), *casts(lines, others))]
        return {name: ways for name, ways in found.items() if ways}

    def found(self) -> Iterator[FoundMap]:
        """Each tensor of the second that is made of long runs of the first, every byte compared."""
        for kind, some in self._of_first().items():
            self._index(kind, some)
        left = {name: self.b[name] for name in self._ways} if self._windows else {}
        for one in looked_for(self.sides, self._lines, left, self._of):
            if not _is_renamed(one, self.a, self.b):
                yield _in_rows(one, self.a, self.b[one.name])

    def _of_first(self) -> dict[LineKind, list[ShortLines]]:
        """The lines of the first in the types in which they are wanted.

        Those with long rows can be parts of a vector, as a whole: of fewer elements than the longest vector.
        """
        wanted = {way.kind for ways in self._ways.values() for way in ways}
        longest = max((view.numel for name, view in self.b.items() if name in self._ways), default=0)
        others, found = types(self.b), dict[LineKind, list[ShortLines]]()
        for name, view in distinct(self.a):
            flat = elements(view) if has_short_rows(view) or view.numel <= longest else None
            for lines in (*([flat] if flat is not None else []), *short_columns(view)):
                for way in (LineWay(lines), *casts(lines, others)):
                    if way.kind in wanted:
                        is_whole = not lines.is_columns and not has_short_rows(view)
                        found.setdefault(way.kind, []).append(ShortLines(len(self._lines), way, is_whole))
                self._numbers.setdefault(view, []).append(len(self._lines))
                self._lines.append((name, lines))
        return found

    def _index(self, kind: LineKind, some: list[ShortLines]) -> None:
        """The windows of lines of one kind."""
        total = sum(one.way.lines.total for one in some if not one.is_whole)
        size = window(some[0].way.nbytes, total + len(some), self._memory)
        if not size:
            self.missed |= {name for name, ways in self._ways.items() if any(way.kind == kind for way in ways)}
            return
        hashes = LineHashes()
        tasks = [(one, [one.way.lines.view]) for one in some]
        blocks = self.sides.a.map(lambda source, one: one.blocks(source, hashes, size), tasks)
        parts = [(one, found) for one, found in zip(some, blocks, strict=True) if found.size]
        if parts:
            self._windows[kind] = Windows(size, hashes, parts)

    def _of(self, a_source: Source, b_source: Source, name: str) -> ProvedMap | None:
        own = self._numbers.get(self.a[name], ()) if name in self.a else ()
        for way in self._ways[name]:
            windows = self._windows.get(way.kind)
            made = windows.find(a_source, b_source, way, own) if windows is not None else None
            if found := named_map((a_source, b_source), made, way, self._lines, memory=self._memory):
                return found
        return None


def _in_rows(one: FoundMap, a: Views, view: View) -> FoundMap:
    """A map of elements as one of rows, where all tensors have rows of one length and all runs are whole ones."""
    width, runs = prod(view.shape[1:]), one.map.runs
    ends = (runs.start, runs.length, runs.to)
    if one.way.lines.is_columns or width == 1 or any((end % width).any() for end in ends):
        return one
    if any(prod(a[old].shape[1:]) != width for old in one.olds):
        return one
    whole = Runs(runs.tensor, *(end // width for end in ends))
    lines = {number: (name, Lines(as_rows(old.view, width))) for number, (name, old) in one.lines.items()}
    way = one.way._replace(lines=Lines(as_rows(view, width)))
    return one._replace(way=way, map=one.map._replace(runs=whole), lines=lines)


def as_rows(view: View, width: int) -> View:
    """A tensor without gaps as rows."""
    return View(view.storage, view.dtype, view.offset, (view.numel // width, width), (width, 1))


def _is_renamed(one: FoundMap, a: Views, b: Views) -> bool:
    """Whether a tensor is a whole one of the first: other steps say whether that is a rename."""
    return len(one.map.runs) == 1 and a[one.olds[0]].shape == b[one.name].shape
