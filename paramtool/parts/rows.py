"""Rows: the sizes of a pattern, learned and solved by shapes, and the pieces of the tensor that it describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, product
from math import lcm, prod
from typing import NamedTuple

from paramtool.errors import LayoutError, UsageError, plural
from paramtool.layouts.pattern import Block, Items, Repeated, Words, blocks
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape
from paramtool.parts.patterns import (
    EXPERTS,
    KEPT,
    PARTS,
    SLICES,
    axes_of,
    counted,
    groups,
    parsed,
    slice_words,
    terms,
    words,
)
from paramtool.parts.pieces import Digit, Digits, Piece, Stored, further
from paramtool.parts.sizes import CHECK, COMPOSED, MEANINGS, Sizes, UnknownSize


@frozen
class PartTensor:
    """A tensor that is one part."""

    name: str
    axes: str
    """Its axes as a pattern has them: `(heads head_dim) in`."""
    shape: Shape
    by: tuple[str, ...] = ()
    """The tensors of the file that show the length of each axis, if it is not in the file itself."""


AS_MANY = {"kv_heads": "heads", "value_dim": "head_dim"}
"""{axis: the axis that has the same length in a pattern without the first}"""


def learned(sizes: Sizes, parts: Iterable[PartTensor]) -> Sizes:
    """The sizes that are known, with those that the shapes of parts show.

    LayoutError if a shape contradicts a size; a size that no shape shows alone stays unknown.
    """
    kinds: dict[tuple[str, Shape], PartTensor] = {}
    for part in parts:
        kinds.setdefault((part.axes, part.shape), part)
    waiting = [
        (part, part.by[k] if part.by else part.name, group, length)
        for part in kinds.values()
        for k, (group, length) in enumerate(_pairs(part))
    ]
    again = True
    while again:
        again = False
        for part, name, group, length in waiting:
            unknown, product_ = sizes.parted(group)
            if not unknown and product_ != length:
                has = "is of a weight of shape" if part.by else "has shape"
                raise LayoutError(
                    f"{name!r} has {length} rows; expected {_said(group, sizes)} = {product_}"
                    if len(group) > 1
                    else f"{name!r} {has} {list(part.shape)}; expected {_said(group, sizes)}",
                    hint="the facts in config.json or --spec are those of another model or module; --at chooses",
                )
            if len(unknown) == 1:
                if not product_ or length % product_:
                    known = tuple(word for word in group if word != unknown[0])
                    raise LayoutError(
                        f"{name!r} has {length} rows, which do not divide by {_said(known, sizes)}",
                        hint=CHECK,
                    )
                sizes = sizes.with_one(unknown[0], length // product_)
                again = True
    return sizes


def _pairs(part: PartTensor) -> Iterator[tuple[Words, int]]:
    found = groups(part.axes)
    if len(found) != len(part.shape):
        raise LayoutError(f"{part.name!r} has shape {list(part.shape)}; expected the axes {part.axes}")
    if 0 in part.shape:
        raise LayoutError(f"{part.name!r} has shape {list(part.shape)}: a part without elements")
    return zip(found, part.shape, strict=True)


def _said(words: Iterable[str], sizes: Sizes) -> str:
    return " x ".join(f"{word}={sizes.of(word)}" for word in words)


def solved(name: str, content: str, along: int, shape: Shape, *, sizes: Sizes) -> Sizes:
    """The sizes that are known, with those that the shape of a fused tensor shows.

    One size that its blocks have in common can be solved for along their axis.  UnknownSize if more are lacking,
    LayoutError if the shape contradicts the sizes.
    """
    sizes = per_head(content, sizes)
    every, following = _laid(content, along)
    for axes in every:
        if len(axes) != len(shape):
            raise LayoutError(
                f"{name!r} has shape {list(shape)}; expected {plural(len(axes), 'axis', 'axes')}: {content}"
            )
        for axis, group in enumerate(axes):
            if axis == along:
                continue
            unknown, rest = sizes.parted(group)
            if len(unknown) == 1 and rest and shape[axis] % rest == 0:
                sizes = sizes.with_one(unknown[0], shape[axis] // rest)
    lacking = _lacking(following, sizes)
    if not lacking:
        return sizes
    word, *others = lacking
    if others:
        raise UnknownSize(others[0] if word in ("head_dim", "rows", "ffn") else word)
    unit = _unit(sizes)
    once, twice = (_length(following, sizes.with_one(word, length)) for length in (unit, 2 * unit))
    slope = (twice - once) // unit
    length = unit + (shape[along] - once) // slope if slope else 0
    if not slope or (shape[along] - once) % slope or length < 1:
        raise LayoutError(f"{name!r} has {shape[along]} rows, which do not divide as {content}", hint=CHECK)
    return sizes.with_one(word, length)


def can_fit(content: str, along: int, shape: Shape, *, sizes: Sizes) -> bool:
    """Whether a tensor of this shape can be laid as a pattern has it, with these sizes and any others.

    It looks at the axis along which blocks follow each other, is quick, and says no only where `solved` does for all
    other sizes.
    """
    every, following = _laid(content, along)
    if any(len(axes) != len(shape) for axes in every):
        return False
    total, lacking = 0, set()
    try:
        for group in following:
            unknown, size = sizes.parted(group)
            lacking.add(tuple(SAME.get(word, word) for word in unknown))
            total += 0 if "rest" in unknown else size  # it can be 0
    except LayoutError:
        return False
    if lacking == {()}:
        return total == shape[along]
    if len(lacking) == 1 and len(lacking.pop()) == 1:
        return bool(total) and shape[along] % total == 0
    return total <= shape[along]


SAME = {"value_dim": "head_dim"}
"""{axis: the axis that it is as long as, if it is not known}"""


@lru_cache(maxsize=KEPT)
def _laid(content: str, along: int) -> tuple[tuple[tuple[Words, ...], ...], tuple[Words, ...]]:
    """The axes of each block, and those whose product is the length of each block, where blocks follow each other."""
    items = parsed(content)
    every = tuple(block.axes for block in blocks(items))
    known = all(along < len(axes) for axes in every)
    return every, tuple(counted(items, along)) if known else ()


def _lacking(counted: Iterable[Words], sizes: Sizes) -> list[str]:
    """The sizes without which the length along the blocks' axis is not known."""
    found: list[str] = []
    probe = sizes
    for word in chain.from_iterable(counted):
        while True:
            try:
                probe.of(word)
                break
            except UnknownSize as error:
                found.append(error.word)
                probe = probe.with_one(error.word, _unit(sizes))
    return found


def _unit(sizes: Sizes) -> int:
    """A length that divides by all that a size is ever divided by."""
    return 2 * lcm(*(sizes.known.get(word, 1) for word in ("chunks", "kv_heads", "linear_key_heads", "rotary")))


def extent(items: Items, along: int, sizes: Sizes) -> int:
    """The length of blocks along their axis, one after the other."""
    return _length(counted(items, along), sizes)


def _length(counted: Iterable[Words], sizes: Sizes) -> int:
    return sum(map(sizes.product, counted))


def per_head(content: str, sizes: Sizes) -> Sizes:
    """Sizes for a pattern that gives each head its own key and value: then KV heads are heads.

    Values are as wide as keys, too, if they take turns.  LayoutError if the two are known to differ.
    """
    for word, other in _as_many(content):
        if not sizes.knows(other):
            continue
        if not sizes.knows(word):
            sizes = sizes.with_one(word, sizes.of(other))
        elif sizes.of(word) != sizes.of(other):
            raise LayoutError(
                f"{content} needs {word} = {other}; found {word}={sizes.of(word)} {other}={sizes.of(other)}",
                hint="qkv-per-group is the layout for fewer KV heads" if word == "kv_heads" else "",
            )
    return sizes


@lru_cache(maxsize=KEPT)
def _as_many(content: str) -> tuple[tuple[str, str], ...]:
    """The axes that have the same length in a pattern."""
    found = words(content)
    canonical = {word for term in terms(content) if term in PARTS for group in groups(PARTS[term]) for word in group}

    def holds(word: str, other: str) -> bool:
        splits = {part for split in COMPOSED.get(word, ()) for part in split}
        return word in canonical and other in found and not found & {word, *splits}

    return tuple((word, other) for word, other in AS_MANY.items() if holds(word, other))


def part_shape(axes: str, sizes: Sizes) -> Shape:
    """The shape of a part with these axes; UnknownSize if a size is lacking."""
    return tuple(map(sizes.product, groups(axes)))


def shape_of(name: str, content: str, along: int, sizes: Sizes) -> Shape:
    """The shape of the tensor that a pattern describes; LayoutError if its blocks do not fit together."""
    items = parsed(content)
    shapes = {
        tuple(sizes.product(group) for axis, group in enumerate(block.axes) if axis != along) for block in blocks(items)
    }
    if len(shapes) > 1:
        raise LayoutError(f"{name!r}: the blocks of {content} do not fit together: {sorted(shapes)}")
    rest = shapes.pop()
    return (*rest[:along], extent(items, along, sizes), *rest[along:])


def used(content: str, sizes: Sizes) -> dict[str, int]:
    """The sizes of a pattern's words, and of the axes of its parts."""
    found = words(content) | slice_words(content)
    for term in terms(content):
        found |= {word for axes in groups(axes_of(term, content)) for word in axes}
    known = {word: sizes.of(word) for word in sorted(found) if not word.isdigit() and sizes.knows(word)}
    return {word: size for word, size in known.items() if size}  # `rest` of heads that RoPE rotates wholly follows


# --- The pieces of one tensor, by a pattern, sizes and the parts' own shapes ------------------------------------------


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
    pieces = tuple(islice(_placed(parsed(content), 0, {}, along, parts=parts, sizes=sizes), most + 1))
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
            start += sizes.product(item.axes[along])


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
                yield Piece(tensor.name, piece.start, piece.digits, further(piece.at, way.axis, expert * way.step))
        return
    for tensor in tensors[:1]:
        yield from _of_part(tensor, block.gates, ways, at, sizes=sizes)


def _of_part(
    tensor: PartTensor, slice_: str, ways: Mapping[str, _AxisWay], at: Shape, *, sizes: Sizes
) -> Iterator[Piece]:
    """The pieces of one part in one block: several if it is a slice of each head, or repeated."""
    used: set[str] = set()
    most = MAX_PIECES + 2  # with more runs than this, `stored` refuses the tensor
    axes = [list(islice(_axis(group, slice_, ways, used, sizes=sizes), most)) for group in groups(tensor.axes)]
    repeated = [word for word in ways if word not in used and sizes.of(word) > 1]
    for values in product(*(range(sizes.of(word)) for word in repeated)):
        place = at
        for word, value in zip(repeated, values, strict=True):
            place = further(place, ways[word].axis, value * ways[word].step)
        for chosen in product(*axes):
            here = place
            for run in chosen:
                for way, value in run.moved:
                    here = further(here, way.axis, value * way.step)
            yield Piece(tensor.name, tuple(run.start for run in chosen), tuple(run.digits for run in chosen), here)


class _AxisRun(NamedTuple):
    """Indexes along one axis of a part that a block holds."""

    start: int
    digits: Digits
    moved: tuple[tuple[_AxisWay, int], ...]
    """Along which ways, and how far, the run begins in the tensor."""


def _axis(
    group: Words, slice_: str, ways: Mapping[str, _AxisWay], used: set[str], *, sizes: Sizes
) -> Iterator[_AxisRun]:
    """The runs of one axis of a part: one, or one for each head if the block holds a slice of them."""
    sliced, after, length = SLICES.get(slice_, ("", "", ""))
    if sliced not in group:
        yield _AxisRun(0, tuple(_digits(group, ways, used, sizes)), ())
        return
    k = group.index(sliced)
    outer = [(word, way) for word in group[:k] for word, way in _ways(word, ways, used)]
    inner = sizes.product(group[k + 1 :])
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
