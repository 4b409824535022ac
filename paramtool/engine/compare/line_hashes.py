"""128-bit hashes of many lines at once, to propose which rows, or columns, are equal.

A hash is two sums of products modulo 2^64, of the words of a line and of odd numbers that are drawn anew in each run.
Words are mixed first, `x ^ x >> 29`: without it, two lines that differ in two signs would have one hash, since 2^63
times an odd number is always 2^63.  Two given lines have one hash with a chance of about 2^-60 or less.  No
cryptographic hash is needed: every map that the hashes propose is compared byte by byte, so equal hashes of unequal
lines can only lose a map, and never make a false one.

The sums of columns are added up while rows are read, so that no tensor is read against its order; a column has the hash
of a row of the same elements.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.lines import LineWay, sampled, turned
from paramtool.engine.read.source import Source
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

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

        view, size = way.lines.across, way.made.block_bytes
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
