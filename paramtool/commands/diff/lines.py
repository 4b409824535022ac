"""Tensors that no table explains: their rows and columns are looked for in those of the first checkpoint."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from paramtool.commands.diff.axes import TakenTwice, beside_axes, by_axes, by_own_names
from paramtool.commands.diff.copies import give_copies, takes_given
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
from paramtool.commands.diff.made import MadeByTables
from paramtool.commands.diff.runs import RunSearch, as_rows
from paramtool.commands.diff.settled import Settled
from paramtool.commands.progress import Advance, Progress
from paramtool.engine.compare.line_hashes import Hashed
from paramtool.engine.compare.line_proof import is_proved
from paramtool.engine.compare.line_table import LineIndex, LineMap
from paramtool.engine.compare.lines import Claim, LineKind, Lines, LineWay, columns, has_lines, rows
from paramtool.engine.compare.sides import Sides, WindowPair, is_constant
from paramtool.engine.read.source import Source
from paramtool.model.diff import LAYOUT, ROUNDED, UNDECIDED, TensorDiff
from paramtool.model.tiling import unread
from paramtool.model.view import View, Views
from paramtool.passes.diff.names import biases_of, packed

NUMBERS = ("float", "bfloat", "complex")
"""What the names of types begin with that no codes are packed in."""
MAX_MEASURED = 1 << 16
"""What was lost by rounding is measured for maps of at most this many runs."""


def by_lines(work: Settled, made: MadeByTables, progress: Progress) -> None:
    """Settle what is made of lines of tensors of the first, and what is beside it, by the same map."""
    # The tensors of the second whose content shows where it comes from: neither codes nor one element repeated
    source, codes = work.sides.b.source, packed(work.b)
    varied = {
        name: view
        for name, view in work.left_b.items()
        if not (name in codes and not view.dtype.name.startswith(NUMBERS)) and not is_constant(source, view)
    }
    twice = TakenTwice(work)
    by_axes(work, varied, twice)
    beside_axes(work)
    first, names = _open(work), sorted(work.b)
    search = Search(first, _left(varied, work), work.sides, work.memory)
    maps, copies = [], []
    with progress("rows", search.nbytes) as advance:
        for one in search.found(advance):
            if _is_new(one, work):
                maps.append(one)
                if twice.is_copy(one.name, one.used()):
                    copies.append(one)
                    continue
                named = _under_own_name(one, work, twice)
                _settle(named, work, search)
                twice.made(one.name, one.olds)
                _follow(named, work, made, names)
    given = give_copies(work, maps, search.firsts)
    for one in copies:
        if one.name in work.left_b and takes_given(work, one, given):
            _settle(_under_own_name(one, work, twice), work, search)
        else:
            twice.note(one.name, one.olds)
    runs = RunSearch(first, _left(varied, work), work.sides, work.memory)
    _by_runs(runs, work, search, twice)
    if not search.is_complete:
        _undecided(work, [name for name, view in work.left_b.items() if has_lines(view)])
    _undecided(work, runs.missed)


def _by_runs(runs: RunSearch, work: Settled, search: Search, twice: TakenTwice) -> None:
    """Settle what is made of long runs; what takes only runs that others have is looked for in what is left."""
    copies: dict[str, View] = {}
    settled = 0
    for one in runs.found():
        if not _is_new(one, work):
            continue
        if twice.is_copy(one.name, one.used()):
            twice.note(one.name, one.olds)
            copies[one.name] = work.b[one.name]
            continue
        _settle(_under_own_name(one, work, twice), work, search)
        twice.made(one.name, one.olds)
        settled += 1
    if copies and settled and (left := _open(work)):
        again = RunSearch(left, copies, work.sides, work.memory)
        _by_runs(again, work, search, twice)


def _left(varied: Views, work: Settled) -> dict[str, View]:
    return {name: varied[name] for name in by_own_names(work, varied) if name in work.left_b}


def _is_new(one: FoundMap, work: Settled) -> bool:
    return one.name in work.left_b and not all(work.is_exchanged(old, one.name) for old in one.olds)


def _under_own_name(one: FoundMap, work: Settled, twice: TakenTwice) -> FoundMap:
    """A map of a tensor of several names by the name that the second has, too, or by one that no other map has.

    Lines are looked for under the first.
    """
    own = work.a.get(one.name)

    def name_of(old: str) -> str:
        return one.name if work.a[old] == own else twice.spare(old, one.name)

    return one._replace(lines={k: (name_of(old), lines) for k, (old, lines) in one.lines.items()})


def _open(work: Settled) -> dict[str, View]:
    """The tensors of the first that have elements which are in no tensor of the second so far."""
    return {
        name: view
        for name, view in work.a.items()
        if name in work.left_a or (name in work.used and unread(view, work.used[name]))
    }


def _settle(one: FoundMap, work: Settled, search: Search) -> None:
    """The verdict on a tensor, and on what is beside it."""
    found = list(search.beside(one, work.left_b))
    for old, window in one.used():
        work.use(old, [window])
    work.sources[one.name] = list(one.sources())
    pairs = one.pairs() if one.kind == ROUNDED and len(one.map.runs) <= MAX_MEASURED else ()
    lost = work.lost(one.kind, pairs) if pairs else None
    unique, moves = one.map.is_unique, one.moves()
    work.settle(one.kind, one.olds, one.name, how=one.how, is_unique=unique, change=lost, moves=moves)
    for name, olds in found:
        work.settle(LAYOUT, olds, name, how=f"{one.how}, as {one.name!r}")


def _follow(one: FoundMap, work: Settled, made: MadeByTables, names: list[str]) -> None:
    """What is beside a matrix by its name, by the same map; `names` are those of the second, sorted."""
    stem = one.name.removesuffix(".weight")
    at = bisect_left(names, stem)
    if not biases_of(one.name, work.left_b) and not any(
        name != one.name and name.startswith(stem) for name in names[at : at + 2]
    ):
        return
    runs = one.named()
    if one.is_of_rows and one.map.is_unique:
        work.maps[one.name] = runs
    made.follow(work.found[one.name], runs)


def _undecided(work: Settled, names: Iterable[str]) -> None:
    """Tensors that the search had no room for."""
    for name in names:
        if name in work.left_b:
            old = (name,) if name in work.left_a else ()
            how = "--memory was too small for the rows of A"
            work.found[name] = TensorDiff(UNDECIDED, old, (name,), how=how, nbytes=work.left_b.pop(name).nbytes)
            work.left_a.pop(name, None)


# --- Maps that no table has: lines of tensors found in the lines of others, and the same map for what is beside them -
#
# Rows first, then what the rows left: columns, and rows that are columns.


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
            olds[number] = Lines(as_rows(old, width))
        return Claim(LineWay(Lines(as_rows(view, width))), olds, one.map.runs, self._memory)
