"""Maps between rows: which rows of which tensors follow each other in another tensor, and the same in few words.

[q 0-15; k 0-3; v 0-3; q 16-31; k 4-7; v 4-7]    as runs
q 16, k 4, v 4 rows in turn, 2 times             in words
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

Place = tuple[int, int]
"""(number of a tensor, number of a row in it)"""


class RowRun(NamedTuple):
    """Rows that follow each other in both tensors."""

    tensor: int
    start: int
    """The first row in the first checkpoint's tensor."""
    length: int
    to: int
    """Where they begin in the second's."""


class RowMap(NamedTuple):
    """How the rows of one tensor are found in others."""

    runs: tuple[RowRun, ...]
    is_unique: bool
    """Whether each row is found in one place only."""


def found_in(rows: Iterable[Sequence[Place]]) -> RowMap:
    """The map of rows, each of which is in some places, sorted.

    Of several places, the one that continues the run is taken.
    """
    runs: list[RowRun] = []
    is_unique = True
    for to, places in enumerate(rows):
        is_unique = is_unique and len(places) == 1
        last = runs[-1] if runs else None
        if last is not None and _has(places, (last.tensor, last.start + last.length)):
            runs[-1] = last._replace(length=last.length + 1)
        else:
            tensor, start = _next_of(places, runs)
            runs.append(RowRun(tensor, start, 1, to))
    return RowMap(tuple(runs), is_unique)


def _has(places: Sequence[Place], wanted: Place) -> bool:
    """Whether a place is one of many, which are sorted."""
    at = bisect_left(places, wanted)
    return at < len(places) and places[at] == wanted


def _next_of(places: Sequence[Place], runs: Sequence[RowRun]) -> Place:
    """Of several places, the one behind what was taken of its tensor before; else the first."""
    behind = ((one.tensor, one.start + one.length) for one in runs[-8:])
    return min((place for place in behind if _has(places, place)), default=places[0])


def covered(runs: Iterable[RowRun]) -> Iterator[tuple[int, int, int]]:
    """(tensor, first row, rows) of what runs read of the first checkpoint, neighbours together.

    >>> list(covered([RowRun(0, 2, 2, 0), RowRun(0, 0, 2, 2), RowRun(1, 5, 1, 4)]))
    [(0, 0, 4), (1, 5, 1)]
    """
    last: tuple[int, int, int] | None = None
    for tensor, start, stop in sorted((one.tensor, one.start, one.start + one.length) for one in runs):
        if last is not None and last[0] == tensor and start <= last[2]:
            last = tensor, last[1], max(last[2], stop)
            continue
        if last is not None:
            yield last[0], last[1], last[2] - last[1]
        last = tensor, start, stop
    if last is not None:
        yield last[0], last[1], last[2] - last[1]


def words(runs: Sequence[RowRun], names: Sequence[str]) -> str:
    """A map in words: the period of its runs where it has one, else its first runs.

    >>> turn = [RowRun(k, 2 * n, 2, 0) for n in range(3) for k in (0, 1)]
    >>> words(turn, ["gate", "up"])
    'rows of gate 2, up 2 in turn, 3 times'
    >>> words([RowRun(0, 0, 6, 0), RowRun(1, 0, 4, 6)], ["q", "k"])
    '[q; k]'
    >>> words([RowRun(0, 4 + 8 * n, 4, 4 * n) for n in range(3)], ["qkv"])
    'rows 4-7 of every 8 of qkv'
    """
    lengths = [(one.tensor, one.length) for one in runs]
    if len({one.tensor for one in runs}) == len(runs) and all(not one.start for one in runs):
        return "[" + "; ".join(_few([names[one.tensor] for one in runs])) + "]"
    starts = [one.start for one in runs]
    steps = {b - a for a, b in pairwise(starts)}
    if len(set(lengths)) == 1 and len(steps) == 1 and len(runs) > 2 and (step := steps.pop()) > lengths[0][1]:
        first, last = starts[0], starts[0] + lengths[0][1] - 1
        rows = f"row {first}" if first == last else f"rows {first}-{last}"
        return f"{rows} of every {step} of {names[lengths[0][0]]}"
    for period in range(1, min(len(lengths) // 2, 64) + 1):
        if len(lengths) % period == 0 and lengths == lengths[:period] * (len(lengths) // period):
            turn = ", ".join(_few([f"{names[tensor]} {count}" for tensor, count in lengths[:period]]))
            return f"rows of {turn} in turn, {len(lengths) // period} times"
    shown = [f"{names[one.tensor]} {one.start}-{one.start + one.length - 1}" for one in runs]
    return "[" + "; ".join(_few(shown)) + "]"


def _few(words_of_runs: Iterable[str]) -> list[str]:
    every = list(words_of_runs)
    return every if len(every) <= 6 else [*every[:4], f"... {len(every) - 5} more", every[-1]]
