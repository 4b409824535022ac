"""Which rows and columns of tensors became which of another one, from the windows that it is made of.

qkv [96, 32] of q, k and v [32, 32]     rows 0-31 of q are rows 0-31, rows 0-31 of k are rows 32-63, ...
kernel [32, 64] of weight_ih [64, 32]   rows 0-15 of weight_ih are columns 0-15, rows 32-47 are columns 16-31, ...

A tensor is cut into rows, or into columns, at any of its axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from paramtool.model.diff import LineMove, LinePlace
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, Views

MAX_MOVES = 512
"""A map of more moves is left out."""


class _LineCut(NamedTuple):
    """A tensor cut into rows of a width, or into the columns of such rows."""

    rows: int
    width: int
    is_columns: bool

    @property
    def lines(self) -> int:
        """How many rows or columns."""
        return self.width if self.is_columns else self.rows

    @property
    def across(self) -> int:
        """How many elements each of them has."""
        return self.rows if self.is_columns else self.width

    def begins(self, offset: int) -> bool:
        """Whether a line begins at an element."""
        return offset < self.width if self.is_columns else offset % self.width == 0


class _SharedAxis(NamedTuple):
    """An axis of both windows: its length and the steps along the tensors of the first and the second."""

    length: int
    here: int
    there: int


def moves_of(target: Target, a: Views, most: int = MAX_MOVES) -> tuple[LineMove, ...]:
    """The moves that make a tensor of those of the first checkpoint, in the order of the second.

    Empty where parts of rows and columns are moved, numbers are added up, or there are more than `most`.  Rows that
    hold constants are in no move.
    """
    copies = [copy for copy in target.copies if copy.terms]
    if any(len(copy.terms) > 1 or not copy.names or not _is_whole(a.get(copy.names[0])) for copy in copies):
        return ()
    for there in _cuts(target.shape):
        found: list[LineMove] = []
        for copy in copies:
            made = _of_copy(copy, a[copy.names[0]], there, most)
            if not made or len(found) + len(made) > most:
                break
            found += made
        else:
            return joined(found)
    return ()


def joined(moves: Iterable[LineMove]) -> tuple[LineMove, ...]:
    """Moves in the order of the second tensor; those that continue each other are one."""
    found: list[LineMove] = []
    for one in sorted(moves, key=lambda move: move.there.start):
        last = found[-1] if found else None
        if last is not None and last.old == one.old and _continues(last, one):
            found[-1] = last._replace(length=last.length + one.length)
        else:
            found.append(one)
    return tuple(found)


def _continues(last: LineMove, one: LineMove) -> bool:
    return all(
        x.start + last.length == y.start and x.is_column == y.is_column
        for x, y in ((last.here, one.here), (last.there, one.there))
    )


def _is_whole(view: View | None) -> bool:
    return view is not None and view.is_contiguous and view.dtype.block_elements == 1


def _cuts(shape: Sequence[int]) -> Iterator[_LineCut]:
    """The ways to cut a tensor, those with the longest rows first."""
    sides = [side for side in shape if side != 1] or [1]
    total = prod(sides)
    if not total:
        return
    for k in range(1, len(sides) + (len(sides) == 1)):
        width = prod(sides[k:])
        yield _LineCut(total // width, width, False)
    for k in range(1, len(sides)):
        width = prod(sides[k:])
        yield _LineCut(total // width, width, True)


def _of_copy(copy: Copy, old: View, there: _LineCut, most: int) -> list[LineMove]:
    """The moves of one window; none where it is not made of whole rows or columns of both."""
    source, destination = copy.source, copy.destination
    begin = source.offset - old.offset
    if begin < 0 or source.storage != old.storage or source.dtype != old.dtype:
        return []
    axes = [
        _SharedAxis(*one)
        for one in zip(source.shape, source.strides, destination.strides, strict=True)
        if one[0] > 1
    ]  # fmt: skip
    for here in _cuts(old.shape):
        split = list(_split(_split(axes, "here", here.width), "there", there.width))
        outer = _lines(split, here, there, begin=begin, to=destination.offset)
        if outer is not None:
            start, to = _line(begin, here), _line(destination.offset, there)
            return [
                LineMove(copy.names[0], length, LinePlace(start + k, here.lines, here.is_columns),
                     LinePlace(to + j, there.lines, there.is_columns))
                for k, j, length in _runs(outer, most)
            ]  # fmt: skip
    return []


def _split(axes: Iterable[_SharedAxis], side: str, width: int) -> Iterator[_SharedAxis]:
    """Axes that go on from one row to the next as two."""
    for one in axes:
        step = getattr(one, side)
        if 0 < step < width and one.length * step > width and width % step == 0 and one.length * step % width == 0:
            inner = width // step
            yield _SharedAxis(one.length // inner, one.here * inner, one.there * inner)
            yield one._replace(length=inner)
        else:
            yield one


def _lines(
    axes: Sequence[_SharedAxis], here: _LineCut, there: _LineCut, *, begin: int, to: int
) -> list[_SharedAxis] | None:  # fmt: skip
    """The axes from line to line, counted in lines; None where the others are not the whole line of both, in order."""
    outer, inner = list[_SharedAxis](), list[_SharedAxis]()
    for one in axes:
        k, j = (_steps(step, cut) for step, cut in ((one.here, here), (one.there, there)))
        if k is None or j is None or k[0] != j[0]:
            return None
        (outer if k[0] else inner).append(_SharedAxis(one.length, k[1], j[1]))
    at = 1
    for one in sorted(inner, key=lambda axis: axis.here):
        if one.here != at or one.there != at:
            return None
        at *= one.length
    if here.across != at or there.across != at or not here.begins(begin) or not there.begins(to):
        return None
    return outer


def _steps(step: int, cut: _LineCut) -> tuple[bool, int] | None:
    """(whether an axis goes from line to line, its step in lines or along the line)"""
    is_row = step % cut.width == 0
    along = step // cut.width if is_row else step
    return None if step <= 0 else (is_row != cut.is_columns, along)


def _line(offset: int, cut: _LineCut) -> int:
    return offset % cut.width if cut.is_columns else offset // cut.width


def _runs(outer: Sequence[_SharedAxis], most: int) -> Iterator[tuple[int, int, int]]:
    """(line of the first, line of the second, how many follow each other in both)"""
    run = 1
    rest = []
    for one in sorted(outer, key=lambda axis: axis.there):
        if one.here == one.there == run:
            run *= one.length
        else:
            rest.append(one)
    if prod(one.length for one in rest) > most:
        return
    for index in product(*(range(one.length) for one in rest)):
        yield (
            sum(k * one.here for k, one in zip(index, rest, strict=True)),
            sum(k * one.there for k, one in zip(index, rest, strict=True)),
            run,
        )
