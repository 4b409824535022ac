"""Maps between layouts as figures: which rows of A's tensors became which of B's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from paramtool.commands.report.sharing import NUMBERS
from paramtool.drawing.palette import SERIES
from paramtool.drawing.ribbons import Ribbon
from paramtool.errors import plural
from paramtool.model.diff import LinePlace, TensorDiff

OWN_TINTS = len(SERIES) - 1
"""Things of one figure that have a tint each."""


class MoveFigure(NamedTuple):
    """Tensors of B, and those of A that they are made of."""

    names: tuple[str, ...]
    """Of B's tensors."""
    how: str
    above: tuple[int, ...]
    """How many rows or columns each tensor of A has."""
    below: tuple[int, ...]
    """The same of B's."""
    ribbons: tuple[Ribbon, ...]
    tints: tuple[tuple[str, str], ...]
    """(tint, what has it), where colours are tensors."""
    a_words: str
    b_words: str
    alike: int
    """How many others look like it, but for numbers in names."""


def move_figures(found: Iterable[TensorDiff]) -> list[MoveFigure]:
    """A figure for each kind of map; those of layers that look alike are one.

    Tensors that are made of the same ones are in one figure.  A map of one whole tensor to one whole tensor, such as a
    transpose, has none: there is nothing to see.
    """
    made: dict[tuple[str, ...], list[TensorDiff]] = {}
    for one in found:
        if one.moves:
            made.setdefault(tuple(sorted({move.old for move in one.moves})), []).append(one)
    alike: dict[object, list[list[TensorDiff]]] = {}
    for diffs in made.values():
        first = diffs[0].moves[0]
        if len(diffs) > 1 or len(diffs[0].moves) > 1 or not first.length == first.here.of == first.there.of:
            # What maps that look alike have in common.
            alike.setdefault(
                (
                    tuple(
                        (
                            NUMBERS.sub("*", one.b[0]),
                            tuple((NUMBERS.sub("*", move.old), *move[1:]) for move in one.moves),
                        )
                        for one in diffs
                    )
                ),
                [],
            ).append(diffs)
    return [_figure(same[0], len(same) - 1) for same in alike.values()]


def _figure(diffs: Sequence[TensorDiff], alike: int) -> MoveFigure:
    olds = {move.old: move.here for one in diffs for move in one.moves}
    news = {one.b[0]: one.moves[0].there for one in diffs}
    tints = _tints(diffs, list(olds), list(news))
    a_names, b_names = _ends(olds), _ends(news)
    ribbons = tuple(
        Ribbon(
            (list(olds).index(move.old), move.here.start), (k, move.there.start), move.length, tint,
            a_names.get(move.old) or lines(move.here, move.length), b_names.get(one.b[0]) or a_names.get(move.old)
            or lines(move.there, move.length),
            f"{lines(move.here, move.length)} of {move.old}: {lines(move.there, move.length)} of {one.b[0]}",
        )
        for k, one in enumerate(diffs)
        for move, tint in zip(one.moves, tints[k], strict=True)
    )  # fmt: skip
    key = {move.old if len(olds) > 1 else one.b[0]: tint for k, one in enumerate(diffs)
           for move, tint in zip(one.moves, tints[k], strict=True)}  # fmt: skip
    return MoveFigure(
        tuple(news), diffs[0].how, tuple(place.of for place in olds.values()),
        tuple(place.of for place in news.values()), ribbons,
        tuple((tint, name) for name, tint in key.items()) if len(olds) > 1 or len(news) > 1 else (),
        _words(olds), _words(news), alike,
    )  # fmt: skip


def _tints(diffs: Sequence[TensorDiff], olds: list[str], news: list[str]) -> list[list[str]]:
    """For each move: of several tensors of A or of B each has one.

    Of a single tensor each move has its own, or those that go up together have one.
    """
    if len(olds) > 1:
        return [[_tint(olds.index(move.old)) for move in one.moves] for one in diffs]
    if len(news) > 1:
        return [[_tint(k)] * len(one.moves) for k, one in enumerate(diffs)]
    moves = diffs[0].moves
    if len(moves) <= OWN_TINTS:
        return [[_tint(k) for k in range(len(moves))]]
    found, group = [0], 0
    for last, one in pairwise(moves):
        group += one.here.start < last.here.start
        found.append(group)
    return [[_tint(group) for group in found]]


def _tint(k: int) -> str:
    return SERIES[k] if k < OWN_TINTS else SERIES[-1]


def _ends(places: dict[str, LinePlace]) -> dict[str, str]:
    """The last words of names, where there are several."""
    return {name: _last(name) for name in places} if len(places) > 1 else {}


def _words(places: dict[str, LinePlace]) -> str:
    """What the strips of one side are."""
    kinds = dict.fromkeys("columns" if place.is_column else "rows" for place in places.values())
    names = plural(len(places), "tensor") if len(places) > 1 else next(iter(places))
    return f"{' and '.join(kinds)} of {names}"


def lines(place: LinePlace, length: int) -> str:
    """Rows or columns in words.

    >>> lines(LinePlace(3, 8), 2), lines(LinePlace(3, 8, True), 1)
    ('rows 3 to 4', 'column 3')
    """
    what = "column" if place.is_column else "row"
    return f"{what} {place.start}" if length == 1 else f"{what}s {place.start} to {place.start + length - 1}"


def _last(name: str) -> str:
    """The last words of a name."""
    words = name.split(".")
    return ".".join(words[-2:]) if words[-1] in ("weight", "bias") else words[-1]
