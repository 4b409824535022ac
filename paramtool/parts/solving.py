"""The sizes of a pattern: learned from the shapes of parts, solved from the shape of a fused tensor, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from math import lcm, prod

from paramtool.errors import LayoutError, plural
from paramtool.layouts.pattern import Items, blocks, parse
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape
from paramtool.parts.patterns import KEPT, PARTS, WORDS, axes_of, counted, groups, slice_words, terms, words
from paramtool.parts.sizes import CHECK, COMPOSED, Sizes, UnknownSize


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
    kinds: dict[tuple[str, tuple[int, ...]], PartTensor] = {}
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
            unknown = [word for word in group if not sizes.knows(word)]
            product_ = prod(sizes.of(word) for word in group if sizes.knows(word))
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


def _pairs(part: PartTensor) -> Iterator[tuple[tuple[str, ...], int]]:
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
            unknown = [word for word in group if not sizes.knows(word)]
            if len(unknown) != 1:
                continue
            rest = prod(sizes.of(word) for word in group if sizes.knows(word))
            if rest and shape[axis] % rest == 0:
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
            size, unknown = 1, []
            for word in group:
                if (found := sizes.find(word)) is None:
                    unknown.append(SAME.get(word, word))
                else:
                    size *= found
            lacking.add(tuple(unknown))
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
def _laid(content: str, along: int) -> tuple[tuple[tuple[tuple[str, ...], ...], ...], tuple[tuple[str, ...], ...]]:
    """The axes of each block, and those whose product is the length of each block, where blocks follow each other."""
    items = parse(content, WORDS)
    every = tuple(block.axes for block in blocks(items))
    known = all(along < len(axes) for axes in every)
    return every, tuple(counted(items, along)) if known else ()


def _lacking(counted: Iterable[tuple[str, ...]], sizes: Sizes) -> list[str]:
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


def _length(counted: Iterable[tuple[str, ...]], sizes: Sizes) -> int:
    return sum(prod(map(sizes.of, group)) for group in counted)


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
    return tuple(prod(map(sizes.of, group)) for group in groups(axes))


def shape_of(name: str, content: str, along: int, sizes: Sizes) -> Shape:
    """The shape of the tensor that a pattern describes; LayoutError if its blocks do not fit together."""
    items = parse(content, WORDS)
    shapes = {
        tuple(prod(map(sizes.of, group)) for axis, group in enumerate(block.axes) if axis != along)
        for block in blocks(items)
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
