"""A map of lines in words: the period of its runs where it has one, else its first runs.

q 16, k 4, v 4 rows in turn, 2 times
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from paramtool.engine.compare.runs import LineRun, Runs

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
