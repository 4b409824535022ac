"""Where along the rows of a tensor numbers are apart: rows in bins, each with how many elements differ and how far."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.changes import BLOCK_ELEMENTS, number_types
from paramtool.engine.compare.sides import Sides, WindowPair
from paramtool.engine.read.blocks import blocks
from paramtool.engine.read.source import Source

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BINS = 200


class RowBin(NamedTuple):
    """Rows that follow each other."""

    start: int
    stop: int
    elements: int
    """How many of their elements differ."""
    largest: float | None
    """The largest absolute difference; `inf` where one is not finite, None where the type has no numbers."""


def row_bins(pairs: Sequence[WindowPair], sides: Sides, most: int = BINS) -> list[list[RowBin]]:
    """The bins of each pair of windows of one shape; a tensor of one axis has a row for each element.

    Memory: a block of each at a time, and two numbers for each bin.
    """

    def work(a_source: Source, b_source: Source, pair: WindowPair) -> list[RowBin]:
        return _bins(pair, a_source, b_source, most)

    return list(sides.map(work, ((pair, [pair]) for pair in pairs)))


def _bins(pair: WindowPair, a_source: Source, b_source: Source, most: int) -> list[RowBin]:
    import numpy as np

    kinds = number_types(pair.a, pair.b)
    x, y = a_source.array(pair.a), b_source.array(pair.b)
    if kinds is not None:
        x, y = x.view(kinds[0]), y.view(kinds[1])
    rows = x.shape[0] if x.shape else 1
    count = min(rows, most)
    elements, largest = np.zeros(count, np.int64), np.zeros(count)
    for box in blocks(x.shape, BLOCK_ELEMENTS):
        differs, apart = _apart(x[box], y[box], kinds is not None)
        start = box[0].start if box else 0
        high = differs.shape[0] if differs.shape else 1
        at = (np.arange(start, start + high) * count) // rows
        np.add.at(elements, at, differs.reshape(high, -1).sum(1))
        np.maximum.at(largest, at, apart.reshape(high, -1).max(1, initial=0.0))
    starts = [-(-k * rows // count) for k in range(count + 1)]
    return [
        RowBin(starts[k], starts[k + 1], int(elements[k]), float(largest[k]) if kinds is not None else None)
        for k in range(count)
    ]


def _apart(x: Array, y: Array, are_numbers: bool) -> tuple[Array, Array]:
    """Which elements differ, and how far; NaN equals NaN."""
    import numpy as np

    if not are_numbers:
        differs = np.asarray(x != y)
        return differs, np.zeros(differs.shape)
    with np.errstate(all="ignore"):
        wide = "c16" if "c" in (x.dtype.kind, y.dtype.kind) else "f8"
        p, q = np.asarray(x).astype(wide), np.asarray(y).astype(wide)
        equal = (p == q) | (np.isnan(p) & np.isnan(q))
        apart = np.asarray(np.abs(p - q))
        apart[equal] = 0
        apart[np.isnan(apart)] = inf
    return np.asarray(~equal), apart
