"""The maps that a layout allows between parts and a fused tensor, without facts: sizes are divisors of the shapes.

    q, k [64, 32], v [64, 32] -> query_key_value [192, 32]     heads = 1, 2, 4, 8, ...
    query_key_value [96, 32] in one layout, and in another     heads, kv_heads and head_dim, all unknown

Pure: which of them holds is for the bytes to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from typing import NamedTuple, TypeVar

from paramtool.errors import LayoutError
from paramtool.parts import patterns, rows, solving
from paramtool.parts.pieces import Stored, whole
from paramtool.parts.sizes import COMPOSED, Sizes, UnknownSize
from paramtool.parts.solving import PartTensor
from paramtool.passes.diff.part_names import FusedModule, FusedTensorName, ModuleParts
from paramtool.passes.parts.fuse import pattern_of

Shapes = Mapping[str, tuple[int, ...]]
Made = TypeVar("Made")
MAX_DIVISORS = 48
"""The most lengths that are tried for one size; most numbers of heads and widths have fewer divisors."""
MAX_MAPS = 2000
"""The most maps that are tried between two tensors."""


class PartMap(NamedTuple):
    """A fused tensor and its parts, for one layout and certain sizes."""

    fused: Stored
    parts: tuple[Stored, ...]
    content: str
    sizes: Sizes

    @property
    def ones(self) -> int:
        """How many sizes are 1, as of a layout with one chunk: another layout says the same in fewer words."""
        return sum(size == 1 for word, size in solving.used(self.content, self.sizes).items() if word not in UNSAID)

    def words(self) -> str:
        """The pattern and its sizes."""
        known = solving.used(self.content, self.sizes)
        said = " ".join(f"{word}={size}" for word, size in known.items() if word not in UNSAID and size > 1)
        return f"{self.content}, {said}" if said else self.content


UNSAID = ("in", "out", "half", "two", "rest", "q_rows", "k_rows", "v_rows", "taps", "width")
"""Sizes that a shape shows, or that follow from others."""


def of_parts(one: FusedTensorName, parts: ModuleParts, shapes: Shapes, shape: tuple[int, ...]) -> Iterator[PartMap]:
    """The maps between a fused tensor of some shape and its parts, for all sizes that their shapes allow.

    `shapes` are those of the parts.
    """
    try:
        content, along = pattern_of(one.row, one.suffix)
    except LayoutError:
        return
    if any(term not in parts.tensors for term in one.row.terms()):
        return
    loose = patterns.loosened(content)
    given = {
        term: tuple(PartTensor(name, patterns.axes_of(term, loose), shapes[name]) for name in parts.tensors[term])
        for term in one.row.terms()
    }
    count = len(next(iter(given.values())))
    start = Sizes({patterns.EXPERTS: count} if patterns.has_experts(loose) else {})
    apart = tuple(whole(part.name, part.shape) for own in given.values() for part in own)

    def made(sizes: Sizes) -> PartMap:
        sizes = solving.learned(sizes, (part for own in given.values() for part in own))
        stored = rows.stored(one.name, loose, along, given, sizes=sizes)
        if stored.shape != shape:
            raise LayoutError("another shape")
        return PartMap(stored, apart, loose, sizes)

    yield from _limited(_tried(made, start, lambda word, sizes: _lengths(word, sizes, given, shape)))


def between(mine: FusedModule, other: FusedTensorName, shapes: Shapes) -> Iterator[tuple[list[Stored], PartMap]]:
    """The maps between the fused tensors of a module and one of another layout, for all sizes that shapes allow.

    `shapes` are those of both, by their names with `a ` and `b ` before them.
    """
    every = [*mine.tensors, other]
    sides = ["a "] * len(mine.tensors) + ["b "]
    try:
        ways = [
            _Laid(one, *pattern_of(one.row, one.suffix), shapes[f"{side}{one.name}"])
            for one, side in zip(every, sides, strict=True)
        ]
    except LayoutError:
        return
    wanted = set(other.row.terms())
    if not wanted <= mine.terms:
        return
    ways = [way for way in ways if wanted.intersection(way.one.row.terms())]
    lengths = sorted({length for way in ways for size in way.shape for length in divisors(size)})[:MAX_DIVISORS]

    def made(sizes: Sizes) -> tuple[list[Stored], PartMap]:
        for way in sorted(ways, key=lambda way: (bool(way.unseen), -len(way.shape))):
            if way.unseen:
                sizes.of(way.unseen)
            sizes = solving.solved(way.one.name, way.content, way.along, way.shape, sizes=sizes)
        *held, there = (_alone(way, sizes) for way in ways)
        return [one.fused for one in held], there

    def of(word: str, sizes: Sizes) -> Sequence[int]:
        return _rotary(sizes.of("head_dim")) if word == "rotary" else lengths

    yield from _limited(_tried(made, Sizes({}), of))


class _Laid(NamedTuple):
    """A fused tensor, its pattern and its shape."""

    one: FusedTensorName
    content: str
    along: int
    shape: tuple[int, ...]

    @property
    def unseen(self) -> str:
        """The axis of its braces on which its shape does not hang."""
        words = {"chunks": "chunks", "value_group": "linear_key_heads"}
        return next((word for sign, word in words.items() if sign in self.content), "")


def _alone(way: _Laid, sizes: Sizes) -> PartMap:
    """A fused tensor without its parts, which are called like the terms of its pattern."""
    content = way.content
    sizes = solving.per_head(content, sizes)
    count = sizes.of(patterns.EXPERTS) if patterns.has_experts(content) else 1
    parts = {
        term: tuple(PartTensor(f"{term}{k}", axes, solving.part_shape(axes, sizes)) for k in range(count))
        for term in patterns.terms(content)
        for axes in (patterns.axes_of(term, content),)
    }
    stored = rows.stored(way.one.name, content, way.along, parts, sizes=sizes)
    if stored.shape != way.shape:
        raise LayoutError("another shape")
    return PartMap(stored, (), content, sizes)


def _tried(
    make: Callable[[Sizes], Made], sizes: Sizes, lengths: Callable[[str, Sizes], Sequence[int]]
) -> Iterator[Made]:
    """What can be made with the sizes that are known, and each length of those that are not."""
    try:
        yield make(sizes)
    except UnknownSize as error:
        word = error.word
        try:
            found = lengths(word, sizes)
        except UnknownSize as other:  # a length that hangs on another
            word = other.word
            found = lengths(word, sizes)
        for length in found:
            yield from _tried(make, sizes.with_one(word, length), lengths)
    except LayoutError:
        return


def _limited(maps: Iterator[Made]) -> Iterator[Made]:
    for number, one in enumerate(maps):
        if number >= MAX_MAPS:
            return
        yield one


def _lengths(
    word: str, sizes: Sizes, parts: Mapping[str, tuple[PartTensor, ...]], shape: tuple[int, ...]
) -> Sequence[int]:
    """The lengths that an axis can have: what divides every axis of the parts that it is in."""
    if word == "rotary":
        return _rotary(sizes.of("head_dim"))
    found = 0
    for own in parts.values():
        for group, length in zip(patterns.groups(patterns.PARTS[_term(own, parts)]), own[0].shape, strict=False):
            if any(word == one or any(word in split for split in COMPOSED.get(one, ())) for one in group):
                found = gcd(found, length)
    return divisors(found or gcd(*shape[:1]))


def _term(own: tuple[PartTensor, ...], parts: Mapping[str, tuple[PartTensor, ...]]) -> str:
    return next(term for term, tensors in parts.items() if tensors is own)


def _rotary(head: int) -> Sequence[int]:
    """How many elements of a head RoPE rotates: all, or a share that models have."""
    return list(dict.fromkeys(size for size in (head, head // 2, head // 4, 3 * head // 4) if size and not size % 2))


def divisors(number: int) -> Sequence[int]:
    """The divisors of a number, the smallest first, without itself and 1 at the end.

    >>> divisors(12)
    [2, 3, 4, 6, 12, 1]
    """
    low = [k for k in range(1, min(number, 1 << 16) + 1) if k * k <= number and not number % k]
    every = sorted({*low, *(number // k for k in low)})
    return [*every[1:], *every[:1]][:MAX_DIVISORS]


