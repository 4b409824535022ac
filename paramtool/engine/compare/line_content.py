"""Whether lines hold so much that they are not equal by chance: masks, codes and indices repeat each other's rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.line_hashes import BLOCK_NBYTES
from paramtool.engine.compare.lines import LineWay, turned
from paramtool.engine.read.source import Source

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

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
