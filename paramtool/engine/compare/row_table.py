"""Rows of one type and width, sorted by their hashes: where equal rows are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from paramtool.model.rowmap import Place, RowMap, RowRun, found_in

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_BITS = 24
WORD_BITS = 64


class RowTable:
    """Where rows are, by their hashes."""

    def __init__(self, parts: Iterable[tuple[int, Array]]) -> None:
        """`parts` are (number of a tensor, hashes of its rows [2, rows]), in the order of the numbers."""
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
        self._row = np.concatenate([np.arange(one.shape[1]) for _, one in listed])[order]
        bits = min(MAX_BITS, max(1, len(self._first).bit_length()))
        self._shift = np.uint64(WORD_BITS - bits)
        self._buckets = np.searchsorted(self._first, np.arange(1 << bits, dtype="u8") << self._shift)

    def has(self, hashes: Array) -> bool:
        """Whether every row is there."""
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

    def find(self, hashes: Array) -> RowMap | None:
        """The map that the hashes of a tensor's rows propose; None where one is not there."""
        found = self._found(hashes)
        if (found < 0).any():
            return None
        if (self._count[found] > 1).any():
            known: dict[int, list[Place]] = {}
            return found_in([known.get(one) or self._places(known, one) for one in found.tolist()])
        at = self._begin[found]
        return RowMap(tuple(_runs(self._tensor[at], self._row[at])), True)

    def _places(self, known: dict[int, list[Place]], one: int) -> list[Place]:
        where = slice(self._begin[one], self._begin[one] + self._count[one])
        known[one] = list(zip(self._tensor[where].tolist(), self._row[where].tolist(), strict=True))
        return known[one]


def _splits(hashes: Array, order: Array) -> bool:
    """Whether rows of one first half have two second halves: their order has to be that of both."""
    first, second = hashes[0][order], hashes[1][order]
    return bool(((first[1:] == first[:-1]) & (second[1:] != second[:-1])).any())


def _runs(tensor: Array, row: Array) -> Iterable[RowRun]:
    """Rows that follow each other, of one place for each row."""
    import numpy as np

    cuts = np.flatnonzero((tensor[1:] != tensor[:-1]) | (row[1:] != row[:-1] + 1)) + 1
    to = np.concatenate([[0], cuts])
    length = np.diff(to, append=len(row))
    return map(RowRun, tensor[to].tolist(), row[to].tolist(), length.tolist(), to.tolist())
