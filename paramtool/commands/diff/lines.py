"""Tensors that no table explains: their rows and columns are looked for in those of the first checkpoint."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from math import prod
from typing import NamedTuple

from paramtool.commands.diff.found import FoundMap, NamedLines, as_rows, casts, kind_of
from paramtool.commands.diff.settled import Settled, distinct
from paramtool.commands.diff.whole_tensors import TakenTwice, beside_axes, by_axes, by_own_names
from paramtool.commands.progress import Advance, Progress
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.equal import is_constant
from paramtool.engine.compare.line_table import LineIndex, LineMap, ShortLines, Windows, window
from paramtool.engine.compare.lines import (
    Hashed,
    LineHashes,
    LineKind,
    Lines,
    LineWay,
    Runs,
    columns,
    has_lines,
    has_short_rows,
    rows,
    rows_at_once,
    short_lines,
)
from paramtool.engine.compare.sides import Sides
from paramtool.engine.read.elements import Array
from paramtool.engine.read.source import Source
from paramtool.model import quantised
from paramtool.model.diff import LAYOUT, UNDECIDED, TensorDiff, spans
from paramtool.model.tiling import unread
from paramtool.model.view import View, Views
from paramtool.passes.diff.names import biases_of


def by_lines(work: Settled, progress: Progress) -> None:
    """Settle what is made of lines of tensors of the first, and what is beside it, by the same map."""
    # The tensors of the second whose content shows where it comes from: neither codes nor one element repeated
    source, codes = work.sides.b.source, quantised.packed(work.checkpoints[1].entries)
    varied = {
        name: view
        for name, view in work.left_b.items()
        if not (name in codes and not view.dtype.is_inexact) and not is_constant(source, view)
    }
    twice = TakenTwice(work)
    by_axes(work, varied, twice)
    beside_axes(work)
    first, names = _open(work), sorted(work.b)
    search = Search(first, _left(varied, work), work.sides, work.memory)
    maps, copies = [], []
    with progress("rows", sum(view.nbytes for side in (search.a, search.b) for view in side.values())) as advance:
        for one in search.found(advance):
            if _is_new(one, work):
                maps.append(one)
                if named := _taken(one, work, twice):
                    _follow(named, work, names)
                else:
                    copies.append(one)
    given = give_copies(work, maps, search.firsts)
    for one in copies:
        if not (one.name in work.left_b and takes_given(work, one, given) and _taken(one, work, twice, is_given=True)):
            twice.note(one.name, one.olds)
    runs = RunSearch(first, _left(varied, work), work.sides, work.memory)
    _by_runs(runs, work, twice)
    if search.index.missed:
        _undecided(work, [name for name, view in work.left_b.items() if has_lines(view)])
    _undecided(work, runs.missed)


def _by_runs(runs: RunSearch, work: Settled, twice: TakenTwice) -> None:
    """Settle what is made of long runs; what takes only runs that others have is looked for in what is left."""
    copies: dict[str, View] = {}
    settled = 0
    for one in runs.found():
        if not _is_new(one, work):
            continue
        if _taken(one, work, twice):
            settled += 1
        else:
            twice.note(one.name, one.olds)
            copies[one.name] = work.b[one.name]
    if copies and settled and (left := _open(work)):
        again = RunSearch(left, copies, work.sides, work.memory)
        _by_runs(again, work, twice)


def _left(varied: Views, work: Settled) -> dict[str, View]:
    return {name: varied[name] for name in by_own_names(work, varied) if name in work.left_b}


def _is_new(one: FoundMap, work: Settled) -> bool:
    return one.name in work.left_b and not all(work.is_exchanged(old, one.name) for old in one.olds)


def _taken(one: FoundMap, work: Settled, twice: TakenTwice, *, is_given: bool = False) -> FoundMap | None:
    """Settle what takes lines that no other tensor has taken, or that were given to it; None for second copies.

    A tensor of several names is taken by the name that the second has, too, or by one that no other map has: lines are
    looked for under the first.
    """
    if not is_given and twice.is_copy(one.name, one.used()):
        return None
    own = work.a.get(one.name)

    def name_of(old: str) -> str:
        return one.name if work.a[old] == own else twice.spare(old, one.name)

    named = one._replace(lines={k: (name_of(old), lines) for k, (old, lines) in one.lines.items()})
    work.settle_lines(named, how=named.how, is_unique=named.map.is_unique, moves=named.moves())
    twice.made(one.name, one.olds)
    return named


def _open(work: Settled) -> dict[str, View]:
    """The tensors of the first that have elements which are in no tensor of the second so far."""
    return {
        name: view
        for name, view in work.a.items()
        if name in work.left_a or (name in work.used and unread(view, work.used[name]))
    }


def _follow(one: FoundMap, work: Settled, names: list[str]) -> None:
    """What is beside a matrix by its name, by the same map; `names` are those of the second, sorted."""
    stem = one.name.removesuffix(".weight")
    at = bisect_left(names, stem)
    has_more = any(name != one.name and name.startswith(stem) for name in names[at : at + 2])
    if (has_more or biases_of(one.name, work.left_b)) and one.kind == LAYOUT and one.way.sign > 0:
        if one.is_of_rows and one.map.is_unique:
            work.maps[one.name] = one
        work.follow(one)


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


class _Lines:
    """Tensors of the first checkpoint as lines, in which those of the second are looked for."""

    def __init__(self, a: Views, b: Views, sides: Sides, memory: int) -> None:
        self.a, self.b, self.sides = a, b, sides
        self._memory = memory
        self.firsts: list[NamedLines] = []
        """The tensors of the first as lines; their positions are the numbers in maps."""
        self._numbers: dict[View, list[int]] = {}
        """{tensor of the first: its numbers}"""
        self._types = [dict.fromkeys(view.dtype for view in views.values()) for views in (a, b)]

    def _numbered(self, name: str, lines: Lines) -> int:
        """The number of what is looked in."""
        self._numbers.setdefault(self.a[name], []).append(len(self.firsts))
        self.firsts.append((name, lines))
        return len(self.firsts) - 1

    def _looked_for(
        self, ways: Mapping[str, Sequence[LineWay]],
        find: Callable[[Source, Source, LineWay, Sequence[int]], LineMap | None],
    ) -> Iterator[FoundMap]:  # fmt: skip
        """The first map of each tensor that has a name, several at a time; what is encoded is read by one thread."""

        def look(a_source: Source, b_source: Source, name: str) -> FoundMap | None:
            own = self._numbers.get(self.a[name], ()) if name in self.a else ()
            for way in ways[name]:
                if made := find(a_source, b_source, way, own):
                    one = FoundMap(name, way, made, "", {k: self.firsts[k] for k in made.runs.tensors()})
                    if kind := kind_of(a_source, b_source, one.claim(self._memory)):
                        return one._replace(kind=kind)
            return None

        views = [lines.view for _, lines in self.firsts]
        encoded = (view for view in views if not self.sides.a.is_plain([view]))
        some = next(encoded, views[0]) if views else None
        tasks = [(name, [WindowPair(some, self.b[name])]) for name in ways if some is not None and ways[name]]
        yield from filter(None, self.sides.map(look, tasks))


class Search(_Lines):
    """The lines of tensors of the first checkpoint, and what of the second is made of them."""

    def __init__(self, a: Views, b: Views, sides: Sides, memory: int) -> None:
        super().__init__(a, b, sides, memory)
        self.index = LineIndex(memory)
        self._ways = {name: list(self._ways_of(view)) for name, view in b.items()}

    def found(self, advance: Advance) -> Iterator[FoundMap]:
        """Each tensor of the second that is made of lines of the first, every byte compared."""
        left = dict(self._ways)
        self._add(self._rows(), advance)
        plain = {name: [way for way in ways if not way.lines.is_across] for name, ways in left.items()}
        for one in self._looked_for(plain, self.index.find):
            del left[one.name]
            advance(self.b[one.name].nbytes)
            yield one
        self._add(self._across(left), lambda nbytes: None)
        yield from self._looked_for(left, self.index.find_across)

    def _ways_of(self, view: View) -> Iterator[LineWay]:
        """How the lines of a tensor of the second are tried: plain, negated, rounded to a type of the first."""
        for lines in (*rows(view), *columns(view)):
            yield LineWay(lines)
            if view.dtype.is_floating:
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

    def _across(self, left: Iterable[str]) -> Iterator[Added]:
        """Lines of the first that are stored across, and that lines of what is left can be equal to."""
        wanted = {way.kind for name in left for way in self._ways[name]}
        for name, view in distinct(self.a) if left else ():
            for lines in (*columns(view), *rows(view)):
                if lines.is_across:
                    yield from self._added(name, lines, set(), wanted)

    def _added(self, name: str, lines: Lines, whole: Kinds, samples: Kinds) -> Iterator[Added]:
        """The lines of a tensor in each type in which they are wanted, if these fit into memory."""
        ways = [LineWay(lines), *casts(lines, self._types[1])]
        number = len(self.firsts)
        every = [Added(number, way, way.kind in whole, way.kind in samples) for way in ways]
        wanted = [one for one in every if one.is_whole or one.has_samples]
        if wanted and self.index.has_room(sum(one.entries for one in wanted)):
            self._numbered(name, lines)
            yield from wanted

    def _add(self, added: Iterable[Added], advance: Advance) -> None:
        """Hash lines of the first."""
        every = list(added)
        hashed = self.sides.a.map(self._hashed, [(one, [one.way.lines.view]) for one in every])
        for one, found in zip(every, hashed, strict=True):
            self.index.add(one.number, one.way, found)
            advance(one.way.lines.view.nbytes if one.is_whole else 0)
        self.index.sort()

    def _hashed(self, source: Source, one: Added) -> Hashed:
        hashes = self.index.hashes
        if one.has_samples and one.is_whole:
            return hashes.both(source, one.way)
        if one.has_samples:
            return Hashed(None, hashes.samples(source, one.way))
        return Hashed(hashes.whole(source, one.way))


# --- Long runs of vectors, and of matrices whose rows or columns are too short to be looked for alone ----------------


class RunSearch(_Lines):
    """The runs of short lines of the first checkpoint, and what of the second is made of them."""

    def __init__(self, a: Views, b: Views, sides: Sides, memory: int) -> None:
        super().__init__(a, b, sides, memory)
        self.missed: set[str] = set()
        """Tensors of the second for which the lines of the first did not fit into memory."""
        self._windows: dict[LineKind, Windows] = {}
        longest = max((view.numel for view in a.values() if has_short_rows(view)), default=0)
        every = {name: list(short_lines(view, longest)) for name, view in b.items()}
        self._ways = {
            name: [way for lines in some for way in (LineWay(lines), *casts(lines, self._types[0]))]
            for name, some in every.items()
            if some
        }
        """How each tensor of the second is tried."""

    def found(self) -> Iterator[FoundMap]:
        """Each tensor of the second that is made of long runs of the first, every byte compared."""
        for kind, some in self._of_first().items():
            self._index(kind, some)

        def find(a_source: Source, b_source: Source, way: LineWay, own: Sequence[int]) -> LineMap | None:
            windows = self._windows.get(way.kind)
            return windows.find(a_source, b_source, way, own) if windows is not None else None

        for one in self._looked_for(self._ways if self._windows else {}, find):
            view = self.b[one.name]  # a whole tensor of its shape: other steps say whether that is a rename
            if len(one.map.runs) > 1 or self.a[one.olds[0]].shape != view.shape:
                yield _in_rows(one, self.a, view)

    def _of_first(self) -> dict[LineKind, list[ShortLines]]:
        """The lines of the first in the types in which they are wanted."""
        wanted = {way.kind for ways in self._ways.values() for way in ways}
        longest = max((view.numel for name, view in self.b.items() if name in self._ways), default=0)
        found: dict[LineKind, list[ShortLines]] = {}
        for name, view in distinct(self.a):
            for lines in short_lines(view, longest):
                number = self._numbered(name, lines)
                is_whole = not lines.is_columns and not has_short_rows(view)
                for way in (LineWay(lines), *casts(lines, self._types[1])):
                    if way.kind in wanted:
                        found.setdefault(way.kind, []).append(ShortLines(number, way, is_whole))
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


# --- Equal rows of the first checkpoint: where the second has one of them as often as the first, none is lost ---------
#
#     A  padding x x x, word u        B  word u, padding x x x
#
# A map takes each line of the second from any of the equal ones, so that one may be taken three times and two never.
# Here each line that was never taken gets a use of an equal one that was taken more than once.  Lines are read again
# only where some of their kind were never taken.


Surplus = dict[LineKind, Counter[bytes]]
"""{kind of lines: {digest of a line: how often it was taken more than once}}"""


def give_copies(work: Settled, maps: Iterable[FoundMap], firsts: Sequence[NamedLines]) -> Surplus:
    """Count lines of the first as used where an equal line was taken in their place.

    `maps` are those that were found, and `firsts` the tensors of the first as the lines that were looked in.  Returns
    how many lines of each digest were given a use.
    """
    uses = _uses(maps)
    source = work.sides.a.source
    wanted = [one for one in firsts if one[0] in work.left_a or (one in uses and not uses[one].all())]
    kinds = {LineWay(lines).kind for _, lines in wanted}
    left: Surplus = {}
    given: Surplus = {}
    for (_, lines), counts in uses.items():
        if LineWay(lines).kind not in kinds:
            continue
        more: dict[int, int] = {k: int(counts[k]) - 1 for k in (counts > 1).nonzero()[0].tolist()}
        for k, digest in _digests(source, lines, list(more)):
            left.setdefault(LineWay(lines).kind, Counter())[digest] += more[k]
    for name, lines in sorted(wanted, key=lambda one: one[0] in work.left_a):  # tensors that are used in part first
        surplus = left.get(LineWay(lines).kind, Counter())
        if not any(surplus.values()) or not (free := _free(work, name, uses.get((name, lines)), lines.total)):
            continue
        taken, found = [], Counter[bytes]()
        for k, digest in _digests(source, lines, free):
            if found[digest] < surplus[digest]:
                found[digest] += 1
                taken.append(k)
        if name in work.left_a and len(taken) < lines.total:
            continue  # a tensor that nothing was taken of: all of it, or it is lost
        surplus.subtract(found)
        given.setdefault(LineWay(lines).kind, Counter()).update(found)
        work.copied.add(name)
        work.use(name, [lines.part(start, stop - start) for start, stop in spans(taken)])
        if name in work.left_a:
            work.settle_only(0, LAYOUT, name, "rows that B has as copies of equal rows")
    return given


def takes_given(work: Settled, one: FoundMap, given: Surplus) -> bool:
    """Whether lines that a map takes were given the use of equal lines; those are its own, and no longer given."""
    source = work.sides.a.source
    taken: Surplus = {}
    for number, start, count in one.map.runs.covered() if given else ():
        lines = one.lines[number][1]
        digests = (digest for _, digest in _digests(source, lines, range(start, start + count)))
        taken.setdefault(LineWay(lines).kind, Counter()).update(digests)
    if not any(given[kind] & found for kind, found in taken.items() if kind in given):
        return False
    for kind, found in taken.items():
        given.setdefault(kind, Counter()).subtract(found)
    return True


def _uses(maps: Iterable[FoundMap]) -> dict[NamedLines, Array]:
    """{a tensor as lines: how often each line was taken}"""
    import numpy as np

    found: dict[NamedLines, Array] = {}
    for one in maps:
        tensor, line = one.map.runs.expanded()
        for number, lines in one.lines.items():
            counts = np.bincount(line[tensor == number], minlength=lines[1].total)
            found[lines] = found[lines] + counts if lines in found else counts
    return found


def _free(work: Settled, name: str, counts: Array | None, total: int) -> Sequence[int]:
    """The lines that no map took, of a tensor of which others were taken, or that has no verdict."""
    if name in work.left_a:
        return range(total)
    if counts is None or not work.unread(name):
        return ()
    found: list[int] = (counts == 0).nonzero()[0].tolist()
    return found


def _digests(source: Source, lines: Lines, which: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """(number of a line, digest of its bytes) of some lines in ascending order."""
    way, step = LineWay(lines), rows_at_once(lines.view)
    for start, stop in spans(which):
        for at in range(start, stop, step):
            for k, row in enumerate(way.rows(source, at, min(at + step, stop)), at):
                yield k, blake2b(row.tobytes(), digest_size=16).digest()
