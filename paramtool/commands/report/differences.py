"""How two checkpoints differ, as figures: verdicts over the bytes, and changed rows as heat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isfinite, log10
from typing import TYPE_CHECKING, NamedTuple

from paramtool.commands.report.modules import StoredTensor, geometry
from paramtool.drawing.palette import HEAT
from paramtool.engine.compare.heat import CellMap, Heat, RowBin, heat
from paramtool.engine.compare.sides import Sides, WindowPair
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
from paramtool.model.display import size

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
    columns = f"column {start}" if stop - start == 1 else f"columns {start} to {stop - 1}"
    return ChangedRows(one, bins, cells, columns)


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
    rows = f"row {one.start}" if one.stop - one.start == 1 else f"rows {one.start} to {one.stop - 1}"
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
