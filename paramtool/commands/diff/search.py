"""Maps that no table has: lines of tensors found in the lines of others, and the same map for what is beside them.

Rows first, then what the rows left: columns, and rows that are columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from paramtool.commands.diff.found import (
    FoundMap,
    Look,
    NamedLines,
    ProvedMap,
    casts,
    distinct,
    is_number,
    looked_for,
    named_map,
    types,
)
from paramtool.commands.progress import Advance
from paramtool.engine.compare.line_hashes import Hashed
from paramtool.engine.compare.line_index import LineIndex
from paramtool.engine.compare.line_proof import is_proved
from paramtool.engine.compare.line_table import LineMap
from paramtool.engine.compare.lines import Claim, LineKind, Lines, LineWay, columns, rows
from paramtool.engine.compare.sides import Sides, WindowPair
from paramtool.engine.read.source import Source
from paramtool.model.view import View

Views = Mapping[str, View]
Kinds = AbstractSet[LineKind]


class Added(NamedTuple):
    """Lines of the first for the index."""

    number: int
    way: LineWay
    is_whole: bool
    has_samples: bool

    @property
    def entries(self) -> int:
        """How many lines it has in the index."""
        return self.way.lines.total * (self.is_whole + self.has_samples)


class Search:
    """The lines of tensors of the first checkpoint, and what of the second is made of them."""

    def __init__(self, a: Views, b: Views, sides: Sides, memory: int) -> None:
        self.a, self.b, self.sides = a, b, sides
        self._memory = memory
        self._index = LineIndex(memory)
        self.firsts: list[NamedLines] = []
        """The tensors of the first as lines; their positions are the numbers in the index."""
        self._numbers: dict[View, list[int]] = {}
        """{tensor of the first: its numbers}"""
        self._types = types(a), types(b)
        self._ways = {name: list(self._ways_of(view)) for name, view in b.items()}

    @property
    def is_complete(self) -> bool:
        """Whether all that had to be looked at fitted into memory."""
        return not self._index.missed

    @property
    def nbytes(self) -> int:
        """About how many bytes are looked at, of both."""
        return sum(view.nbytes for side in (self.a, self.b) for view in side.values())

    def found(self, advance: Advance) -> Iterator[FoundMap]:
        """Each tensor of the second that is made of lines of the first, every byte compared."""
        left = dict(self.b)
        self._add(self._rows(), advance)
        for one in self._looked_for(left, self._as_rows):
            del left[one.name]
            advance(self.b[one.name].nbytes)
            yield one
        self._add(self._across(left), lambda nbytes: None)
        yield from self._looked_for(left, self._as_columns)

    def _ways_of(self, view: View) -> Iterator[LineWay]:
        """How the lines of a tensor of the second are tried: plain, negated, rounded to a type of the first."""
        for lines in (*rows(view), *columns(view)):
            yield LineWay(lines)
            if is_number(view.dtype):
                yield LineWay(lines, -1)
                yield from casts(lines, self._types[0])

    def _rows(self) -> Iterator[Added]:
        """Rows of the first that lines of the second can be equal to.

        A tensor is cut where its rows are shortest, or where those of the other are.
        """
        ways = [way for ways in self._ways.values() for way in ways]
        wanted = {way.kind for way in ways if not way.lines.is_across}
        shortest = {way.kind for every in self._ways.values() for way in every[:1] if not way.lines.is_across}
        across = {way.kind for way in ways if way.lines.is_across}
        for name, view in distinct(self.a):
            kinds = wanted
            for lines in (*rows(view), *columns(view)):
                if not lines.is_across:
                    yield from self._added(name, lines, kinds, across)
                    kinds = shortest

    def _across(self, left: Views) -> Iterator[Added]:
        """Lines of the first that are stored across, and that lines of what is left can be equal to."""
        wanted = {way.kind for name in left for way in self._ways[name]}
        for name, view in distinct(self.a) if left else ():
            for lines in (*columns(view), *rows(view)):
                if lines.is_across:
                    yield from self._added(name, lines, set(), wanted)

    def _added(self, name: str, lines: Lines, whole: Kinds, samples: Kinds) -> Iterator[Added]:
        """The lines of a tensor in each type in which they are wanted, if these fit into memory."""
        ways = [LineWay(lines), *casts(lines, self._types[1])]
        every = [Added(len(self.firsts), way, way.kind in whole, way.kind in samples) for way in ways]
        wanted = [one for one in every if one.is_whole or one.has_samples]
        if wanted and self._index.has_room(sum(one.entries for one in wanted)):
            self._numbers.setdefault(self.a[name], []).append(len(self.firsts))
            self.firsts.append((name, lines))
            yield from wanted

    def _add(self, added: Iterable[Added], advance: Advance) -> None:
        """Hash lines of the first."""
        every = list(added)
        hashed = self.sides.a.map(self._hashed, [(one, [one.way.lines.view]) for one in every])
        for one, found in zip(every, hashed, strict=True):
            self._index.add(one.number, one.way, found)
            advance(one.way.lines.view.nbytes if one.is_whole else 0)
        self._index.sort()

    def _hashed(self, source: Source, one: Added) -> Hashed:
        hashes = self._index.hashes
        if one.has_samples and one.is_whole:
            return hashes.both(source, one.way)
        if one.has_samples:
            return Hashed(None, hashes.samples(source, one.way))
        return Hashed(hashes.whole(source, one.way))

    def _looked_for(self, left: Views, look: Look) -> Iterator[FoundMap]:
        """The maps of what is left."""
        some = {name: self.b[name] for name in left if self._ways[name]}
        return looked_for(self.sides, self.firsts, some, look)

    def _as_rows(self, a_source: Source, b_source: Source, name: str) -> ProvedMap | None:
        ways = (way for way in self._ways[name] if not way.lines.is_across)
        own = self._own(name)
        found = ((self._index.find(a_source, b_source, way, own), way) for way in ways)
        return self._first(a_source, b_source, found)

    def _as_columns(self, a_source: Source, b_source: Source, name: str) -> ProvedMap | None:
        own = self._own(name)
        found = ((self._index.find_across(a_source, b_source, way, own), way) for way in self._ways[name])
        return self._first(a_source, b_source, found)

    def _own(self, name: str) -> Sequence[int]:
        """The numbers of what the first has under the name of a tensor of the second."""
        return self._numbers.get(self.a[name], ()) if name in self.a else ()

    def _first(
        self, a_source: Source, b_source: Source, every: Iterable[tuple[LineMap | None, LineWay]]
    ) -> ProvedMap | None:
        """The first map that has a name."""
        for made, way in every:
            if proved := named_map((a_source, b_source), made, way, self.firsts, memory=self._memory):
                return proved
        return None

    def beside(self, one: FoundMap, left_b: Views) -> Iterator[tuple[str, list[str]]]:
        """(tensor of the second, those of the first) of what is beside a matrix, proved by the same map of lines.

        A bias has an element for each row, and a scale or a factor of LoRA rows of its own width.
        """
        stem = one.name.removesuffix(".weight")
        if stem == one.name or not one.is_plain:
            return
        for name, view in list(left_b.items()):
            if name == one.name or not name.startswith(f"{stem}.") or not view.shape or not view.is_contiguous:
                continue
            ends = {old: f"{old.removesuffix('.weight')}{name[len(stem) :]}" for old in one.olds}
            claim = self._claim(one, view, ends)
            if claim is None:
                continue
            pairs = [WindowPair(old.view, view) for old in claim.olds.values()]
            if all(self.sides.map(is_proved, [(claim, pairs)])):
                yield name, list(ends.values())

    def _claim(self, one: FoundMap, view: View, ends: Mapping[str, str]) -> Claim | None:
        """That a tensor is made by the map of another one; None where shapes or types say no."""
        count = one.map.runs.lines
        if count != view.shape[0] or not view.numel or view.dtype.block_elements != 1:
            return None
        width = view.numel // count
        olds: dict[int, Lines] = {}
        for number, (name, lines) in one.lines.items():
            old = self.a.get(ends[name])
            if old is None or not old.is_contiguous or not old.shape or old.dtype != view.dtype:
                return None
            if (old.shape[0], old.numel) != (lines.total, lines.total * width):
                return None
            olds[number] = Lines(_as_rows(old, width))
        return Claim(LineWay(Lines(_as_rows(view, width))), olds, one.map.runs, self._memory)


def _as_rows(view: View, width: int) -> View:
    return View(view.storage, view.dtype, view.offset, (view.numel // width, width), (width, 1))
