"""Blocks: pieces of a tensor that has one element for a block of another's elements, as scales and packed codes have.

    weight  [256, 512], tiles of 128 x 128      weight_scale_inv  [2, 4]
    q: rows 0-127 of it, k: rows 128-255        q: row 0, k: row 1         each moved run is whole tiles
    q: rows 0, 2, 4, ...                        no such place: a tile would hold rows of q and of k

A block goes wherever its elements go together.  Where a move cuts a block there is no place for its element, which is a
LayoutError that names the tensor and the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

from paramtool.errors import LayoutError
from paramtool.model.view import Shape
from paramtool.parts.pieces import Digit, Digits, Piece, Stored, part_shapes, whole

OUT, IN, FLAT, WHOLE = "out", "in", "flat", "whole"


class Axis(NamedTuple):
    """An axis of a tensor that belongs to a weight."""

    role: str
    """`out` or `in`: along that axis of the weight; `flat`: along all of its elements, row by row; `whole`: an axis of
    its own, the same for every block."""
    block: int = 1
    """Elements of the weight that share an element here, or that are packed together."""
    per: int = 1
    """Elements here for a block; the length of an axis that the weight lacks."""

    def length(self, elements: int) -> int:
        """Its length for this number of elements of the weight.

        >>> Axis("in", 128).length(300), Axis("in", 32, 3).length(64), Axis("whole", 1, 16).length(0)
        (3, 6, 16)
        """
        return self.per if self.role == WHOLE else -(-elements // self.block) * self.per


class Cut(Exception):
    """A move that cuts a block."""

    def __init__(self, run: int) -> None:
        """`run` is how many elements move together."""
        super().__init__(run)
        self.run = run


class Along(NamedTuple):
    """Where a run of a part's axis is along an axis of a tensor."""

    start: int
    digits: Digits
    at: int


def quotient(along: Along, axis: Axis, lengths: tuple[int, int], to: int) -> Along:
    """The blocks of a run: their numbers in the part, and where they are along axis `to` of the new tensor.

    `lengths` are those of the whole axis in the part and in the tensor: both may end in a part of a block.  Raises Cut.

    >>> quotient(Along(0, (Digit(2, 0, 512), Digit(256, 0, 1)), 256), Axis("out", 128), (512, 1024), 0)
    Along(start=0, digits=(Digit(length=2, axis=0, step=4), Digit(length=2, axis=0, step=1)), at=2)
    """
    block, per = axis.block, axis.per
    digits = merged(along.digits)
    *slower, fastest = digits or (Digit(1, to, 1),)
    ends = not slower and along.start + fastest.length == lengths[0] and along.at + fastest.length == lengths[1]
    if not (fastest.step == 1 or block == 1) or (fastest.length % block and not ends):
        raise Cut(fastest.length if fastest.step == 1 else 1)
    if along.start % block or along.at % block or any(digit.step % block for digit in slower):
        # How many elements at most move together from places where blocks begin
        raise Cut(gcd(along.start, along.at, fastest.length, *(digit.step for digit in slower)))
    found = [Digit(digit.length, to, digit.step // block * per) for digit in slower]
    if block == 1 and per == 1:
        found.append(Digit(fastest.length, to, fastest.step))
    elif fastest.step == 1:
        found.append(Digit(-(-fastest.length // block) * per, to, 1))
    else:
        found += [Digit(fastest.length, to, fastest.step * per), Digit(per, to, 1)]
    return Along(along.start // block * per, tuple(found), along.at // block * per)


def merged(digits: Digits) -> Digits:
    """The same with neighbours that are one run as one digit, and none of length 1.

    >>> merged((Digit(4, 0, 64), Digit(64, 0, 1)))
    (Digit(length=256, axis=0, step=1),)
    """
    found: list[Digit] = []
    for digit in digits:
        if digit.length == 1:
            continue
        if found and found[-1].axis == digit.axis and found[-1].step == digit.step * digit.length:
            found[-1] = Digit(found[-1].length * digit.length, digit.axis, digit.step)
        else:
            found.append(digit)
    return tuple(found)


class Roles(NamedTuple):
    """Which axes of a fused weight are those of its parts."""

    out: int
    inside: int
    rest: tuple[int, ...]
    """Axes that are neither, such as the number of an expert."""


def roles(weight: Stored) -> Roles:
    """The axes of a fused weight that outputs and inputs of its parts run along; LayoutError if they share one."""
    found: list[set[int]] = [set(), set()]
    for piece in weight.pieces:
        for k in (0, 1):
            found[k] |= {digit.axis for digit in piece.digits[k - 2] if digit.length > 1}
    free = [axis for axis in range(len(weight.shape)) if axis not in found[0] | found[1]]
    for k in (1, 0):
        if not found[k] and free:
            found[k].add(free.pop())
    if any(len(one) != 1 for one in found) or found[0] == found[1]:
        raise LayoutError(
            f"{weight.name!r}: outputs and inputs of its parts share an axis, so that nothing can follow it"
        )
    (out,), (inside,) = found
    return Roles(out, inside, tuple(k for k in range(len(weight.shape)) if k not in (out, inside)))


def flattened(weight: Stored) -> Stored:
    """A weight as one run of elements, row by row; LayoutError if rows are cut or turned.

    >>> flattened(whole("w", (2, 3))).pieces[0].digits
    ((Digit(length=2, axis=0, step=3), Digit(length=3, axis=0, step=1)),)
    """
    shapes = part_shapes([weight])
    pieces = []
    for piece in weight.pieces:
        shape, width = shapes[piece.part], weight.shape[-1]
        inner = piece.digits[-1]
        is_row = merged(inner) in ((Digit(width, len(weight.shape) - 1, 1),), ()) and shape[-1] == width
        if len(weight.shape) != 2 or len(shape) != 2 or not is_row or any(d.axis for d in piece.digits[0]):
            raise LayoutError(f"{weight.name!r}: {piece.part!r} is not whole rows of it, and its codes are stored flat")
        digits = (*(Digit(d.length, 0, d.step * width) for d in piece.digits[0]), Digit(width, 0, 1))
        pieces.append(Piece(piece.part, (piece.start[0] * width,), (digits,), (piece.at[0] * width,)))
    return Stored(weight.name, (prod(weight.shape),), tuple(pieces))


class Image(NamedTuple):
    """A tensor that follows a weight: of the fused weight, and of each part."""

    fused: Stored
    parts: tuple[Stored, ...]
    """Parts whose tensors have the same place in the fused one are one part of it: they must be equal."""


def image(weight: Stored, axes: Sequence[Axis], fused: str, names: dict[str, str]) -> Image:
    """What follows a weight, for the axes of the tensor that follows.

    `fused` is its name, and `names` are {part of the weight: what follows it}.  LayoutError names the tensor and the
    block that would be cut.
    """
    weight = flattened(weight) if any(axis.role == FLAT for axis in axes) else weight
    where = Roles(0, 0, ()) if len(weight.shape) == 1 else roles(weight)
    shapes = part_shapes([weight])
    elements = {OUT: weight.shape[where.out], IN: weight.shape[where.inside], FLAT: weight.shape[0], WHOLE: 0}
    shape = (*(weight.shape[k] for k in where.rest), *(axis.length(elements[axis.role]) for axis in axes))
    boxes: dict[str, dict[Piece, None]] = {}
    for piece in weight.pieces:
        try:
            # The blocks of a box; its part is not named
            part = shapes[piece.part]
            moved = {axis: k for k, axis in enumerate(where.rest)}
            lead = len(part) - 2 if len(part) > 1 else 0
            start = list(piece.start[:lead])
            digits = [tuple(d._replace(axis=moved.get(d.axis, 0)) for d in piece.digits[k]) for k in range(lead)]
            if any(d.length > 1 and d.axis not in moved for k in range(lead) for d in piece.digits[k]):
                raise LayoutError(
                    f"{piece.part!r}: its experts are along the axis of its rows, so that nothing can follow it"
                )
            at = [piece.at[axis] for axis in where.rest]
            for k, axis in enumerate(axes, len(where.rest)):
                if axis.role == WHOLE:
                    found = Along(0, (Digit(axis.per, k, 1),), 0)
                else:
                    mine, its = (-2, where.out) if axis.role == OUT else (-1, where.inside)
                    along = Along(piece.start[mine], piece.digits[mine], piece.at[its])
                    found = quotient(along, axis, (part[mine], weight.shape[its]), k)
                start.append(found.start)
                digits.append(found.digits)
                at.append(found.at)
            made = Piece("", tuple(start), tuple(digits), tuple(at))
        except Cut as cut:
            raise LayoutError(
                f"{fused!r} cannot follow its weight: {names[piece.part]!r} has blocks of "
                f"{' x '.join(str(axis.block) for axis in axes if axis.role != WHOLE)}, and its elements move in runs "
                f"of {cut.run}",
                hint="quantise again in the new layout; nothing was written",
            ) from None
        boxes.setdefault(piece.part, {})[made] = None
    # Parts that have one place are one part
    same: dict[tuple[Piece, ...], str] = {}
    hub = {part: same.setdefault(tuple(made), names[part]) for part, made in boxes.items()}
    pieces = tuple(piece._replace(part=name) for made, name in same.items() for piece in made)
    if sum(prod(piece.shape) for piece in pieces) != prod(shape):
        raise LayoutError(
            f"{fused!r} cannot follow its weight: several of {', '.join(repr(one) for one in names.values())} would "
            "have to be in one place",
            hint="quantise again in the new layout; nothing was written",
        )
    parts = tuple(whole(names[part], _part_shape(axes, shapes[part]), hub[part]) for part in boxes)
    return Image(Stored(fused, shape, pieces), parts)


def _part_shape(axes: Sequence[Axis], shape: Shape) -> Shape:
    lead = shape[:-2] if len(shape) > 1 else ()
    last = {OUT: -2, IN: -1, FLAT: -1}
    return (*lead, *tuple(axis.length(shape[last[axis.role]] if axis.role != WHOLE else 0) for axis in axes))
