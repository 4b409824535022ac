"""How tensors are cut into lines, rows or columns, that can be found in others.

A tensor [d0, d1, d2] is cut at an axis: at 1 it has d0 rows of d1 * d2 elements and d1 * d2 columns of d0 elements, at
2 it has d0 * d1 rows and d2 columns.  So the columns of a cut show what was joined, or split, along an inner axis.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import NamedTuple

from paramtool.engine.read.elements import ELEMENTS, Array, converted, equal, number_type, same
from paramtool.engine.read.source import Source
from paramtool.model.dtype import DType
from paramtool.model.view import View

MAX_PERIOD = 64


class LineRun(NamedTuple):
    """Lines that follow each other in both tensors."""

    tensor: int
    start: int
    """The first line in the first checkpoint's tensor."""
    length: int
    to: int
    """Where they begin in the second's."""


class Runs:
    """The runs of one tensor of the second checkpoint, in its order and without a gap."""

    def __init__(self, tensor: Array, start: Array, length: Array, to: Array) -> None:
        """int64 arrays, an element for each run."""
        self.tensor, self.start, self.length, self.to = tensor, start, length, to

    @classmethod
    def of(cls, runs: Iterable[LineRun]) -> Runs:
        """Some runs.

        >>> list(Runs.of([LineRun(0, 2, 4, 0)]))
        [LineRun(tensor=0, start=2, length=4, to=0)]
        """
        import numpy as np

        made = np.array(list(runs), "i8").reshape(-1, 4)
        return cls(*made.T)

    @classmethod
    def of_lines(cls, tensor: Array, line: Array) -> Runs:
        """The runs of lines that are each in one place: `line` of `tensor`."""
        import numpy as np

        cuts = np.flatnonzero((tensor[1:] != tensor[:-1]) | (line[1:] != line[:-1] + 1)) + 1
        to = np.concatenate([[0], cuts])
        return cls(tensor[to], line[to], np.diff(to, append=len(line)), to)

    def __len__(self) -> int:
        return len(self.to)

    def __iter__(self) -> Iterator[LineRun]:
        return map(LineRun, *(one.tolist() for one in (self.tensor, self.start, self.length, self.to)))

    @property
    def lines(self) -> int:
        """How many lines the tensor has."""
        return int(self.length.sum())

    def part(self, low: int, high: int) -> Runs:
        """Some of the runs."""
        few = slice(low, high)
        return Runs(self.tensor[few], self.start[few], self.length[few], self.to[few])

    def first(self, count: int) -> list[LineRun]:
        """The first runs."""
        return list(self.part(0, count))

    def tensors(self) -> list[int]:
        """The numbers of the tensors, in the order in which they come."""
        import numpy as np

        numbers, first = np.unique(self.tensor, return_index=True)
        found: list[int] = numbers[np.argsort(first)].tolist()
        return found

    def expanded(self) -> tuple[Array, Array]:
        """(tensor, line) of each line of the second's tensor."""
        import numpy as np

        ends = np.cumsum(self.length)
        line = np.arange(self.lines) + np.repeat(self.start - (ends - self.length), self.length)
        return np.repeat(self.tensor, self.length), line

    def covered(self) -> Iterator[tuple[int, int, int]]:
        """(tensor, first line, lines) of what is read of the first checkpoint, neighbours together.

        >>> list(Runs.of([LineRun(0, 2, 2, 0), LineRun(0, 0, 2, 2), LineRun(1, 5, 1, 4)]).covered())
        [(0, 0, 4), (1, 5, 1)]
        """
        import numpy as np

        for number in np.unique(self.tensor).tolist():
            here = np.flatnonzero(self.tensor == number)
            here = here[np.argsort(self.start[here], kind="stable")]
            start = self.start[here]
            stop = np.maximum.accumulate(start + self.length[here])
            begin = np.concatenate([[0], np.flatnonzero(start[1:] > stop[:-1]) + 1])
            end = np.append(begin[1:], len(here)) - 1
            for low, high in zip(start[begin].tolist(), stop[end].tolist(), strict=True):
                yield number, low, high - low

    def period(self) -> int:
        """After how many runs tensors and lengths repeat, at most MAX_PERIOD; 0 if they do not.

        Each tensor has to go on where it ended.

        >>> Runs.of([LineRun(0, 0, 2, 0), LineRun(1, 0, 1, 2), LineRun(0, 2, 2, 3), LineRun(1, 1, 1, 5)]).period()
        2
        """
        count = len(self)
        for period in range(1, min(count // 2, MAX_PERIOD) + 1):
            if count % period == 0 and self._repeats(period):
                return period if self._goes_on() else 0
        return 0

    def _repeats(self, period: int) -> bool:
        return all(bool((one[period:] == one[:-period]).all()) for one in (self.tensor, self.length))

    def _goes_on(self) -> bool:
        """Whether each tensor goes on where it ended."""
        for number in self.tensors():
            here = self.tensor == number
            start, stop = self.start[here], self.start[here] + self.length[here]
            if not (start[1:] == stop[:-1]).all():
                return False
        return True

    def exchanged(self) -> tuple[int, int, int] | None:
        """The shape in which a whole tensor's runs are its last axis, and the other two are exchanged; else None.

        >>> Runs.of([LineRun(0, 8 * m + 2 * n, 2, 6 * n + 2 * m) for n in range(4) for m in range(3)]).exchanged()
        (3, 4, 2)
        """
        import numpy as np

        if len(self) < 4 or not self._repeats(1):
            return None
        length, step = int(self.length[0]), int(self.start[1] - self.start[0])
        outer, rest = divmod(step, length)
        if outer < 2 or rest or len(self) % outer:
            return None
        inner = len(self) // outer
        places = self.start.reshape(outer, inner).T.ravel()
        whole = (places == length * np.arange(len(self))).all()
        return (inner, outer, length) if whole else None

    def step(self) -> int:
        """How far apart the runs of one tensor begin, where all are equally long and far apart; else 0."""
        if len(self) < 3 or not self._repeats(1):
            return 0
        steps = self.start[1:] - self.start[:-1]
        return int(steps[0]) if bool((steps == steps[0]).all()) else 0


# --- How tensors are cut into lines ----------------------------------------------------------------------------------


MIN_NBYTES = 32
"""Shorter lines are equal by chance."""
SAMPLES = 16
"""How many elements of a line are its sample."""


class Lines(NamedTuple):
    """A tensor as lines of equal length."""

    view: View
    """[lines, elements of a line]"""
    is_columns: bool = False

    @property
    def total(self) -> int:
        """How many lines."""
        return self.view.shape[0]

    @property
    def is_across(self) -> bool:
        """Whether the storage has the first elements of all lines before the second ones."""
        (lines, length), (step, inner) = self.view.shape, self.view.strides
        return lines > 1 and length > 1 and step < inner

    def part(self, start: int, count: int) -> View:
        """Some of the lines."""
        return self.view.rows(start, start + count)


class LineKind(NamedTuple):
    """What lines have to share to be equal."""

    dtype: str
    length: int


class LineWay(NamedTuple):
    """How the lines of a tensor are read, to be found."""

    lines: Lines
    sign: int = 1
    dtype: DType | None = None
    """The type they are cast to."""

    @property
    def kind(self) -> LineKind:
        """Of which lines they are looked for."""
        return LineKind(self.made.name, self.lines.view.shape[1])

    @property
    def made(self) -> DType:
        """The type in which they are compared."""
        return self.dtype or self.lines.view.dtype

    @property
    def nbytes(self) -> int:
        """Of one line, as it is compared."""
        return self.lines.view.shape[1] * self.made.block_bytes

    def read(self, source: Source, view: View, start: int, stop: int) -> Array:
        """Some rows of a window on the tensor, changed, in one piece."""
        return changed(raw_rows(source, view, start, stop), view.dtype, sign=self.sign, dtype=self.dtype)

    def rows(self, source: Source, start: int, stop: int) -> Array:
        """Some lines as rows."""
        return self.read(source, self.lines.view, start, stop)

    def samples(self, source: Source, start: int, stop: int) -> Array:
        """A few elements of some lines that are stored across, [lines, elements]."""
        import numpy as np

        view = turned(self.lines.part(start, stop - start))
        return np.concatenate([self.read(source, view, at, at + 1) for at in sampled(view.shape[0]).tolist()]).T


class Claim(NamedTuple):
    """Lines of a tensor of the second checkpoint, and which lines of the first they are."""

    way: LineWay
    olds: Mapping[int, Lines]
    """{number of a tensor: the tensor as lines}"""
    runs: Runs
    memory: int
    """Of which a block may take its part, in bytes."""

    @property
    def nbytes(self) -> int:
        """Of a line, in the wider of its types."""
        return max(self.way.nbytes, self.way.lines.view.shape[1] * self.way.lines.view.dtype.block_bytes)


def sampled(length: int) -> Array:
    """The positions of the elements that are the sample of a line; always the same for one length."""
    import numpy as np

    return np.unique(np.linspace(0, length - 1, min(SAMPLES, length)).astype("i8"))


def turned(view: View) -> View:
    """A matrix with its axes exchanged."""
    return view.with_axes(view.shape[::-1], view.strides[::-1])


def rows(view: View) -> Iterator[Lines]:
    """A tensor as rows, cut at the last axis whose rows are long enough, and then at those before it.

    Nothing for one that has no rows, or is packed.  Of tensors that are not stored row by row, only matrices are cut.
    """
    for matrix in _matrices(view):
        if _nbytes(matrix.shape[1], view) >= MIN_NBYTES:
            yield Lines(matrix)


def columns(view: View) -> Iterator[Lines]:
    """The same as columns."""
    for matrix in _matrices(view):
        if _nbytes(matrix.shape[0], view) >= MIN_NBYTES:
            yield Lines(turned(matrix), is_columns=True)


def has_lines(view: View) -> bool:
    """Whether a tensor has rows or columns that are long enough."""
    return any(True for cut in (rows, columns) for _ in cut(view))


def short_lines(view: View, longest: int) -> Iterator[Lines]:
    """A tensor as lines that are too short to be found one by one: its elements, then its columns.

    One with long rows, as a whole, can be a slice of a vector, or a part of one: of `longest` elements at most.
    """
    is_plain = view.dtype.block_elements == 1 and view.is_contiguous
    if is_plain and view.numel > 0 and (has_short_rows(view) or view.numel <= longest):
        yield Lines(view.with_axes((view.numel, 1), (1, 1)))
    for matrix in _matrices(view):
        if matrix.shape[0] > 1 and matrix.shape[1] > 1 and _nbytes(matrix.shape[0], view) < MIN_NBYTES:
            yield Lines(turned(matrix), is_columns=True)


def has_short_rows(view: View) -> bool:
    """Whether the rows of a tensor are too short to be found one by one; those of a vector are its elements."""
    return _nbytes(prod([size for size in view.shape if size > 1][1:]), view) < MIN_NBYTES


def _matrices(view: View) -> Iterator[View]:
    """A tensor as a matrix, cut at each of its axes, the last one first."""
    shape = view.shape
    if view.dtype.block_elements != 1 or len(shape) < 2 or not view.numel:
        return
    if view.is_contiguous:
        for axis in range(len(shape) - 1, 0, -1):
            count, width = prod(shape[:axis]), prod(shape[axis:])
            yield view.with_axes((count, width), (width, 1))
    elif len(shape) == 2 and 0 not in view.strides:
        yield view


def _nbytes(elements: int, view: View) -> int:
    return elements * view.dtype.block_bytes


def raw_rows(source: Source, view: View, start: int, stop: int) -> Array:
    """Rows `start` to `stop` of a matrix as raw elements, one behind the other."""
    import numpy as np

    block = source.array(view)[start:stop, 0 : view.shape[1]]
    source.nbytes_read += block.nbytes
    return np.ascontiguousarray(block)


def changed(elements: Array, kind: DType, *, sign: int = 1, dtype: DType | None = None) -> Array:
    """Raw elements of a type, negated for `sign` -1, and cast to another type; raw again, in one piece."""
    import numpy as np

    if sign == 1 and (dtype is None or dtype == kind):
        return elements
    found = elements.view(number_type(kind))
    found = np.negative(found) if sign < 0 else found
    made = converted(found, dtype) if dtype is not None else found
    return np.ascontiguousarray(made).view(ELEMENTS[(dtype or kind).block_bytes])


# --- 128-bit hashes of many lines at once, to propose which rows, or columns, are equal -------------------------------
#
# A hash is two sums of products modulo 2^64, of the words of a line and of odd numbers that are drawn anew in each run.
# Words are mixed first, `x ^ x >> 29`: without it, two lines that differ in two signs would have one hash, since 2^63
# times an odd number is always 2^63.  Two given lines have one hash with a chance of about 2^-60 or less.  No
# cryptographic hash is needed: every map that the hashes propose is compared byte by byte, so equal hashes of unequal
# lines can only lose a map, and never make a false one.
#
# The sums of columns are added up while rows are read, so that no tensor is read against its order; a column has the
# hash of a row of the same elements.


BLOCK_NBYTES = 1 << 20
"""What is hashed together fits a processor's cache."""
WORD_NBYTES = 8
MIX = 29


class Hashed(NamedTuple):
    """The lines of a tensor by their hashes: uint64 [2, lines], both halves of each."""

    whole: Array | None
    samples: Array | None = None
    """Of the samples of the lines."""


class LineHashes:
    """Hashes lines, with numbers of its own; lines of one length and type can be compared by them."""

    def __init__(self) -> None:
        self._odd: dict[int, Array] = {}

    def whole(self, source: Source, way: LineWay) -> Array:
        """The hashes of the lines of a tensor, as a way reads them: uint64 [2, lines]."""
        import numpy as np

        if way.lines.is_across:
            return self._across(source, way)
        return np.concatenate([self.of_rows(rows) for rows in _rows(source, way)], axis=1)

    def samples(self, source: Source, way: LineWay) -> Array:
        """The same of their samples."""
        import numpy as np

        if not way.lines.is_across:
            return np.concatenate([self.of_samples(rows) for rows in _rows(source, way)], axis=1)
        count, step = way.lines.total, BLOCK_NBYTES // way.lines.view.dtype.block_bytes
        parts = (way.samples(source, at, min(at + step, count)) for at in range(0, count, step))
        return np.concatenate([self.of_rows(np.ascontiguousarray(rows)) for rows in parts], axis=1)

    def both(self, source: Source, way: LineWay) -> Hashed:
        """The same of rows and of their samples, in one reading."""
        import numpy as np

        parts = [(self.of_rows(rows), self.of_samples(rows)) for rows in _rows(source, way)]
        return Hashed(*(np.concatenate(half, axis=1) for half in zip(*parts, strict=True)))

    def of_samples(self, rows: Array) -> Array:
        """The hashes of the samples of rows in memory."""
        import numpy as np

        return self.of_rows(np.ascontiguousarray(rows[:, sampled(rows.shape[1])]))

    def of_rows(self, rows: Array) -> Array:
        """The hashes of rows in memory."""
        import numpy as np

        mixed = _mixed(_words(rows))
        return np.stack([np.einsum("ij,j->i", mixed, numbers) for numbers in self._numbers(mixed.shape[1])])

    def _across(self, source: Source, way: LineWay) -> Array:
        """The hashes of lines that are stored across: sums over the rows of their tensor."""
        import numpy as np

        view, size = turned(way.lines.view), way.made.block_bytes
        length, count = view.shape
        numbers = self._numbers(-(-length * size // WORD_NBYTES))
        found = np.zeros((2, count), "u8")
        whole = max(1, WORD_NBYTES // size)  # rows of which words are made
        step = max(1, rows_at_once(view) // whole) * whole
        for start in range(0, length, step):
            mixed = _mixed(_words_across(way.read(source, view, start, min(start + step, length))))
            at = start * size // WORD_NBYTES
            for half in range(2):
                found[half] += np.einsum("i,ij->j", numbers[half, at : at + len(mixed)], mixed)
        return found

    def _numbers(self, count: int) -> Array:
        import numpy as np

        if count not in self._odd:
            drawn = np.frombuffer(os.urandom(2 * count * WORD_NBYTES), "u8").reshape(2, count)
            self._odd.setdefault(count, drawn | np.uint64(1))
        return self._odd[count]


def _rows(source: Source, way: LineWay) -> Iterator[Array]:
    """The lines of a tensor as rows, block by block."""
    step = rows_at_once(way.lines.view)
    for start in range(0, way.lines.total, step):
        yield way.rows(source, start, min(start + step, way.lines.total))


def rows_at_once(view: View) -> int:
    """How many rows of a window are read at a time."""
    return max(1, BLOCK_NBYTES // max(1, view.shape[1] * view.dtype.block_bytes))


def _mixed(words: Array) -> Array:
    import numpy as np

    mixed: Array = words >> np.uint64(MIX)
    mixed ^= words
    return mixed


def _words(rows: Array) -> Array:
    """Rows as words of 8 bytes, the last filled up with zeros."""
    import numpy as np

    raw = rows.view("u1").reshape(rows.shape[0], -1)
    if rest := raw.shape[1] % WORD_NBYTES:
        raw = np.pad(raw, ((0, 0), (0, WORD_NBYTES - rest)))
    return raw.view("u8")


def _words_across(block: Array) -> Array:
    """[words, lines] of some elements of each line, [elements, lines]: the words that the lines have as rows."""
    import numpy as np

    elements, lines = block.shape
    size = block.dtype.itemsize
    if size >= WORD_NBYTES:
        words = block.view("u8").reshape(elements, lines, -1)
        return np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1, lines)
    whole = WORD_NBYTES // size
    made = np.zeros((-(-elements // whole), lines, whole), block.dtype)
    for k in range(whole):
        made[: len(range(k, elements, whole)), :, k] = block[k::whole]
    return made.view("u8")[..., 0]


# --- Whether lines hold so much that they are not equal by chance: masks and codes repeat the rows of others ----------


CHANGES = 8
"""How many elements of a line have to differ from the one before; a row of zeros with a one in it has two."""
SPANS = 8
"""In how many places lines are looked at, before all are."""
ROWS = 8
COLUMNS = 1024
"""How many follow each other at each place."""
PIECES, PIECE = 8, 32
"""How many pieces of a column are looked at, and how many elements each piece has."""


def are_varied(rows: Array) -> Array:
    """Of each row, whether its elements change often."""
    changes = (rows[:, 1:] != rows[:, :-1]).sum(axis=1)
    found: Array = changes >= min(CHANGES, rows.shape[1] // 2)
    return found


def is_sure(source: Source, way: LineWay) -> bool:
    """Whether of those lines that do not repeat one element at least half are varied; some are looked at."""
    changing = varied = 0
    for number, (start, stop) in enumerate(_spans(way)):
        lines = _excerpt(source, way, start, stop)
        changing += int((lines[:, 1:] != lines[:, :-1]).any(axis=1).sum())
        varied += int(are_varied(lines).sum())
        if changing and number >= SPANS - 1:
            break
    return changing > 0 and 2 * varied >= changing


def _spans(way: LineWay) -> Iterator[tuple[int, int]]:
    """Spans of lines: some that are spread over all, then all."""
    total = way.lines.total
    most = COLUMNS if way.lines.is_across else max(1, min(ROWS, BLOCK_NBYTES // way.nbytes))
    for step in (max(most, -(-total // SPANS)), most):
        yield from ((k, min(k + most, total)) for k in range(0, total, step))


def _excerpt(source: Source, way: LineWay, start: int, stop: int) -> Array:
    """Some lines, [lines, elements]: of those that are stored across, some pieces."""
    import numpy as np

    length = way.lines.view.shape[1]
    if not way.lines.is_across:
        return way.rows(source, start, stop)
    view = turned(way.lines.part(start, stop - start))
    step = max(PIECE, -(-length // PIECES))
    return np.concatenate([way.read(source, view, k, min(k + PIECE, length)) for k in range(0, length, step)]).T


# --- A map of lines is proved: every byte of what it gives is compared ------------------------------------------------
#
# Rows that are rows are gathered from where they are.  Where one side is stored across, both are read in strips, the
# same elements of all lines: columns are then compared without reading any tensor against its order.


LONG_NBYTES = 64 << 10
"""Runs of this many bytes are read one by one; shorter ones are gathered."""
GATHERED_NBYTES = 16 << 20
"""The most bytes of rows that are gathered at a time."""
GATHERS = 16
"""Into how many parts the memory is divided, of which each gathered block is one."""


def is_proved(a_source: Source, b_source: Source, claim: Claim) -> bool:
    """Whether every byte of the lines is what the runs say."""
    b_source.prove_later(claim.way.lines.view.number)
    for old in claim.olds.values():
        a_source.prove_later(old.view.number)
    if claim.way.lines.is_across or any(old.is_across for old in claim.olds.values()):
        is_same = are_same(a_source, b_source, claim)
    elif claim.runs.lines * claim.nbytes >= LONG_NBYTES * len(claim.runs):
        is_same = _are_runs(a_source, b_source, claim)
    else:
        is_same = _are_gathered(a_source, b_source, claim)
    a_source.settle()
    b_source.settle()
    return is_same


def _are_runs(a_source: Source, b_source: Source, claim: Claim) -> bool:
    """The same of runs, one after the other, block by block."""
    most = max(1, BLOCK_NBYTES // claim.nbytes)
    for run in claim.runs:
        mine = LineWay(claim.olds[run.tensor], dtype=claim.way.made)
        for at in range(0, run.length, most):
            stop = min(at + most, run.length)
            here = mine.rows(a_source, run.start + at, run.start + stop)
            if not same(_bytes(here), _bytes(claim.way.rows(b_source, run.to + at, run.to + stop))):
                return False
    return True


def _are_gathered(a_source: Source, b_source: Source, claim: Claim) -> bool:
    """The same of lines in blocks, whatever runs they are in."""
    import numpy as np

    most = max(1, max(BLOCK_NBYTES, min(GATHERED_NBYTES, claim.memory // GATHERS)) // claim.nbytes)
    tensor, line = claim.runs.expanded()
    for at in range(0, len(line), most):
        few = tensor[at : at + most]
        there = claim.way.rows(b_source, at, at + len(few))
        for number in np.unique(few).tolist():
            view = claim.olds[number].view
            here = np.flatnonzero(few == number)
            size = view.dtype.block_bytes
            places = view.byte_start + line[at + here] * view.strides[0] * size
            part = a_source.take(view.number, places, view.shape[1] * size)
            part = changed(part.view(ELEMENTS[size]), view.dtype, dtype=claim.way.made)
            if not same(_bytes(part), _bytes(there if len(here) == len(there) else there[here])):
                return False
    return True


def _bytes(lines: Array) -> Array:
    return lines.reshape(-1).view("u1")


# --- Lines that are stored across, in one of two checkpoints or in both, are compared strip by strip ------------------
#
# A strip has the same elements of all lines:
#
#     columns of columns    [elements, lines] on both sides: a few rows of each, read in order
#     columns of rows       one side is turned while parts of it are compared, in a processor's cache


SHARES = 16
"""Into how many parts the memory is divided, of which the strips of one comparison take one for each side."""
LONG = 64
"""Runs of this many lines on average are compared one by one; of shorter ones the lines are gathered."""


class StripPart(NamedTuple):
    """What is compared with lines of one tensor of the first."""

    lines: Lines
    """The lines of it that are read, from the first to the last that is wanted."""
    here: Array | slice
    """Which of these."""
    there: Array | slice
    """Which lines of the second they are."""


def _few(strip: Array, which: Array | slice) -> Array:
    """Some lines of a strip, in its order in memory."""
    import numpy as np

    if isinstance(which, slice):
        return strip[which]
    return np.take(strip, which, axis=0) if strip.flags.c_contiguous else np.take(strip.T, which, axis=1).T


def are_same(a_source: Source, b_source: Source, claim: Claim) -> bool:
    """Whether every byte of the lines is what the runs say."""
    parts = list(_parts(claim))
    way = claim.way
    is_turned = len({way.lines.is_across, *(part.lines.is_across for part in parts)}) > 1
    row = sum(one.total * one.view.dtype.block_bytes for one in (way.lines, *(part.lines for part in parts)))
    most = max(BLOCK_NBYTES, claim.memory // SHARES) if is_turned else BLOCK_NBYTES
    length = way.lines.view.shape[1]
    step = max(1, most // row)
    for start in range(0, length, step):
        stop = min(start + step, length)
        there = _strip(b_source, way, start, stop)
        known: dict[View, Array] = {}
        for part in parts:
            view = part.lines.view
            if view not in known:
                known.clear()
                known[view] = _strip(a_source, LineWay(part.lines, dtype=way.made), start, stop)
            if not equal(_few(known[view], part.here), _few(there, part.there)):
                return False
    return True


def _parts(claim: Claim) -> Iterator[StripPart]:
    """The lines by tensor: as runs where these are long."""
    import numpy as np

    is_long = claim.runs.lines >= LONG * len(claim.runs)
    tensor, line = claim.runs.expanded() if not is_long else (claim.runs.tensor, claim.runs.start)
    for number in claim.runs.tensors():
        here = np.flatnonzero(tensor == number)
        places = line[here]
        low = int(places.min())
        high = int((places + (claim.runs.length[here] if is_long else 1)).max())
        old = claim.olds[number]
        lines = Lines(old.part(low, high - low), old.is_columns)
        if not is_long:
            yield StripPart(lines, places - low, slice(None) if len(here) == len(line) else here)
            continue
        for k in here.tolist():
            start, to, length = int(line[k]) - low, int(claim.runs.to[k]), int(claim.runs.length[k])
            yield StripPart(lines, slice(start, start + length), slice(to, to + length))


def _strip(source: Source, way: LineWay, start: int, stop: int) -> Array:
    """Elements `start` to `stop` of all lines, [lines, elements], in memory as in the storage."""
    import numpy as np

    view, is_across = way.lines.view, way.lines.is_across
    block = source.array(view)[0 : view.shape[0], start:stop]
    source.nbytes_read += block.nbytes
    held = np.ascontiguousarray(block.T if is_across else block)
    made = changed(held, view.dtype, sign=way.sign, dtype=way.dtype)
    return made.T if is_across else made
