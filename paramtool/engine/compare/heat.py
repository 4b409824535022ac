"""Where in a tensor numbers are apart: how many elements of rows, and of cells of rows and columns, and how far."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.changes import BLOCK_ELEMENTS, differences, number_types
from paramtool.engine.compare.sides import Sides, WindowPair
from paramtool.engine.read.blocks import blocks
from paramtool.engine.read.source import Source

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BINS = 200
CELLS = 64
"""Cells along each side of a map."""


class RowBin(NamedTuple):
    """Rows that follow each other."""

    start: int
    stop: int
    elements: int
    """How many of their elements differ."""
    largest: float | None
    """The largest absolute difference; `inf` where one is not finite, None where the type has no numbers."""


class CellMap(NamedTuple):
    """The same for cells of rows and columns: `elements[row][column]`."""

    rows: tuple[int, ...]
    """Where each cell begins along the first axis, and the end of the last one."""
    columns: tuple[int, ...]
    """The same along all other axes, counted together."""
    elements: Sequence[Sequence[int]]
    largest: Sequence[Sequence[float]]
    """0 where the type has no numbers."""


class Heat(NamedTuple):
    """Where two windows differ."""

    rows: tuple[RowBin, ...]
    cells: CellMap


def heat(pairs: Sequence[WindowPair], sides: Sides, bins: int = BINS, cells: int = CELLS) -> list[Heat]:
    """Where each pair of windows of one shape, not empty, differs; a tensor of one axis has a row for each element.

    Memory: a block of each at a time, and two numbers for each bin and cell.
    """

    def work(a_source: Source, b_source: Source, pair: WindowPair) -> Heat:
        import numpy as np

        kinds = number_types(pair.a, pair.b)
        x, y = a_source.array(pair.a), b_source.array(pair.b)
        if kinds is not None:
            x, y = x.view(kinds[0]), y.view(kinds[1])
        rows, columns = (x.shape[0], prod(x.shape[1:])) if x.shape else (1, 1)
        count, high, wide = min(rows, bins), min(rows, cells), min(columns, cells)
        elements, largest = np.zeros((count, wide), np.int64), np.zeros((count, wide))
        map_elements, map_largest = np.zeros((high, wide), np.int64), np.zeros((high, wide))
        for box in blocks(x.shape, BLOCK_ELEMENTS):
            top, left = _corner(box, x.shape)
            if kinds is None:  # a type without numbers
                differs = np.asarray(x[box] != y[box])
                apart = np.zeros(differs.shape)
            else:
                differs, apart, *_ = differences(x[box], y[box])
            down = max(1, len(differs) if box else 1)
            column, starts = _bins(left, differs.size // down, columns, wide)
            differs = np.add.reduceat(differs.view("u1").reshape(down, -1), starts, axis=1, dtype=np.int64)
            apart = np.maximum.reduceat(apart.reshape(down, -1), starts, axis=1)
            for many, sums, most in ((count, elements, largest), (high, map_elements, map_largest)):
                row, starts = _bins(top, down, rows, many)
                at = np.ix_(row, column)
                sums[at] += np.add.reduceat(differs, starts)
                most[at] = np.maximum(most[at], np.maximum.reduceat(apart, starts))
        edges = _edges(rows, count)
        sums, most = elements.sum(1).tolist(), largest.max(1, initial=0.0).tolist()
        found = (
            RowBin(edges[k], edges[k + 1], sums[k], most[k] if kinds is not None else None) for k in range(count)
        )  # fmt: skip
        cell_map = CellMap(_edges(rows, high), _edges(columns, wide), map_elements.tolist(), map_largest.tolist())
        return Heat(tuple(found), cell_map)

    return list(sides.map(work, ((pair, [pair]) for pair in pairs)))


def _corner(box: Sequence[slice], shape: Sequence[int]) -> tuple[int, int]:
    """The first row of a block, and its first column: all axes behind the first are counted together."""
    left = 0
    for k, side in enumerate(box[1:], 1):
        left = left * shape[k] + side.start
    return (box[0].start if box else 0), left


def _bins(start: int, length: int, of: int, count: int) -> tuple[Array, Array]:
    """The bins of some indexes that follow each other, and where each begins among them."""
    import numpy as np

    return np.unique(np.arange(start, start + length) * count // of, return_index=True)


def _edges(length: int, count: int) -> tuple[int, ...]:
    """Where bins begin, and the end of the last: row `k` is in bin `k * count // length`."""
    return tuple(-(-k * length // count) for k in range(count + 1))
