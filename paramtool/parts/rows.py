"""Rows: a pattern, sizes and the parts' own shapes give the pieces of one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import NamedTuple

from paramtool.errors import LayoutError, UsageError, plural
from paramtool.layouts.pattern import Block, Items, Repeated, parse
from paramtool.parts.patterns import EXPERTS, SLICES, WORDS, groups
from paramtool.parts.pieces import Digit, Digits, Piece, Stored
from paramtool.parts.sizes import COMPOSED, MEANINGS, Sizes
from paramtool.parts.solving import AS_MANY, PartTensor, extent, learned, per_head, shape_of

Parts = Mapping[str, Sequence[PartTensor]]
"""{term of a pattern: its tensors, one for each expert, else one}"""


class _AxisWay(NamedTuple):
    """How far one of an axis moves in the fused tensor."""

    axis: int
    step: int


def stored(name: str, content: str, along: int, parts: Parts, *, sizes: Sizes) -> Stored:
    """The tensor that a pattern describes, with the pieces of its parts.

    LayoutError if blocks do not fit together, if the parts' shapes contradict the sizes, or if an element of the
    tensor would belong to no part.
    """
    sizes = learned(per_head(content, sizes), (tensor for tensors in parts.values() for tensor in tensors))
    sizes = per_head(content, sizes)
    shape = shape_of(name, content, along, sizes)
    most = MAX_PIECES + sum(map(len, parts.values()))
    pieces = tuple(islice(_placed(parse(content, WORDS), 0, {}, along, parts=parts, sizes=sizes), most + 1))
    if len(pieces) > most:
        raise LayoutError(f"{name!r}: {content} cuts it into more than {most} pieces")
    if (held := sum(prod(piece.shape) for piece in pieces)) != prod(shape):
        raise LayoutError(
            f"{name!r}: the pattern {content} holds {plural(held, 'element')} of its parts; expected all {prod(shape)}"
        )
    return Stored(name, shape, pieces)


MAX_PIECES = 1 << 16
"""The most pieces of a tensor, beside one for each part: two for each head where RoPE rotates a share of it, one for
each element of a head where a gate is repeated."""


def _placed(
    items: Items, start: int, loops: Mapping[str, _AxisWay], along: int, *, parts: Parts, sizes: Sizes
) -> Iterator[Piece]:
    """The pieces of blocks that begin at `start` along their axis, inside braces that repeat them."""
    for item in items:
        if isinstance(item, Repeated):
            step = extent(item.items, along, sizes)
            inner = dict(loops)
            for word in reversed(item.axes):
                inner[word] = _AxisWay(along, step)
                step *= sizes.of(word)
            yield from _placed(item.items, start, inner, along, parts=parts, sizes=sizes)
            start += step
        else:
            yield from _block_pieces(item, start, loops, along, parts=parts, sizes=sizes)
            start += prod(sizes.of(word) for word in item.axes[along])


def _block_pieces(
    block: Block, start: int, loops: Mapping[str, _AxisWay], along: int, *, parts: Parts, sizes: Sizes
) -> Iterator[Piece]:
    ways = dict(loops)
    for axis, group in enumerate(block.axes):
        step = 1
        for word in reversed(group):
            if not word.isdigit():
                ways[word] = _AxisWay(axis, step)
            step *= sizes.of(word)
    at = tuple(start if axis == along else 0 for axis in range(len(block.axes)))
    term = block.terms[0][1]
    tensors = parts.get(term, ())
    if EXPERTS in ways and not (tensors and any(EXPERTS in group for group in groups(tensors[0].axes))):
        way = ways.pop(EXPERTS)
        if not tensors or len(tensors) != sizes.of(EXPERTS):
            raise LayoutError(f"{len(tensors)} experts have {term!r}; expected experts={sizes.of(EXPERTS)}")
        # The pieces of all experts, which are those of the first, further along.
        first = list(_of_part(tensors[0], block.gates, ways, at, sizes=sizes))
        for expert, tensor in enumerate(tensors):
            for piece in first:
                yield Piece(tensor.name, piece.start, piece.digits, _shifted(piece.at, way, expert))
        return
    for tensor in tensors[:1]:
        yield from _of_part(tensor, block.gates, ways, at, sizes=sizes)


def _shifted(at: tuple[int, ...], way: _AxisWay, value: int) -> tuple[int, ...]:
    return tuple(k + value * way.step if axis == way.axis else k for axis, k in enumerate(at))


def _of_part(
    tensor: PartTensor, slice_: str, ways: Mapping[str, _AxisWay], at: tuple[int, ...], *, sizes: Sizes
) -> Iterator[Piece]:
    """The pieces of one part in one block: several if it is a slice of each head, or repeated."""
    used: set[str] = set()
    most = MAX_PIECES + 2  # with more runs than this, `stored` refuses the tensor
    axes = [list(islice(_axis(group, slice_, ways, used, sizes=sizes), most)) for group in groups(tensor.axes)]
    repeated = [word for word in ways if word not in used and sizes.of(word) > 1]
    for values in product(*(range(sizes.of(word)) for word in repeated)):
        place = at
        for word, value in zip(repeated, values, strict=True):
            place = _shifted(place, ways[word], value)
        for chosen in product(*axes):
            here = place
            for run in chosen:
                for way, value in run.moved:
                    here = _shifted(here, way, value)
            yield Piece(tensor.name, tuple(run.start for run in chosen), tuple(run.digits for run in chosen), here)


class _AxisRun(NamedTuple):
    """Indexes along one axis of a part that a block holds."""

    start: int
    digits: Digits
    moved: tuple[tuple[_AxisWay, int], ...]
    """Along which ways, and how far, the run begins in the tensor."""


def _axis(
    group: tuple[str, ...], slice_: str, ways: Mapping[str, _AxisWay], used: set[str], *, sizes: Sizes
) -> Iterator[_AxisRun]:
    """The runs of one axis of a part: one, or one for each head if the block holds a slice of them."""
    sliced, after, length = SLICES.get(slice_, ("", "", ""))
    if sliced not in group:
        yield _AxisRun(0, tuple(_digits(group, ways, used, sizes)), ())
        return
    k = group.index(sliced)
    outer = [(word, way) for word in group[:k] for word, way in _ways(word, ways, used)]
    inner = prod(sizes.of(word) for word in group[k + 1 :])
    digits = tuple(
        _digits(
            (*(("two", "half") if length == "rotary" and length not in ways else (length,)), *group[k + 1 :]),
            ways,
            used,
            sizes,
        )
    )
    begin = sizes.of(after) if after else 0
    for values in product(*(range(sizes.of(word)) for word, _ in outer)):
        index = 0
        for (word, _), value in zip(outer, values, strict=True):
            index = index * sizes.of(word) + value
        start = (index * sizes.of(sliced) + begin) * inner
        yield _AxisRun(start, digits, tuple((way, value) for (_, way), value in zip(outer, values, strict=True)))


def _ways(word: str, ways: Mapping[str, _AxisWay], used: set[str]) -> Iterator[tuple[str, _AxisWay]]:
    """A word's way in the tensor, or those of the axes that it is split into there."""
    if word in ways:
        used.add(word)
        yield word, ways[word]
        return
    if (same := AS_MANY.get(word)) and same in ways:  # see `per_head`
        yield from _ways(same, ways, used)
        return
    for split in COMPOSED.get(word, ()):
        if any(part in ways or part in COMPOSED for part in split) and all(
            part in ways or any(inner in ways for way in COMPOSED.get(part, ()) for inner in way) for part in split
        ):
            for part in split:
                yield from _ways(part, ways, used)
            return
    raise UsageError(f"a pattern has no axis {word!r} ({MEANINGS.get(word, 'not a known axis')})")


def _digits(group: Iterable[str], ways: Mapping[str, _AxisWay], used: set[str], sizes: Sizes) -> Iterator[Digit]:
    """The digits of one axis of a part."""
    for word in group:
        if word not in ways and sizes.knows(word) and sizes.of(word) == 1:
            yield Digit(1, 0, 1)
            continue
        for own, way in _ways(word, ways, used):
            yield Digit(sizes.of(own), way.axis, way.step)
