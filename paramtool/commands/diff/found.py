"""What a search of lines found: a map, what it is called, and its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from paramtool.commands.diff.beside import NamedRun
from paramtool.commands.diff.words import words
from paramtool.engine.compare.cast_verdicts import REAL, CastPair
from paramtool.engine.compare.line_proof import is_proved
from paramtool.engine.compare.line_table import LineMap
from paramtool.engine.compare.lines import Claim, Lines, LineWay
from paramtool.engine.compare.sides import Sides, WindowPair
from paramtool.engine.read.source import Source
from paramtool.model.diff import CAST, LAYOUT, ROUNDED, LineMove, LinePlace
from paramtool.model.dtype import DType
from paramtool.model.view import View, Views
from paramtool.passes.diff.moves import MAX_MOVES
from paramtool.passes.diff.names import short

NamedLines = tuple[str, Lines]
"""A tensor of the first as lines."""


class ProvedMap(NamedTuple):
    """A map whose bytes were compared."""

    map: LineMap
    way: LineWay
    kind: str
    """LAYOUT, CAST or ROUNDED."""


Look = Callable[[Source, Source, str], ProvedMap | None]


class FoundMap(NamedTuple):
    """A tensor of the second checkpoint whose lines are those of tensors of the first."""

    name: str
    way: LineWay
    map: LineMap
    kind: str
    """LAYOUT, CAST or ROUNDED."""
    lines: Mapping[int, NamedLines]
    """{number in the map: a tensor of the first as lines}"""

    @property
    def olds(self) -> tuple[str, ...]:
        """The tensors of the first, in the order in which they come."""
        return tuple(dict.fromkeys(self.lines[number][0] for number in self.map.runs.tensors()))

    @property
    def is_plain(self) -> bool:
        """Whether the lines are neither negated nor cast."""
        return self.way.sign > 0 and self.kind == LAYOUT

    @property
    def is_of_rows(self) -> bool:
        """Whether rows are rows."""
        return not (self.way.lines.is_columns or any(lines.is_columns for _, lines in self.lines.values()))

    @property
    def how(self) -> str:
        """The map in words."""
        known = short(self.olds)
        names = {number: known[name] for number, (name, _) in self.lines.items()}
        is_columns = any(lines.is_columns for _, lines in self.lines.values())
        is_vector = not is_columns and self.way.lines.view.shape[1] == 1
        totals = {number: lines.total for number, (_, lines) in self.lines.items()}
        kind = "column" if is_columns else "element" if is_vector else "row"
        text = words(self.map.runs, names, kind, totals=totals)
        text = text if is_columns == self.way.lines.is_columns else f"transposed: {text}"
        return text if self.way.sign > 0 else f"negated: {text}"

    def used(self) -> Iterator[tuple[str, View]]:
        """(name in the first, a window on it that is read)"""
        for number, start, count in self.map.runs.covered():
            name, lines = self.lines[number]
            yield name, lines.part(start, count)

    def sources(self) -> Iterator[View]:
        """The windows that are read, each as often as its lines are taken."""
        import numpy as np

        runs, parts = self.map.runs, list(self.map.runs.covered())
        taken, covered = np.bincount(runs.tensor, runs.length), Counter[int]()
        for number, _, count in parts:
            covered[number] += count
        for number, start, count in parts:
            yield from [self.lines[number][1].part(start, count)] * max(1, int(taken[number]) // covered[number])

    def pairs(self) -> list[CastPair]:
        """Each run as a window of the first and one of the second."""
        theirs = self.way.lines
        return [
            CastPair(
                self.lines[run.tensor][1].part(run.start, run.length), theirs.part(run.to, run.length), self.way.sign
            )
            for run in self.map.runs
        ]

    def named(self) -> list[NamedRun]:
        """The lines by the names of tensors; nothing for those that are negated or cast."""
        if not self.is_plain:
            return []
        return [NamedRun(self.lines[run.tensor][0], run.start, run.length, run.to) for run in self.map.runs]

    def moves(self) -> tuple[LineMove, ...]:
        """Each run as a move; none where there are more than MAX_MOVES."""
        if len(self.map.runs) > MAX_MOVES:
            return ()
        theirs, found = self.way.lines, []
        for run in self.map.runs:
            name, lines = self.lines[run.tensor]
            here = LinePlace(run.start, lines.total, lines.is_columns)
            found.append(LineMove(name, run.length, here, LinePlace(run.to, theirs.total, theirs.is_columns)))
        return tuple(found)


def named_map(
    sources: tuple[Source, Source], found: LineMap | None, way: LineWay, lines: Sequence[NamedLines], *, memory: int
) -> ProvedMap | None:
    """A map that was found, with what it is called; None if there is none, or it has no name."""
    if found is None:
        return None
    olds = {number: lines[number][1] for number in found.runs.tensors()}
    kind = _kind_of(*sources, Claim(way, olds, found.runs, memory))
    return ProvedMap(found, way, kind) if kind else None


def _kind_of(a_source: Source, b_source: Source, claim: Claim) -> str:
    """What a map that was proved is called; "" where lines cast to a type were found among such casts of a third type.

    Two casts can round to the same numbers.  A cast is lossless where casting back gives all bytes, too.
    """
    types = {lines.view.dtype for lines in claim.olds.values()}
    if claim.way.dtype is not None:
        return ROUNDED if types == {claim.way.dtype} else ""
    own = claim.way.lines.view.dtype
    if types == {own}:
        return LAYOUT
    if len(types) > 1:
        return CAST if all(one == own or one.block_bytes < own.block_bytes for one in types) else ROUNDED
    back = claim._replace(way=claim.way._replace(dtype=types.pop()))
    return CAST if is_proved(a_source, b_source, back) else ROUNDED


def looked_for(sides: Sides, lines: Sequence[NamedLines], left: Views, look: Look) -> Iterator[FoundMap]:
    """The maps of tensors of the second, several at a time; what is encoded is read by one thread."""
    views = [one.view for _, one in lines]
    encoded = next((view for view in views if not sides.a.is_plain([view])), None)
    some = encoded or next(iter(views), None)
    names = list(left) if some is not None else []
    tasks = [(name, [WindowPair(some, left[name])]) for name in names if some is not None]
    for name, one in zip(names, sides.map(look, tasks), strict=True):
        if one is not None:
            yield FoundMap(name, one.way, one.map, one.kind, {k: lines[k] for k in one.map.runs.tensors()})


def distinct(views: Views) -> Iterator[tuple[str, View]]:
    """Tensors with their first names: other names of one tensor are no other places."""
    first: dict[View, str] = {}
    for name, view in views.items():
        first.setdefault(view, name)
    return ((name, view) for view, name in first.items())


def types(views: Views) -> list[DType]:
    """The types of some tensors."""
    return list(dict.fromkeys(view.dtype for view in views.values()))


def casts(lines: Lines, others: Iterable[DType]) -> Iterator[LineWay]:
    """Lines cast to each type that other tensors have."""
    own = lines.view.dtype
    for dtype in others:
        if dtype != own and is_number(own) and is_number(dtype):
            yield LineWay(lines, 1, dtype)


def is_number(dtype: DType) -> bool:
    """Whether a type may be negated, or cast."""
    return dtype.name.startswith(REAL)
