"""The copies that make a new tensor of parts, and the views that old tensors are of new ones.

Source and target hold the same parts.  Joined piece by piece (`parts.pieces`), they are pairs of views; where a run of
the target is long, it becomes a separate copy, so that the engine writes run after run and assembles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from operator import mul
from typing import NamedTuple

from paramtool.errors import LayoutError, plural
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.plan import Copy, Requirement, Target
from paramtool.model.view import Shape, View, Views, contiguous, reshaped
from paramtool.parts.companions import why_one
from paramtool.parts.pieces import KEPT, Digits, Piece, Stored, joined
from paramtool.passes.coalesce import coalesced

RUN_NBYTES = 4096
"""Runs of a target of at least this number of bytes are separate copies."""
MAX_RUNS = 1 << 16
"""A target of more runs than this is assembled in memory, band by band."""


class HeldPiece(NamedTuple):
    """A piece of a part in a tensor of the source."""

    name: str
    piece: Piece
    view: View
    """The whole tensor."""


@frozen
class Sources:
    """Where the parts are in the source."""

    where: str
    """The file, for messages."""
    by_part: Mapping[str, Sequence[HeldPiece]]
    """{part: the pieces that hold its elements; where several hold the same, the first is read}"""
    repeated: tuple[tuple[HeldPiece, HeldPiece], ...]
    """Pieces that hold the same elements as another before them, and must be equal to it."""


def sources(where: str, tensors: Sequence[Stored], views: Views) -> Sources:
    """The parts that tensors of a source hold; LayoutError if a part is held in two ways that do not agree."""
    by_part: dict[str, list[HeldPiece]] = {}
    repeated = []
    first: dict[tuple[str, Shape, Shape], HeldPiece] = {}
    for tensor in tensors:
        for piece in tensor.pieces:
            held = HeldPiece(tensor.name, piece, views[tensor.name])
            known = first.setdefault((piece.part, piece.start, piece.shape), held)
            if known is not held:
                repeated.append((known, held))
                continue
            by_part.setdefault(piece.part, []).append(held)
    return Sources(where, by_part, tuple(repeated))


def requirements(found: Sources) -> Iterator[Requirement]:
    """That what is stored several times is equal."""
    for first, other in found.repeated:
        before = first.name if first.name != other.name else first.piece.part
        for pair in joined([first.piece], [other.piece]):
            yield Requirement(
                pair.mine.view(first.view),
                ((1, pair.other.view(other.view)),),
                0.0,
                f"{found.where}: {other.name!r} repeats elements of {before!r} with other values; "
                "expected equal copies, of which one is kept",
                why_one(other.name),
            )


def target(stored: Stored, found: Sources, *, in_runs: bool = True) -> Target:
    """A new tensor; LayoutError names parts that are lacking, or of another type.

    Without `in_runs` long runs are no copies of their own: a map that is only looked at is made sooner.
    """
    copies: list[Copy] = []
    dtypes: dict[str, str] = {}
    whole = None
    for piece in stored.pieces:
        held = found.by_part.get(piece.part, ())
        for one in held:
            dtypes.setdefault(one.view.dtype.name, one.name)
            whole = whole or contiguous(stored.name, one.view.dtype, stored.shape)
        if whole is None or not held:
            raise LayoutError(f"{found.where}: {stored.name!r} cannot be made: the file has no {piece.part!r}")
        if other := next((one for one in held if len(one.piece.start) != len(piece.start)), None):
            raise LayoutError(
                f"{found.where}: {stored.name!r} cannot be made: {other.name!r} has {piece.part!r} with "
                f"{plural(len(other.piece.start), 'axis', 'axes')}; expected {len(piece.start)}"
            )
        if len(dtypes) == 1:
            copies += _copies(whole, piece, held)
    if len(dtypes) > 1:
        said = ", ".join(f"{name!r} is {word}" for word, name in dtypes.items())
        raise LayoutError(
            f"{found.where}: {stored.name!r} would be made of tensors of several types: {said}; expected one",
            hint="convert --dtype gives them one type first",
        )
    assert whole is not None
    made = coalesced(_in_order(copies))
    if sum(copy.destination.numel for copy in made) != prod(stored.shape):
        raise LayoutError(f"{found.where}: {stored.name!r} cannot be made: the file lacks elements of its parts")
    return Target(stored.name, whole.dtype, stored.shape, tuple(_in_runs(made) if in_runs else made))


def _copies(whole: View, piece: Piece, held: Iterable[HeldPiece]) -> Iterator[Copy]:
    """The copies that fill a piece of a tensor, each from one piece of another."""
    for one in held:
        view, names = one.view, (one.name,)
        begin = whole.offset + _steps(piece, whole.strides)
        there = view.offset + _steps(one.piece, view.strides)
        places = (piece.start, piece.digits, one.piece.start, one.piece.digits)
        for here_from, there_from, shape, steps_here, steps_there in _in_common(places, whole.strides, view.strides):
            yield Copy(
                whole.with_axes(shape, steps_here, begin + here_from),
                ((1, view.with_axes(shape, steps_there, there + there_from)),),
                names=names,
            )


def _steps(piece: Piece, strides: Sequence[int]) -> int:
    """How many elements behind the first one of a tensor with these strides a piece of it begins."""
    steps: Iterable[int] = map(mul, piece.at, strides)
    return sum(steps)


_Places = tuple[Shape, tuple[Digits, ...], Shape, tuple[Digits, ...]]
"""(start, digits) of one piece and of another"""
_Common = tuple[int, int, Shape, Shape, Shape]
"""The same elements in two tensors: where they begin behind two pieces, their shape, and their steps in both; the
slowest axis of the first leads."""


@lru_cache(maxsize=KEPT)
def _in_common(places: _Places, steps: Shape, others: Shape) -> tuple[_Common, ...]:
    """What two pieces have in common, wherever they are in tensors with these strides."""
    start, digits, other_start, other_digits = places
    pieces = Piece("", start, digits, (0,) * len(steps)), Piece("", other_start, other_digits, (0,) * len(others))
    common = []
    for pair in joined(pieces[:1], pieces[1:]):
        axes = [
            (mine.length, mine.step * steps[mine.axis], other.step * others[other.axis])
            for a, b in zip(pair.mine.digits, pair.other.digits, strict=True)
            for mine, other in zip(a, b, strict=True)
            if mine.length > 1
        ]
        axes.sort(key=lambda axis: (-axis[1], -axis[2]))
        found: list[tuple[int, int, int]] = []
        for length, here, there in axes:
            if found and found[-1][1:] == (length * here, length * there):  # continues the axis before it
                length *= found.pop()[0]
            found.append((length, here, there))
        shape, steps_here, steps_there = zip(*found, strict=True) if found else ((), (), ())
        common.append((_steps(pair.mine, steps), _steps(pair.other, others), shape, steps_here, steps_there))
    return tuple(common)


def _in_runs(copies: Sequence[Copy]) -> Sequence[Copy]:
    """The same copies, those with long runs as one copy for each run, in the order of the target."""
    pairs = [(copy, copy.destination, _cut(copy.destination)) for copy in copies]
    runs = sum(prod(view.shape[:cut]) for _, view, cut in pairs if cut)
    shortest = min((view.dtype.nbytes(prod(view.shape[cut:])) for _, view, cut in pairs), default=0)
    if runs and runs <= MAX_RUNS and shortest >= RUN_NBYTES:
        return _in_order(one for copy, _, cut in pairs for one in (_runs(copy, cut) if cut else (copy,)))
    return copies


def _in_order(copies: Iterable[Copy]) -> list[Copy]:
    return sorted(copies, key=lambda copy: copy.destination.offset)


def _cut(view: View) -> int:
    """How many of the slowest axes of a view have to be taken one by one so that the rest is a run; 0 for a run."""
    expected = 1
    for k in range(len(view.shape) - 1, -1, -1):
        if view.strides[k] != expected:
            return k + 1
        expected *= view.shape[k]
    return 0


def _runs(copy: Copy, cut: int) -> Iterator[Copy]:
    here, there = copy.destination, copy.source
    for index in product(*(range(size) for size in here.shape[:cut])):
        yield Copy(_at(here, index), ((1, _at(there, index)),), names=copy.names)


def _at(view: View, index: Sequence[int]) -> View:
    offset = view.offset + sum(k * stride for k, stride in zip(index, view.strides, strict=False))
    cut = len(index)
    return view.with_axes(view.shape[cut:], view.strides[cut:], offset)


def window(old: Stored, made: Stored, wanted: View) -> View | None:
    """An old tensor as a view of a new one, in its own shape; None if its elements are not at equal distances."""
    own, whole = contiguous(old.name, wanted.dtype, old.shape), contiguous(made.name, wanted.dtype, made.shape)
    held = grouped((one.part, HeldPiece(made.name, one, whole)) for one in made.pieces)
    copies = (copy for piece in old.pieces for copy in _copies(own, piece, held.get(piece.part, ())))
    found = coalesced(_in_order(copies))
    if len(found) != 1 or not found[0].destination.is_contiguous or found[0].destination.numel != prod(old.shape):
        return None
    return reshaped(found[0].source, wanted.shape)
