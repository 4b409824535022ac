"""A tensor whose rows or columns are those of tensors of the first checkpoint, and what is beside it, by the same map.

qkv_proj.weight [96, 32]        rows 0-63 of q_proj.weight, ...
qkv_proj.bias [96]              the same of q_proj.bias
qkv_proj.lora_B.weight [96, 8]  rows of their own width
qkv_proj.weight_scale_inv [3, 1]   a row for every 32, where each run is whole blocks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from paramtool.engine.compare.casts import narrow
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.line_table import LineMap
from paramtool.engine.compare.lines import Claim, LineRun, Lines, LineWay, Runs, is_proved
from paramtool.engine.compare.sides import Sides
from paramtool.engine.read.source import Source
from paramtool.model.diff import CAST, LAYOUT, ROUNDED, LineMove, LinePlace
from paramtool.model.dtype import DType
from paramtool.model.plan import Target
from paramtool.model.view import View, Views
from paramtool.passes.diff.moves import MAX_MOVES, moves_of
from paramtool.passes.diff.names import biases_of, short

NamedLines = tuple[str, Lines]
"""A tensor of the first as lines."""
MAX_RUNS = 1 << 16
"""A map of more runs is not made of windows, and none that a table makes is tried on what is beside a matrix."""
WEIGHT = ".weight"


class FoundMap(NamedTuple):
    """A tensor of the second checkpoint whose lines are those of tensors of the first."""

    name: str
    way: LineWay
    map: LineMap
    kind: str
    """LAYOUT, CAST or ROUNDED; "" where nothing was compared."""
    lines: Mapping[int, NamedLines]
    """{number in the map: a tensor of the first as lines}"""

    @property
    def olds(self) -> tuple[str, ...]:
        """The tensors of the first, in the order in which they come."""
        return tuple(dict.fromkeys(self.lines[number][0] for number in self.map.runs.tensors()))

    @property
    def is_of_rows(self) -> bool:
        """Whether rows are rows."""
        return not (self.way.lines.is_columns or any(lines.is_columns for _, lines in self.lines.values()))

    @property
    def how(self) -> str:
        """The map in words."""
        known = short(self.olds)
        names = {number: known[name] for number, (name, _) in self.lines.items()}
        is_columns = any(lines.is_columns for _, lines in self.lines.values())
        is_vector = not is_columns and self.way.lines.view.shape[1] == 1
        totals = {number: lines.total for number, (_, lines) in self.lines.items()}
        kind = "column" if is_columns else "element" if is_vector else "row"
        text = words(self.map.runs, names, kind, totals=totals)
        text = text if is_columns == self.way.lines.is_columns else f"transposed: {text}"
        return text if self.way.sign > 0 else f"negated: {text}"

    def used(self) -> Iterator[tuple[str, View]]:
        """(name in the first, a window on it that is read)"""
        for number, start, count in self.map.runs.covered():
            name, lines = self.lines[number]
            yield name, lines.part(start, count)

    def sources(self) -> Iterator[View]:
        """The windows that are read, each as often as its lines are taken."""
        import numpy as np

        runs, parts = self.map.runs, list(self.map.runs.covered())
        taken, covered = np.bincount(runs.tensor, runs.length), Counter[int]()
        for number, _, count in parts:
            covered[number] += count
        for number, start, count in parts:
            yield from [self.lines[number][1].part(start, count)] * max(1, int(taken[number]) // covered[number])

    def pairs(self) -> list[WindowPair]:
        """Each run as a window of the first and one of the second; none where there are more than MAX_RUNS."""
        theirs, sign = self.way.lines, self.way.sign
        return [
            WindowPair(self.lines[run.tensor][1].part(run.start, run.length), theirs.part(run.to, run.length), sign)
            for run in (self.map.runs if len(self.map.runs) <= MAX_RUNS else ())
        ]

    def moves(self) -> tuple[LineMove, ...]:
        """Each run as a move; none where there are more than MAX_MOVES."""
        if len(self.map.runs) > MAX_MOVES:
            return ()
        theirs, found = self.way.lines, []
        for run in self.map.runs:
            name, lines = self.lines[run.tensor]
            here = LinePlace(run.start, lines.total, lines.is_columns)
            found.append(LineMove(name, run.length, here, LinePlace(run.to, theirs.total, theirs.is_columns)))
        return tuple(found)

    def claim(self, memory: int) -> Claim:
        """What is to be proved."""
        return Claim(self.way, {number: lines for number, (_, lines) in self.lines.items()}, self.map.runs, memory)


def kind_of(a_source: Source, b_source: Source, claim: Claim) -> str:
    """What a map that was proved is called; "" where lines cast to a type were found among such casts of a third type.

    Two casts can round to the same numbers.  A cast is lossless where casting back gives all bytes, too.
    """
    types = {lines.view.dtype for lines in claim.olds.values()}
    if claim.way.dtype is not None:
        return ROUNDED if types == {claim.way.dtype} else ""
    own = claim.way.lines.view.dtype
    if types == {own}:
        return LAYOUT
    if len(types) > 1:
        return CAST if all(one == own or one.block_bytes < own.block_bytes for one in types) else ROUNDED
    back = claim._replace(way=claim.way._replace(dtype=types.pop()))
    return CAST if is_proved(a_source, b_source, back) else ROUNDED


def proved(sides: Sides, one: FoundMap, memory: int) -> FoundMap | None:
    """A map with its kind, if every byte is what it says: as it is, or cast."""

    def look(a_source: Source, b_source: Source, claim: Claim) -> FoundMap | None:
        for way in (claim.way, *casts(claim.way.lines, {lines.view.dtype: None for lines in claim.olds.values()})):
            tried = claim._replace(way=way)
            if is_proved(a_source, b_source, tried) and (kind := kind_of(a_source, b_source, tried)):
                return one._replace(way=way, kind=kind)
        return None

    pairs = [WindowPair(lines.view, one.way.lines.view) for _, lines in one.lines.values()]
    (found,) = sides.map(look, [(one.claim(memory), pairs)])
    return found


def casts(lines: Lines, others: Iterable[DType]) -> Iterator[LineWay]:
    """Lines cast to each type that other tensors have."""
    own = lines.view.dtype
    for dtype in others:
        if dtype != own and own.is_floating and dtype.is_floating:
            yield LineWay(lines, 1, dtype)


def as_rows(view: View, width: int) -> View:
    """A tensor without gaps as rows."""
    return view.with_axes((view.numel // width, width), (width, 1))


def map_of(target: Target, there: View, a: Views) -> FoundMap | None:
    """A target as rows of tensors of the first; None where it is not made of whole rows."""
    moves = moves_of(target, a, MAX_RUNS) if len(there.shape) > 1 and there.numel else ()
    width = there.shape[-1] if moves else 0
    olds = list(dict.fromkeys(move.old for move in moves))
    if not moves or any(a[old].shape[-1:] != (width,) for old in olds):
        return None
    if any(move.here.is_column or move.there.is_column for move in moves):
        return None
    times = there.numel // moves[0].there.of // width  # a line can be several rows
    runs = Runs.of(
        LineRun(olds.index(move.old), *(k * times for k in (move.here.start, move.length, move.there.start)))
        for move in moves
    )
    if runs.lines * width != there.numel:  # others are constants
        return None
    lines = {number: (old, Lines(as_rows(a[old], width))) for number, old in enumerate(olds)}
    return FoundMap(target.name, LineWay(Lines(as_rows(there, width))), LineMap(runs, True), LAYOUT, lines)


# --- What is beside a matrix: its bias, its scales and its low-rank factors -------------------------------------------


def companions(one: FoundMap, a: Views, left: Views) -> Iterator[FoundMap]:
    """The tensors beside one that is made of whole lines of others, by the same map; nothing is compared."""
    count, runs = one.map.runs.lines, one.map.runs
    for name, olds in _named(one, a, left):
        view = left[name]
        block = _block(count, view)
        ends = runs.start, runs.length, runs.to
        if not block or view.dtype.block_elements != 1 or any((end % block).any() for end in ends):
            continue
        rows, width = Runs(runs.tensor, *(end // block for end in ends)), view.numel // (count // block)
        if all(
            one.is_contiguous
            and (one.dtype == view.dtype or narrow(one.dtype, view.dtype) is not None)
            and (one.shape[-1:] == view.shape[-1:] or width == 1 or len(one.shape) == 1)
            for one in map(a.__getitem__, olds.values())
        ):
            lines = {number: (olds[old], Lines(as_rows(a[olds[old]], width))) for number, (old, _) in one.lines.items()}
            if all(start + length <= lines[number][1].total for number, start, length in rows.covered()):
                yield FoundMap(name, LineWay(Lines(as_rows(view, width))), LineMap(rows, True), "", lines)


def _named(one: FoundMap, a: Views, left: Views) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(tensor beside one of the second, {matrix of the first: what has the same place beside it}).

    They have the same end, or are biases by the words of other frameworks: `in_proj_bias` beside `in_proj_weight`.
    """
    stem, matrices = one.name.removesuffix(WEIGHT), one.olds
    found = set()
    for other, view in left.items():
        end = other[len(stem) :]
        if other == one.name or not other.startswith(stem) or end[:1] not in (".", "_") or not view.is_contiguous:
            continue
        # What a companion can be called beside another tensor: stacks have `_bias` where layers have `.bias`.
        word = end[1:]
        for tail in dict.fromkeys([end, f".{word}", f".weight_{word}", f"_{word.removeprefix('weight_')}"]):
            olds = {old: f"{old.removesuffix(WEIGHT)}{tail}" for old in matrices}
            if all(old in a for old in olds.values()):
                found.add(other)
                yield other, olds
                break
    for other in biases_of(one.name, left):
        biases = {old: next(iter(biases_of(old, a)), "") for old in matrices}
        if other not in found and left[other].is_contiguous and all(biases.values()):
            yield other, biases


def _block(rows: int, view: View) -> int:
    """How many rows of a matrix one row of its companion is for; 0 if none."""
    own = prod(view.shape[:-1]) if len(view.shape) > 1 else view.numel
    if rows in (view.numel, own):
        return 1
    return rows // own if own and not rows % own else 0


# --- A map of lines in words: the period of its runs where it has one, else its first runs ---------------------------


MAX_PARTS = 1 << 12
"""Tensors joined of more are told by their first rows."""
FEW = 6
"""Of more runs only the first and the last are shown."""


def words(
    runs: Runs, names: Sequence[str] | Mapping[int, str], lines: str = "row", *, totals: Mapping[int, int] | None = None
) -> str:
    """A map of rows, columns or elements; `totals` says how many each tensor has.

    >>> turn = Runs.of([LineRun(k, 2 * n, 2, 0) for n in range(3) for k in (0, 1)])
    >>> words(turn, ["gate", "up"])
    'rows of gate 2, up 2 in turn, 3 times'
    >>> words(Runs.of([LineRun(0, 0, 6, 0), LineRun(1, 0, 4, 6)]), ["q", "k"])
    '[q; k]'
    >>> words(Runs.of([LineRun(0, 4 + 8 * n, 4, 4 * n) for n in range(3)]), ["qkv"])
    'rows 4-7 of every 8 of qkv'
    >>> words(Runs.of([LineRun(0, 8, 8, 0), LineRun(0, 0, 8, 8)]), ["w"], "column")
    'columns of [w 8-15; w 0-7]'
    >>> words(Runs.of([LineRun(0, 9 - k, 1, k) for k in range(10)]), ["w"])
    'rows of w backwards'
    >>> words(Runs.of([LineRun(0, 8 * m + 2 * n, 2, 6 * n + 2 * m) for n in range(4) for m in range(3)]), ["qkv"])
    'rows of qkv as [3, 4, 2], axes (1, 0, 2)'
    >>> quarters = [LineRun(0, 4 * m + 2 * n, 2, 4 * n + 2 * m) for n in (0, 1) for m in (0, 1)]
    >>> words(Runs.of(quarters), ["w"], totals={0: 9})
    '[w 0-1; w 4-5; w 2-3; w 6-7]'
    """
    of = "columns of " if lines == "column" else ""
    if _are_whole(runs, totals):
        return f"{of}[{'; '.join(_few(runs, lambda one: names[one.tensor]))}]"
    first, step = runs.first(1)[0], runs.step()
    if step > first.length:
        last = first.start + first.length - 1
        which = f"{lines} {first.start}" if first.start == last else f"{lines}s {first.start}-{last}"
        return f"{which} of every {step} of {names[first.tensor]}"
    if step == -first.length:
        some = f", {first.length} at a time" if first.length > 1 else ""
        return f"{lines}s of {names[first.tensor]} backwards{some}"
    if (shape := runs.exchanged()) and (totals is None or totals[first.tensor] == prod(shape)):
        return f"{lines}s of {names[first.tensor]} as {list(shape)}, axes (1, 0, 2)"
    if period := runs.period():
        turn = ", ".join(_few(runs.part(0, period), lambda one: f"{names[one.tensor]} {one.length}"))
        return f"{lines}s of {turn} in turn, {len(runs) // period} times"
    of = "elements of " if lines == "element" else of
    return f"{of}[{'; '.join(_few(runs, lambda one: f'{names[one.tensor]} {_span(one)}'))}]"


def _are_whole(runs: Runs, totals: Mapping[int, int] | None) -> bool:
    """Whether each run is a whole tensor, and none comes twice."""
    if len(runs) > MAX_PARTS or runs.start.any() or len(runs.tensors()) < len(runs):
        return False
    return totals is None or all(one.length == totals[one.tensor] for one in runs)


def _few(runs: Runs, word: Callable[[LineRun], str]) -> list[str]:
    """The words of some runs, and how many are left out."""
    count = len(runs)
    if count <= FEW:
        return [word(one) for one in runs]
    (last,) = runs.part(count - 1, count)
    return [*(word(one) for one in runs.first(4)), f"... {count - 5} more", word(last)]


def _span(run: LineRun) -> str:
    return str(run.start) if run.length == 1 else f"{run.start}-{run.start + run.length - 1}"
