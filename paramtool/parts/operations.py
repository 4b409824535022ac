"""Operations on tensors that hold parts: joined, stacked, cut, and their axes exchanged, split or joined.

No value is read: an operation says where the elements are afterwards.  What transformers 5 does to tensors when it
loads them is chains of these, and only this direction is written down.

Facts of transformers 5.24.0, core_model_loading.py: Chunk line 116, Split 154, Concatenate 187, Interleave 232,
MergeModulelist 259, Transpose 349, Conv3dToLinear 399, PermuteForRope 465, ErnieFuseAndSplitTextVisionExperts 645,
Inkling2LoopDequantizeExperts 772, Inkling2LoopMergeMessageQueries 823, Inkling2UnpadVocab 857.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod

from paramtool.errors import plural
from paramtool.model.view import Shape
from paramtool.parts.pieces import Digit, Digits, Piece, Stored, further


class Misfit(Exception):
    """Tensors that an operation cannot take; the text says what does not fit."""


Index = tuple[int, ...]


def _mapped(tensor: Stored, shape: Shape, apart: Callable[[Digit], Digits], at: Callable[[Index], Index]) -> Stored:
    """A tensor of another shape: what becomes of each digit, and of the places of its pieces."""
    numbers = {piece.digits: None for piece in tensor.pieces}
    moved = {one: tuple(tuple(d for digit in number for d in apart(digit)) for number in one) for one in numbers}
    pieces = tuple(Piece(part, start, moved[digits], at(place)) for part, start, digits, place in tensor.pieces)
    return Stored(tensor.name, shape, pieces)


def side_by_side(tensors: Sequence[Stored], axis: int) -> Stored:
    """Tensors one after the other along an axis; Misfit where the other axes differ."""
    first = tensors[0].shape
    if axis >= len(first):
        raise Misfit(f"shape {list(first)} has no axis {axis}")
    pieces: list[Piece] = []
    length = 0
    for tensor in tensors:
        same = len(tensor.shape) == len(first) and all(
            a == b for k, (a, b) in enumerate(zip(tensor.shape, first, strict=True)) if k != axis
        )
        if not same:
            raise Misfit(f"shapes {list(first)} and {list(tensor.shape)} differ beside axis {axis}")
        pieces += (one._replace(at=further(one.at, axis, length)) if length else one for one in tensor.pieces)
        length += tensor.shape[axis]
    return Stored("", (*first[:axis], length, *first[axis + 1 :]), tuple(pieces))


def stacked(tensors: Sequence[Stored], axis: int) -> Stored:
    """Tensors of one shape along a new axis; Misfit where the shapes differ."""
    shape = tensors[0].shape
    pieces: list[Piece] = []
    for k, tensor in enumerate(tensors):
        if tensor.shape != shape:
            raise Misfit(f"number {k} has shape {list(tensor.shape)}, number 0 has {list(shape)}")
        for part, start, digits, at in tensor.pieces:
            pieces.append(Piece(part, start, _above(digits, axis), (*at[:axis], k, *at[axis:])))
    return Stored("", (*shape[:axis], len(tensors), *shape[axis:]), tuple(pieces))


@lru_cache(maxsize=1024)
def _above(digits: tuple[Digits, ...], axis: int) -> tuple[Digits, ...]:
    """Digits in a tensor with a new axis."""
    return tuple(tuple(one._replace(axis=one.axis + (one.axis >= axis)) for one in number) for number in digits)


def swapped(tensor: Stored, a: int, b: int) -> Stored:
    """Two axes exchanged."""
    order = list(range(len(tensor.shape)))
    if max(a, b) >= len(order):
        raise Misfit(f"shape {list(tensor.shape)} has no axis {max(a, b)}")
    order[a], order[b] = order[b], order[a]

    def moved(values: Index) -> Index:
        return tuple(values[k] for k in order)

    return _mapped(tensor, moved(tensor.shape), lambda one: (one._replace(axis=order[one.axis]),), moved)


def with_one_axis(tensor: Stored, outer: int, inner: int) -> Stored:
    """A tensor whose axes `outer` and `inner`, which counts faster, are one, at the place of the later.

    >>> from paramtool.parts.pieces import whole
    >>> with_one_axis(whole("w", (2, 3, 5)), 2, 0).shape
    (3, 10)
    """
    gone, kept = sorted((outer, inner))
    width = tensor.shape[inner]
    axes = [k - (k > gone) for k in range(len(tensor.shape))]
    axes[gone] = kept - 1

    def moved(values: Index, both: int) -> Index:
        return tuple(both if k == kept else value for k, value in enumerate(values) if k != gone)

    return _mapped(
        tensor,
        moved(tensor.shape, tensor.shape[outer] * width),
        lambda one: (Digit(one.length, axes[one.axis], one.step * width if one.axis == outer else one.step),),
        lambda at: moved(at, at[outer] * width + at[inner]),
    )


def flattened(tensor: Stored) -> Stored:
    """Kernels [out, in, depth, height, width] as rows [out, in * depth * height * width]."""
    rank = len(tensor.shape)
    if rank not in (2, 5):
        raise Misfit(f"shape {list(tensor.shape)} has {plural(rank, 'axis', 'axes')}, expected 5 or 2")
    for inner in range(rank - 1, 1, -1):
        tensor = with_one_axis(tensor, inner - 1, inner)
    return tensor


def shuffled(tensor: Stored, axis: int, lengths: Sequence[int], order: Sequence[int]) -> Stored:
    """An axis read as digits of these lengths, the slowest first, and its digits in another order.

    Misfit where the lengths do not make up the axis.
    """
    if axis >= len(tensor.shape) or prod(lengths) != tensor.shape[axis]:
        raise Misfit(f"shape {list(tensor.shape)} has no axis {axis} of {' x '.join(map(str, lengths))}")
    old = [prod(lengths[k + 1 :]) for k in range(len(lengths))]
    moved = [lengths[k] for k in order]
    new = {order[k]: prod(moved[k + 1 :]) for k in range(len(order))}
    ways = [(lengths[k], old[k], new[k]) for k in reversed(range(len(lengths)))]
    if any(piece.at[axis] for piece in tensor.pieces):
        raise NotImplementedError("a shuffle of joined tensors")
    return _mapped(tensor, tensor.shape, lambda one: _refined(one, ways) if one.axis == axis else (one,), lambda at: at)


def _refined(digit: Digit, ways: Sequence[tuple[int, int, int]]) -> Digits:
    """A digit along an axis as digits of its own digits (length, step, new step), given from the fastest."""
    length, step = digit.length, digit.step
    found: list[Digit] = []
    for total, weight, to in ways:
        if not weight <= step < weight * total:
            continue
        many = min(length, weight * total // step)
        if step % weight or length % many:
            raise NotImplementedError("a shuffle of parts of digits")
        found.append(Digit(many, digit.axis, step // weight * to))
        length, step = length // many, step * many
    return tuple(reversed(found))


def unflattened(tensor: Stored, axis: int, length: int) -> Stored:
    """An axis of a tensor of the file as two, of which the second has this length; Misfit where it does not divide."""
    if axis >= len(tensor.shape) or tensor.shape[axis] % length:
        raise Misfit(f"has shape {list(tensor.shape)}, without groups of {length} along axis {axis}")
    count = tensor.shape[axis] // length

    def apart(digit: Digit) -> Digits:
        if digit.axis != axis:
            return (digit._replace(axis=digit.axis + (digit.axis > axis)),)
        if (digit.length, digit.step) != (count * length, 1):
            raise NotImplementedError("groups of moved rows")
        return Digit(count, axis, 1), Digit(length, axis + 1, 1)

    shape = (*tensor.shape[:axis], count, length, *tensor.shape[axis + 1 :])
    return _mapped(tensor, shape, apart, lambda at: (*at[: axis + 1], 0, *at[axis + 1 :]))


def window(tensor: Stored, axis: int, first: int, length: int) -> Stored:
    """The indexes from `first` on along an axis."""
    pieces = [one for piece in tensor.pieces for one in _cut(piece, axis, first, first + length)]
    return Stored("", (*tensor.shape[:axis], length, *tensor.shape[axis + 1 :]), tuple(pieces))


def _cut(piece: Piece, axis: int, low: int, high: int) -> Iterator[Piece]:
    """What of a piece is between two indexes of an axis, counted from the lower one."""
    base = piece.at[axis]
    along = [
        (one, of, k)
        for of, number in enumerate(piece.digits)
        for k, one in enumerate(number)
        if one.axis == axis and one.length > 1
    ]
    along.sort(key=lambda found: -found[0].step)
    last = base + sum((one.length - 1) * one.step for one, _, _ in along)
    if last < low or base >= high:
        return
    if low <= base and last < high:
        yield piece._replace(at=further(piece.at, axis, -low))
        return
    (digit, of, k), inner = along[0], sum((one.length - 1) * one.step for one, _, _ in along[1:])
    begin = max(0, -((base + inner - low) // digit.step))
    end = min(digit.length, (high - 1 - base) // digit.step + 1)
    whole = (max(0, -((base - low) // digit.step)), min(digit.length, (high - 1 - base - inner) // digit.step + 1))
    runs = [(value, 1) for value in range(begin, end) if not whole[0] <= value < whole[1]]
    for value, length in (*runs, *([(whole[0], whole[1] - whole[0])] if whole[0] < whole[1] else [])):
        for one in _restricted(piece, of, k, value, length=length):
            yield from _cut(one, axis, low, high)


def _restricted(piece: Piece, of: int, k: int, first: int, *, length: int) -> Iterator[Piece]:
    """A piece with fewer values of digit `k` of one axis of its part: a box for each value of the slower digits."""
    number = piece.digits[of]
    slower, digit, inner = number[:k], number[k], prod(one.length for one in number[k + 1 :])
    digits = (*piece.digits[:of], (digit._replace(length=length), *number[k + 1 :]), *piece.digits[of + 1 :])
    for values in product(*(range(one.length) for one in slower)):
        at, index = further(piece.at, digit.axis, first * digit.step), 0
        for one, value in zip(slower, values, strict=True):
            at, index = further(at, one.axis, value * one.step), index * one.length + value
        yield Piece(piece.part, further(piece.start, of, (index * digit.length + first) * inner), digits, at)


def stored(name: str, tensor: Stored) -> Stored:
    """A tensor under its name, without digits that say nothing."""
    pieces = (piece._replace(digits=_telling(piece.digits)) for piece in tensor.pieces)
    return Stored(name, tensor.shape, tuple(pieces))


@lru_cache(maxsize=1024)
def _telling(digits: tuple[Digits, ...]) -> tuple[Digits, ...]:
    def of(number: Digits) -> Digits:
        return number if len(number) == 1 else tuple(one for one in number if one.length > 1) or (Digit(1, 0, 1),)

    return tuple(map(of, digits))
