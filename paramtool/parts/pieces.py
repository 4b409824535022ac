"""Pieces: where the elements of a part are in a tensor, and the joining of two tensors that hold the same parts.

A *part* is a tensor in its plain form, such as `q_proj.weight` of shape [256, 512].  A fused tensor holds many parts; a
piece says where it holds one of them.  Each axis of the part is a number in mixed radix, and a digit of it is a step
along one axis of the fused tensor:

    q[(heads head_dim) in] in a tensor {heads: q[head_dim in] k[head_dim in] v[head_dim in]}, 4 heads of 64:
    axis 0 of q:  Digit(4, axis 0, step 192), Digit(64, axis 0, step 1)       q row 70 = head 1, row 6: 192 + 6
    axis 1 of q:  Digit(512, axis 1, step 1)

Two tensors that hold the same part are joined digit by digit: `joined` gives the pairs of views.  No function says how
to go back, and none knows attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from operator import add
from typing import NamedTuple

from paramtool.model.view import Shape, View

KEPT = 256
"""Answers for this number of kinds of pieces are remembered: a model has many tensors of few shapes."""


class Digit(NamedTuple):
    """A digit of an index along one axis of a part."""

    length: int
    axis: int
    """The axis of the tensor along which it counts."""
    step: int
    """How far one of it moves along that axis."""


Digits = tuple[Digit, ...]
"""From the slowest to the fastest; their lengths multiply to the length of what they count."""


class Piece(NamedTuple):
    """A box of a part, and where its elements are in a tensor."""

    part: str
    start: Shape
    """For each axis of the part, the first index of the box."""
    digits: tuple[Digits, ...]
    """For each axis of the part."""
    at: Shape
    """For each axis of the tensor, the index of the first element of the box."""

    @property
    def shape(self) -> Shape:
        """The lengths of the box."""
        return _lengths(self.digits)

    def view(self, tensor: View) -> View:
        """The view of the box's elements, an axis for each digit, given a view of the tensor."""
        offset = tensor.offset + sum(k * stride for k, stride in zip(self.at, tensor.strides, strict=True))
        flat = [digit for digits in self.digits for digit in digits]
        shape = tuple(digit.length for digit in flat)
        return tensor.with_axes(shape, tuple(d.step * tensor.strides[d.axis] for d in flat), offset)


class Stored:
    """One tensor, and the parts whose elements it holds."""

    __slots__ = ("_held", "name", "shape")

    def __init__(self, name: str, shape: Shape, pieces: tuple[Piece, ...] | str) -> None:
        """`pieces` is the name of a part for a tensor that is this part, in the part's own shape.

        A model can have 100,000 of these; the name takes a quarter of the memory.
        """
        self.name = name
        self.shape = shape
        self._held = pieces

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The boxes of the parts, and where they are."""
        held = self._held
        return (Piece(held, *_plain(self.shape)),) if isinstance(held, str) else held

    @property
    def boxes(self) -> Sequence[tuple[str, Shape, Shape]]:
        """(part, the first index of its box, the lengths of the box) of each piece."""
        held = self._held
        if isinstance(held, str):
            return ((held, (0,) * len(self.shape), self.shape),)
        return [(piece.part, piece.start, piece.shape) for piece in held]

    @property
    def parts(self) -> Sequence[str]:
        """The part of each piece."""
        held = self._held
        return (held,) if isinstance(held, str) else [piece.part for piece in held]

    def with_parts(self, called: Callable[[str], str]) -> Stored:
        """The same tensor with other names of its parts."""
        return self._replace(pieces=tuple(piece._replace(part=called(piece.part)) for piece in self.pieces))

    def _replace(self, *, pieces: tuple[Piece, ...]) -> Stored:
        """The same tensor with other pieces, as of a named tuple."""
        return Stored(self.name, self.shape, pieces)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stored) or self.name != other.name or self.shape != other.shape:
            return False
        return self._held == other._held or self.pieces == other.pieces

    def __lt__(self, other: Stored) -> bool:
        return (self.name, self.shape, self.pieces) < (other.name, other.shape, other.pieces)

    def __hash__(self) -> int:
        return hash((self.name, self.shape))

    def __repr__(self) -> str:
        return f"Stored({self.name!r}, {self.shape}, {self._held!r})"


def whole(name: str, shape: Sequence[int], part: str = "") -> Stored:
    """A tensor that is one part, in the part's own shape.

    >>> whole("w", (2, 3)).pieces[0].digits
    ((Digit(length=2, axis=0, step=1),), (Digit(length=3, axis=1, step=1),))
    """
    return Stored(name, tuple(shape), part or name)


@lru_cache(maxsize=KEPT)
def _plain(shape: Shape) -> tuple[Shape, tuple[Digits, ...], Shape]:
    """The start, the digits and the place of a part that is a whole tensor."""
    zeros = (0,) * len(shape)
    return zeros, tuple((Digit(length, axis, 1),) for axis, length in enumerate(shape)), zeros


def part_shapes(tensors: Iterable[Stored]) -> dict[str, Shape]:
    """{part: its shape}, as far as the pieces of tensors reach."""
    found: dict[str, Shape] = {}
    for tensor in tensors:
        for part, start, shape in tensor.boxes:
            ends = tuple(map(add, start, shape))
            known = found.setdefault(part, ends)
            if known is not ends:
                found[part] = tuple(map(max, known, ends))
    return found


class Pair(NamedTuple):
    """The same elements in two tensors, as pieces of one shape with the same digits."""

    mine: Piece
    other: Piece


def joined(mine: Iterable[Piece], other: Iterable[Piece]) -> Iterator[Pair]:
    """The pairs of all elements that pieces of one part have in common, in the order of `mine`."""
    others = list(other)
    for a in mine:
        for b in others:
            # What two pieces of a part have in common.
            axes = _axes_in_common(a.start, a.digits, b.start, b.digits)
            for chosen in product(*axes):
                starts, mine, mine_at, other_digits, other_at = zip(*chosen, strict=True) if chosen else ((),) * 5
                yield Pair(
                    Piece(a.part, starts, mine, _moved(a.at, mine_at)),
                    Piece(b.part, starts, other_digits, _moved(b.at, other_at)),
                )


@lru_cache(maxsize=KEPT)
def _axes_in_common(
    a_start: Shape, a: tuple[Digits, ...], b_start: Shape, b: tuple[Digits, ...]
) -> tuple[tuple[_Shared, ...], ...]:
    """For each axis of a part, the runs of indexes that two pieces have in common."""
    return tuple(tuple(_along(*axis)) for axis in zip(a_start, a, b_start, b, strict=True))


class _Shared(NamedTuple):
    """A run of indexes along one axis of a part, as both sides count it."""

    start: int
    mine: Digits
    mine_at: Mapping[int, int]
    """{axis of the tensor: how far the run begins along it}"""
    other: Digits
    other_at: Mapping[int, int]


def _along(a_start: int, a: Digits, b_start: int, b: Digits) -> Iterator[_Shared]:
    """The runs of indexes that both sides have along one axis, with the same digits on both."""
    if a_start == b_start and [digit.length for digit in a] == [digit.length for digit in b]:
        yield _Shared(a_start, a, {}, b, {})
        return
    low, high = max(a_start, b_start), min(a_start + _length(a), b_start + _length(b))
    for mine_start, mine, mine_at in _cut(a, low - a_start, high - a_start):
        start = a_start + mine_start
        for other_start, other, other_at in _cut(b, start - b_start, start + _length(mine) - b_start):
            found = _same_run(start, mine, b_start + other_start, other)
            for one in found:
                yield one._replace(mine_at=_sum(mine_at, one.mine_at), other_at=_sum(other_at, one.other_at))


def _same_run(start: int, mine: Digits, other_start: int, other: Digits) -> Iterator[_Shared]:
    """What a run has in common with another inside it."""
    if _length(other) < _length(mine):
        yield from _along(start, mine, other_start, other)
    elif both := _refined(mine, other):
        yield _Shared(start, both[0], {}, both[1], {})
    else:  # radixes without a common refinement, as of 6 heads in 2 chunks and in 3 groups: one value after the other
        first, inner = mine[0], _length(mine[1:])
        for k in range(first.length):
            for one in _along(start + k * inner, mine[1:], other_start, other):
                yield one._replace(mine_at=_plus(one.mine_at, first.axis, k * first.step))


@lru_cache(maxsize=KEPT)
def _lengths(digits: tuple[Digits, ...]) -> Shape:
    """How many values each of several numbers has."""
    return tuple(_length(one) for one in digits)


def _length(digits: Digits) -> int:
    """How many values a number with these digits has."""
    return prod(digit.length for digit in digits)


def _cut(digits: Digits, low: int, high: int) -> Iterator[tuple[int, Digits, dict[int, int]]]:
    """The indexes from `low` to `high` as runs: (first index, digits, place of the first in the tensor)."""
    if low >= high:
        return
    if not digits:
        yield 0, (), {}
        return
    first, rest = digits[0], digits[1:]
    inner = _length(rest)
    head, tail = -(-low // inner), high // inner
    if head > tail:  # inside one value of the slowest digit
        yield from _cut_shifted(rest, first, tail, low=low - tail * inner, high=high - tail * inner)
        return
    if low < head * inner:
        yield from _cut_shifted(rest, first, head - 1, low=low - (head - 1) * inner, high=inner)
    if head < tail:
        yield head * inner, (first._replace(length=tail - head), *rest), {first.axis: head * first.step}
    if tail * inner < high:
        yield from _cut_shifted(rest, first, tail, low=0, high=high - tail * inner)


def _cut_shifted(
    rest: Digits, first: Digit, value: int, *, low: int, high: int
) -> Iterator[tuple[int, Digits, dict[int, int]]]:
    inner = _length(rest)
    for start, found, at in _cut(rest, low, high):
        yield value * inner + start, found, _plus(at, first.axis, value * first.step)


def _refined(a: Digits, b: Digits) -> tuple[Digits, Digits] | None:
    """Both with the same lengths, each digit split where the other side has more; None if no split fits both."""
    mine, other = [digit for digit in a if digit.length != 1], [digit for digit in b if digit.length != 1]
    left: list[Digit] = []
    right: list[Digit] = []
    while mine and other:
        x, y = mine.pop(), other.pop()
        if x.length % (length := min(x.length, y.length)) or y.length % length:
            return None
        left.append(x._replace(length=length))
        right.append(y._replace(length=length))
        if x.length > length:
            mine.append(Digit(x.length // length, x.axis, x.step * length))
        if y.length > length:
            other.append(Digit(y.length // length, y.axis, y.step * length))
    if mine or other:
        return None
    if not left:  # a single index
        return (Digit(1, 0, 0),), (Digit(1, 0, 0),)
    return tuple(reversed(left)), tuple(reversed(right))


def further(at: Shape, axis: int, distance: int) -> Shape:
    """A place that is further along one axis."""
    return (*at[:axis], at[axis] + distance, *at[axis + 1 :])


def _plus(at: Mapping[int, int], axis: int, distance: int) -> dict[int, int]:
    return {**at, axis: at.get(axis, 0) + distance}


def _sum(a: Mapping[int, int], b: Mapping[int, int]) -> dict[int, int]:
    return {axis: a.get(axis, 0) + b.get(axis, 0) for axis in a.keys() | b.keys()}


def _moved(at: Shape, by: Iterable[Mapping[int, int]]) -> Shape:
    found = list(at)
    for distances in by:
        for axis, distance in distances.items():
            found[axis] += distance
    return tuple(found)
