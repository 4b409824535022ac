"""Where one element of a tensor is in others that hold the same parts, without making the map of all elements.

B[5, 7] of qkv_proj  ->  k[1, 7]  ->  A[1, 7] of k_proj
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from paramtool.grouping import grouped
from paramtool.model.view import contiguous_strides
from paramtool.parts.pieces import Digits, Piece, Stored


class _DigitStep(NamedTuple):
    """A digit of a part's index, as steps in a flat tensor."""

    step: int
    length: int
    part_axis: int
    weight: int
    """How much one of it counts in the index along that axis of the part."""


class ElementPlace(NamedTuple):
    """An element of a tensor, counted row by row."""

    name: str
    element: int


def origin(
    element: int, theirs: Stored, mine: Mapping[str, Sequence[tuple[str, Piece, tuple[int, ...]]]]
) -> ElementPlace | None:
    """Where an element of a tensor is among pieces {part: [(tensor, piece, shape of the tensor)]}; None if nowhere."""
    strides = contiguous_strides(theirs.shape)
    for piece in theirs.pieces:
        index = _index(element, piece, strides)
        if index is None:
            continue
        for name, held, shape in mine.get(piece.part, ()):
            there = _element(index, held, contiguous_strides(shape))
            if there is not None:
                return ElementPlace(name, there)
    return None


def held(tensors: Iterable[Stored]) -> dict[str, list[tuple[str, Piece, tuple[int, ...]]]]:
    """{part: [(tensor, piece, shape of the tensor)]}"""
    return grouped((piece.part, (one.name, piece, one.shape)) for one in tensors for piece in one.pieces)


def _index(element: int, piece: Piece, strides: Sequence[int]) -> list[int] | None:
    """The index in a part of an element of a tensor; None if the piece does not hold it."""
    rest = element - sum(k * stride for k, stride in zip(piece.at, strides, strict=True))
    if rest < 0:
        return None
    index = list(piece.start)
    for axis in sorted(_axes(piece.digits, strides), reverse=True):
        value, rest = divmod(rest, axis.step)
        if value >= axis.length:
            return None
        index[axis.part_axis] += value * axis.weight
    return None if rest else index


def _axes(digits: Sequence[Digits], strides: Sequence[int]) -> Iterable[_DigitStep]:
    for part_axis, own in enumerate(digits):
        weight = prod(digit.length for digit in own)
        for digit in own:
            weight //= digit.length
            if digit.length > 1:
                yield _DigitStep(digit.step * strides[digit.axis], digit.length, part_axis, weight)


def _element(index: Sequence[int], piece: Piece, strides: Sequence[int]) -> int | None:
    """The element of a tensor that is an index of a part; None if the piece does not hold it."""
    found = sum(k * stride for k, stride in zip(piece.at, strides, strict=True))
    for k, start, own in zip(index, piece.start, piece.digits, strict=True):
        rest, weight = k - start, prod(digit.length for digit in own)
        if not 0 <= rest < weight:
            return None
        for digit in own:
            weight //= digit.length
            value, rest = divmod(rest, weight)
            found += value * digit.step * strides[digit.axis]
    return found
