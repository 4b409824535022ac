"""128-bit hashes of many rows at once, to propose which rows are equal.

A hash is two sums of products modulo 2^64, of the words of a row and of odd numbers that are drawn anew in each run.
Words are mixed first, `x ^ x >> 29`: without it, two rows that differ in two signs would have one hash, since 2^63
times an odd number is always 2^63.  Two given rows have one hash with a chance of about 2^-60 or less.  A cryptographic
hash is not needed: every map that the hashes propose is compared byte by byte, so equal hashes of unequal rows can only
lose a map, and never make a false one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.casts import converted
from paramtool.engine.read.elements import ELEMENTS, number_type
from paramtool.engine.read.source import Source
from paramtool.model.dtype import DType
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BLOCK_NBYTES = 1 << 20
"""Rows that are hashed together: they fit a processor's cache."""
COLUMNS_NBYTES = 4 << 20
"""The same for columns: each block of them reads all rows between."""
WORD_NBYTES = 8
MIX = 29


class RowHashes:
    """Hashes rows, with numbers of its own; rows of one width and type can be compared by them."""

    def __init__(self) -> None:
        self._odd: dict[int, Array] = {}

    def of(self, source: Source, view: View, *, sign: int = 1, dtype: DType | None = None) -> Array:
        """Both halves of the hash of each row, uint64 [2, rows]: of the row negated for `sign` -1, and cast."""
        import numpy as np

        rows = view.shape[0]
        found = np.empty((2, rows), "u8")
        step = rows_of(view)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            made = changed(raw_rows(source, view, start, stop), view.dtype, sign=sign, dtype=dtype)
            found[:, start:stop] = self.of_rows(made)
        return found

    def of_rows(self, rows: Array) -> Array:
        """The same of rows in memory."""
        import numpy as np

        words = _words(rows)
        mixed = words >> np.uint64(MIX)
        mixed ^= words
        one, other = self._numbers(words.shape[1])
        return np.stack([np.einsum("ij,j->i", mixed, one), np.einsum("ij,j->i", mixed, other)])

    def _numbers(self, count: int) -> Array:
        import numpy as np

        if count not in self._odd:
            drawn = np.frombuffer(os.urandom(2 * count * WORD_NBYTES), "u8").reshape(2, count)
            self._odd.setdefault(count, drawn | np.uint64(1))
        return self._odd[count]


def rows_of(view: View) -> int:
    """How many rows of a window are read at a time."""
    most = BLOCK_NBYTES if view.is_contiguous else COLUMNS_NBYTES
    return max(1, most // max(1, view.shape[1] * view.dtype.block_bytes))


def raw_rows(source: Source, view: View, start: int, stop: int) -> Array:
    """Rows `start` to `stop` as raw elements, one behind the other."""
    import numpy as np

    block = source.array(view).view(ELEMENTS[view.dtype.block_bytes])[start:stop, 0 : view.shape[1]]
    source.nbytes_read += block.nbytes
    return np.ascontiguousarray(block)


def changed(rows: Array, kind: DType, *, sign: int = 1, dtype: DType | None = None) -> Array:
    """Raw rows of a type, negated for `sign` -1, and cast to another type; in one piece."""
    import numpy as np

    if sign == 1 and (dtype is None or dtype == kind):
        return rows
    found = rows.view(number_type(kind))
    found = np.negative(found) if sign < 0 else found
    return np.ascontiguousarray(converted(found, dtype) if dtype is not None else found)


def _words(rows: Array) -> Array:
    """Rows as words of 8 bytes, the last filled up with zeros."""
    import numpy as np

    raw = rows.view("u1").reshape(rows.shape[0], -1)
    if rest := raw.shape[1] % WORD_NBYTES:
        raw = np.pad(raw, ((0, 0), (0, WORD_NBYTES - rest)))
    return raw.view("u8")
