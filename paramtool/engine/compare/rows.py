"""A search for maps without a table: the rows of tensors by 128-bit hashes.

A hash only proposes: what it finds is a map where every byte agrees, and all of them are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.row_hashes import RowHashes
from paramtool.engine.compare.row_proof import Claim, RowForm, RowKind, RowWay, is_proved
from paramtool.engine.compare.row_table import RowTable
from paramtool.engine.read.source import Source
from paramtool.model.rowmap import RowMap
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MIN_ROW_NBYTES = 32
"""Shorter rows are equal by chance."""
SAMPLES = 8
ENTRY_NBYTES = 128
"""About what one row takes in the index while it is sorted, and in the maps that are found."""


def forms(view: View) -> Iterator[RowForm]:
    """A tensor as rows, and its transpose as rows; nothing for one that has no rows, or is packed.

    Of tensors that are not stored row by row, only matrices are cut.
    """
    if view.dtype.block_elements != 1 or len(view.shape) < 2 or not view.numel:
        return
    if not view.is_contiguous:
        if len(view.shape) == 2 and 0 not in view.strides:
            yield from _of_matrix(view)
        return
    cut = next((k for k in range(len(view.shape) - 1, 0, -1) if _nbytes(view, view.shape[k:]) >= MIN_ROW_NBYTES), None)
    if cut is not None:
        width = prod(view.shape[cut:])
        yield RowForm(View(view.storage, view.dtype, view.offset, (view.numel // width, width), (width, 1)))
    if len(view.shape) == 2 and _nbytes(view, view.shape[:1]) >= MIN_ROW_NBYTES:
        rows, width = view.shape
        yield RowForm(View(view.storage, view.dtype, view.offset, (width, rows), (1, width)), True)


def _of_matrix(view: View) -> Iterator[RowForm]:
    """A matrix with any strides as rows, and as columns."""
    turned = View(view.storage, view.dtype, view.offset, view.shape[::-1], view.strides[::-1])
    for one, is_transposed in ((view, False), (turned, True)):
        if _nbytes(one, one.shape[1:]) >= MIN_ROW_NBYTES:
            yield RowForm(one, is_transposed)


def _nbytes(view: View, shape: Sequence[int]) -> int:
    return prod(shape) * view.dtype.block_bytes


class RowIndex:
    """The rows of many tensors by their hashes."""

    def __init__(self, memory: int) -> None:
        """`memory` is the most bytes that the index may take."""
        self.memory = memory
        self.hashes = RowHashes()
        self._parts: dict[RowKind, list[tuple[int, Array]]] = {}
        self._tables: dict[RowKind, RowTable] = {}
        self._views: dict[int, View] = {}
        self._left = memory // ENTRY_NBYTES

    def has_room(self, rows: int) -> bool:
        """Whether so many rows fit into memory; if so, they are counted."""
        if rows > self._left:
            return False
        self._left -= rows
        return True

    def add(self, number: int, way: RowWay, hashes: Array) -> None:
        """The rows of one tensor."""
        self._parts.setdefault(way.kind, []).append((number, hashes))
        self._views[number] = way.form.view

    def sort(self) -> None:
        """Called once, before anything is looked for, and after everything was added."""
        while self._parts:
            kind, parts = self._parts.popitem()
            self._tables[kind] = RowTable(parts)

    def find(self, a_source: Source, b_source: Source, way: RowWay) -> RowMap | None:
        """The map that gives a tensor's rows, every byte compared; None if there is none."""
        table = self._tables.get(way.kind)
        count = way.form.view.shape[0]
        if table is None:
            return None
        sampled = range(0, count, max(1, count // SAMPLES))
        if not all(table.has(self.hashes.of_rows(way.rows(b_source, k, k + 1))) for k in sampled):
            return None
        found = table.find(self.hashes.of(b_source, way.form.view, sign=way.sign, dtype=way.dtype))
        if found is None:
            return None
        claim = Claim(way, {one.tensor: self._views[one.tensor] for one in found.runs}, found.runs, self.memory)
        return found if is_proved(a_source, b_source, claim) else None
