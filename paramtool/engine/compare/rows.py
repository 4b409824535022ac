"""A search for maps without a table: the rows of tensors by 128-bit hashes.

A hash only proposes: what it finds is a map where every byte agrees, and all of them are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.row_hashes import BLOCK_NBYTES, RowHashes, changed, raw_rows
from paramtool.engine.compare.row_table import RowTable
from paramtool.engine.read.elements import ELEMENTS
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import same
from paramtool.model.dtype import DType
from paramtool.model.rowmap import RowMap, RowRun
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MIN_ROW_NBYTES = 32
"""Shorter rows are equal by chance."""
SAMPLES = 8
ENTRY_NBYTES = 128
"""About what one row takes in the index while it is sorted, and in the maps that are found."""
LONG_NBYTES = 64 << 10
"""Runs of this many bytes are read one by one; shorter ones are gathered."""
GATHERED_NBYTES = 16 << 20
"""The most bytes of rows that are gathered at a time."""
GATHERS = 16
"""Into how many parts the memory is divided, of which each gathered block is one."""


class RowForm(NamedTuple):
    """How a tensor is cut into rows."""

    view: View
    """[rows, elements of a row]"""
    is_transposed: bool = False


class RowKind(NamedTuple):
    """What rows have to share to be equal."""

    dtype: str
    width: int


class RowWay(NamedTuple):
    """How the rows of a tensor are read, to be found."""

    form: RowForm
    sign: int = 1
    dtype: DType | None = None
    """The type they are cast to."""

    @property
    def kind(self) -> RowKind:
        """Of which rows they are looked for."""
        return RowKind((self.dtype or self.form.view.dtype).name, self.form.view.shape[1])

    def rows(self, source: Source, start: int, stop: int) -> Array:
        """Some rows, in one piece."""
        return changed(
            raw_rows(source, self.form.view, start, stop), self.form.view.dtype, sign=self.sign, dtype=self.dtype
        )


def forms(view: View) -> Iterator[RowForm]:
    """A tensor as rows, and its transpose as rows; nothing for one that has no rows, or is packed."""
    if view.dtype.block_elements != 1 or not view.is_contiguous or len(view.shape) < 2 or not view.numel:
        return
    cut = next((k for k in range(len(view.shape) - 1, 0, -1) if _nbytes(view, view.shape[k:]) >= MIN_ROW_NBYTES), None)
    if cut is not None:
        width = prod(view.shape[cut:])
        yield RowForm(View(view.storage, view.dtype, view.offset, (view.numel // width, width), (width, 1)))
    if len(view.shape) == 2 and _nbytes(view, view.shape[:1]) >= MIN_ROW_NBYTES:
        rows, width = view.shape
        yield RowForm(View(view.storage, view.dtype, view.offset, (width, rows), (1, width)), True)


def _nbytes(view: View, shape: Sequence[int]) -> int:
    return prod(shape) * view.dtype.block_bytes


class RowIndex:
    """The rows of many tensors by their hashes."""

    def __init__(self, memory: int) -> None:
        """`memory` is the most bytes that the index may take."""
        self.hashes = RowHashes()
        self._parts: dict[RowKind, list[tuple[int, Array]]] = {}
        self._tables: dict[RowKind, RowTable] = {}
        self._forms: dict[int, RowForm] = {}
        self._left = memory // ENTRY_NBYTES
        self._gathered = max(BLOCK_NBYTES, min(GATHERED_NBYTES, memory // GATHERS))

    def has_room(self, rows: int) -> bool:
        """Whether so many rows fit into memory; if so, they are counted."""
        if rows > self._left:
            return False
        self._left -= rows
        return True

    def add(self, number: int, way: RowWay, hashes: Array) -> None:
        """The rows of one tensor."""
        self._parts.setdefault(way.kind, []).append((number, hashes))
        self._forms[number] = way.form

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
        return found if found is not None and self._is_proved(a_source, b_source, way, found) else None

    def _is_proved(self, a_source: Source, b_source: Source, way: RowWay, found: RowMap) -> bool:
        """Whether every byte of the rows is what the map says."""
        for source, view in [(b_source, way.form.view)] + [
            (a_source, self._forms[number].view) for number in {one.tensor for one in found.runs}
        ]:
            source.prove_later(int(view.storage))
        nbytes = way.form.view.shape[1] * way.form.view.dtype.block_bytes
        is_long = nbytes * way.form.view.shape[0] >= LONG_NBYTES * len(found.runs)
        blocks = _blocks_of_runs(found.runs, max(1, (BLOCK_NBYTES if is_long else self._gathered) // nbytes), is_long)
        compared = (
            same(_bytes(self._taken(a_source, way, runs)), _bytes(way.rows(b_source, *_span(runs)))) for runs in blocks
        )
        is_same = all(compared)
        a_source.settle()
        b_source.settle()
        return is_same

    def _taken(self, source: Source, way: RowWay, runs: Sequence[RowRun]) -> Array:
        """The rows of the first that some runs name, in the type of the comparison."""
        if len(runs) == 1:
            (one,) = runs
            view = self._forms[one.tensor].view
            return self._cast(raw_rows(source, view, one.start, one.start + one.length), view, way)
        import numpy as np

        tensors, starts, lengths = (np.array(column) for column in list(zip(*runs, strict=True))[:3])
        owner = np.repeat(tensors, lengths)
        ends = np.cumsum(lengths)
        row = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
        made: Array | None = None
        for number in np.unique(tensors).tolist():
            view = self._forms[number].view
            here = np.flatnonzero(owner == number)
            nbytes = view.shape[1] * view.dtype.block_bytes
            part = source.take(int(view.storage), view.byte_start + row[here] * nbytes, nbytes)
            part = self._cast(part.view(ELEMENTS[view.dtype.block_bytes]), view, way)
            if len(here) == len(row):
                return part
            made = np.empty((len(row), part.view("u1").shape[1]), "u1") if made is None else made
            made[here] = part.view("u1")
        assert made is not None
        return made

    @staticmethod
    def _cast(rows: Array, view: View, way: RowWay) -> Array:
        return changed(rows, view.dtype, dtype=way.dtype or way.form.view.dtype)


def _bytes(rows: Array) -> Array:
    return rows.reshape(-1).view("u1")


def _span(runs: Sequence[RowRun]) -> tuple[int, int]:
    """The rows of the second that runs give."""
    return runs[0].to, runs[-1].to + runs[-1].length


def _blocks_of_runs(runs: Sequence[RowRun], most: int, is_long: bool) -> Iterator[list[RowRun]]:
    """Runs in blocks of at most `most` rows, cut where they are longer; long ones are blocks of their own."""
    block: list[RowRun] = []
    count = 0
    for run in runs:
        for at in range(0, run.length, most):
            one = RowRun(run.tensor, run.start + at, min(most, run.length - at), run.to + at)
            if block and (is_long or count + one.length > most):
                yield block
                block, count = [], 0
            block.append(one)
            count += one.length
    if block:
        yield block
