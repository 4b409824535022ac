"""Tensors as arrays of numbers, moved from one set of tensors to another as pieces say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous
from paramtool.parts.pieces import Digits, Piece, Stored, joined

Arrays = Mapping[str, np.ndarray]
NOTHING = -1
"""What an array holds where no piece put anything."""


def numbered(tensors: Iterable[Stored]) -> dict[str, np.ndarray]:
    """Arrays of which every element has a number of its own."""
    found, first = {}, 0
    for one in tensors:
        count = prod(one.shape)
        found[one.name] = np.arange(first, first + count).reshape(one.shape)
        first += count
    return found


def strided(array: np.ndarray, view: View) -> np.ndarray:
    """What a view of a whole row-major tensor shows of an array with its elements."""
    flat = array.reshape(-1)
    return as_strided(flat[view.offset :], view.shape, [flat.itemsize * step for step in view.strides])


def whole_view(tensor: Stored) -> View:
    return contiguous(tensor.name, DTYPES["int64"], tensor.shape)


def moved(source: Sequence[Stored], arrays: Arrays, made: Iterable[Stored]) -> dict[str, np.ndarray]:
    """The arrays of other tensors with the same parts; each element is written at most once from each source."""
    found = {}
    for one in made:
        array = np.full(one.shape, NOTHING)
        for piece in one.pieces:
            for other in source:
                same = [held for held in other.pieces if held.part == piece.part]
                for pair in joined([piece], same):
                    target = strided(array, pair.mine.view(whole_view(one)))
                    target[...] = strided(arrays[other.name], pair.other.view(whole_view(other)))
        found[one.name] = array
    return found


def value(digits: Digits, index: int) -> dict[int, int]:
    """How far a number in mixed radix moves along each axis: the meaning of digits, one division after the other."""
    found: dict[int, int] = {}
    for digit in reversed(digits):
        index, k = divmod(index, digit.length)
        found[digit.axis] = found.get(digit.axis, 0) + k * digit.step
    return found


def elements(piece: Piece) -> dict[tuple[int, ...], tuple[int, ...]]:
    """{index of an element of the part: its index in the tensor}, one by one."""
    found = {}
    for inner in np.ndindex(piece.shape):
        at = list(piece.at)
        for digits, k in zip(piece.digits, inner, strict=True):
            for axis, distance in value(digits, k).items():
                at[axis] += distance
        found[tuple(a + b for a, b in zip(piece.start, inner, strict=True))] = tuple(at)
    return found
