"""How two checkpoints differ, as figures: verdicts over the bytes, and changed rows as heat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isfinite, log10, prod
from typing import TYPE_CHECKING, NamedTuple

from paramtool.commands.report.modules import StoredTensor, geometry
from paramtool.drawing.palette import HEAT
from paramtool.engine.compare.changes import BLOCK_ELEMENTS, WindowPair, differences, number_types
from paramtool.engine.compare.sides import Sides
from paramtool.engine.read.blocks import blocks
from paramtool.engine.read.elements import Array
from paramtool.engine.read.source import Source
from paramtool.errors import plural
from paramtool.model.checkpoint import GRAPH, Checkpoint
from paramtool.model.diff import (
    ADDED,
    CAST,
    CHANGED,
    DEQUANTISED,
    LAYOUT,
    REMOVED,
    RENAMED,
    ROUNDED,
    SAME,
    UNDECIDED,
    WORDS,
    TensorDiff,
    far,
)
from paramtool.model.display import size, span

if TYPE_CHECKING:
    from paramtool.commands.diff.diff import Diffed

MAX_STRIPS = 80
"""Changed tensors whose rows are drawn, those with the largest differences."""
MAX_MAPS = 16
"""Of these, how many are drawn by rows and columns."""
TINTS = {
    SAME: "grey", RENAMED: "sky", LAYOUT: "green", CAST: "purple", DEQUANTISED: "purple", ROUNDED: "yellow",
    CHANGED: "orange", ADDED: "blue", REMOVED: "red", UNDECIDED: "blank", GRAPH: "blank",
}  # fmt: skip


class HeatBin(NamedTuple):
    """Some rows that follow each other."""

    level: int
    """From 0, nothing differs, to the last of the palette's."""
    words: str


class ChangedRows(NamedTuple):
    """A changed tensor, and where it changed."""

    diff: TensorDiff
    bins: tuple[HeatBin, ...] = ()
    cells: tuple[tuple[int, ...], ...] = ()
    """Levels, `cells[column][row]`, where columns say more than rows alone; else empty."""
    columns: str = ""
    """Where the largest differences are along the columns, for `cells`."""


def verdicts(found: Diffed, b: Checkpoint) -> Iterator[StoredTensor]:
    """The tensors of the second checkpoint, each with the tint of its verdict; names of one window count once."""
    kinds = {name: one for one in found.tensors for name in one.b}
    seen = set()
    for name, view in b.windows():
        if view in seen:
            continue
        seen.add(view)
        one = kinds.get(name)
        kind = one.kind if one else SAME
        more = f", {change_words(one)}" if one and change_words(one) else ""
        words = f"{WORDS[kind]}{more}; {geometry(view)}, {size(view.nbytes)}"
        yield StoredTensor(name, view.nbytes, TINTS[kind], "", words, kind)


def change_words(one: TensorDiff) -> str:
    """How far a changed tensor is apart, or by which map it is the same."""
    found = one.change
    if found is None:
        return one.how
    words = [f"{found.elements:,} of {plural(found.numel, 'element')}", *far([found])]
    return ", ".join([*words, *([one.how] if one.how else [])])


def changed(found: Diffed) -> list[TensorDiff]:
    """Changed and rounded tensors, the largest difference first."""

    def weight(one: TensorDiff) -> float:  # of another shape, or of a type without numbers: first
        return inf if one.change is None or one.change.largest is None else one.change.largest

    return sorted((one for one in found.tensors if one.kind in (CHANGED, ROUNDED)), key=weight, reverse=True)


def changed_rows(shown: Sequence[TensorDiff], a: Checkpoint, b: Checkpoint, memory: int) -> list[ChangedRows]:
    """Where tensors changed; reads these again, block by block.  Those of other shapes have no bins."""
    first, second = dict(a.windows()), dict(b.windows())
    # Whether elements are compared that are in other places, as in a transpose.
    pairs = {
        one: WindowPair(first[one.a[0]], second[one.b[0]])
        for one in shown
        if len(one.a) == len(one.b) == 1
        and one.a[0] in first
        and one.b[0] in second
        and not (one.change is not None and bool(one.change.elements) and not one.change.rows)
    }
    pairs = {one: pair for one, pair in pairs.items() if pair.a.shape == pair.b.shape and pair.b.numel}
    with Sides(a, b, memory) as sides:
        found = dict(zip(pairs, heat(list(pairs.values()), sides), strict=True))
    largest = max((bin_.largest for one in found.values() for bin_ in one.rows if bin_.largest
                   and isfinite(bin_.largest)), default=0.0)  # fmt: skip
    made, maps = [], 0
    for one in shown:
        drawn = _rows(one, found[one], largest, maps < MAX_MAPS) if one in found else ChangedRows(one)
        maps += bool(drawn.cells)
        made.append(drawn)
    return made


def _rows(one: TensorDiff, found: Heat, largest: float, has_room: bool) -> ChangedRows:
    bins = tuple(_heat(bin_, largest) for bin_ in found.rows)
    are_numbers = found.rows[0].largest is not None
    cells = _levels(found.cells, largest, are_numbers) if has_room else ()
    if not _says_more(cells):
        return ChangedRows(one, bins)
    worst = max(range(len(cells)), key=lambda k: max(cells[k]))
    start, stop = found.cells.columns[worst : worst + 2]
    return ChangedRows(one, bins, cells, span("column", start, stop))


def _levels(found: CellMap, largest: float, are_numbers: bool) -> tuple[tuple[int, ...], ...]:
    """The levels of cells, a tuple for each column."""
    levels = (
        [level(far if are_numbers else None, largest) if count else 0 for count, far in zip(*row, strict=True)]
        for row in zip(found.elements, found.largest, strict=True)
    )
    return tuple(zip(*levels, strict=True))


def _says_more(cells: Sequence[Sequence[int]]) -> bool:
    """Whether a strip of rows would hide something: cells of an eighth of the changed rows differ far less than others.

    >>> _says_more([[0, 7], [0, 7]]), _says_more([[7, 7], [0, 0]]), _says_more([[7, 7], [6, 6]]), _says_more([[7, 7]])
    (False, True, False, False)
    """
    if len(cells) < 2 or len(cells[0]) < 2:
        return False
    rows = [row for row in zip(*cells, strict=True) if any(row)]
    less = sum(max(row) - level > 1 for row in rows for level in row)
    return bool(rows) and 8 * less >= len(rows) * len(rows[0])


def _heat(one: RowBin, largest: float) -> HeatBin:
    rows = span("row", one.start, one.stop)
    if not one.elements:
        return HeatBin(0, f"{rows}: no difference")
    words = f", largest difference {one.largest:.3g}" if one.largest is not None else ""
    words = ", a NaN or an infinity in one of the two" if one.largest == inf else words
    return HeatBin(level(one.largest, largest), f"{rows}: {plural(one.elements, 'element')}{words}")


def level(value: float | None, largest: float) -> int:
    """The colour of a difference: the last one for the largest, one less for each power of ten below it.

    >>> level(1.0, 1.0), level(0.09, 1.0), level(1e-12, 1.0), level(0.0, 1.0), level(None, 1.0)
    (7, 5, 1, 1, 7)
    """
    top = len(HEAT) - 1
    if value is None or not isfinite(value) or not largest:
        return top
    if value <= 0:
        return 1
    return max(1, min(top, top - int(max(0.0, -log10(value / largest) + 0.999999))))


def scale(largest: float) -> Iterator[tuple[str, str, str]]:
    """What the colours mean: (class, marks, words)."""
    yield "h0", "", "no difference"
    for k in range(1, len(HEAT)):
        power = len(HEAT) - 1 - k
        words = f"up to {largest * 10**-power:.2g}" if power else f"up to {largest:.3g}, the largest"
        yield f"h{k}", "", words


# --- Where in a tensor numbers are apart: how many elements of rows, and of cells of rows and columns, and how far ----


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
