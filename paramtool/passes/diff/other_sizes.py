"""Whether a map that fits the bytes has the sizes that a config.json says.

    conv1d.weight   88 rows, and q, k and v of 30, 30 and 28 rows hold all of them in order
    config.json     24, 24 and 40 rows, which are 88, too: a loader cuts elsewhere

A config under which the tensor has another length says nothing of it: a shard, or queries with gates among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from paramtool.errors import LayoutError
from paramtool.layouts.pattern import Block, Items, parse
from paramtool.parts.facts import Facts
from paramtool.parts.patterns import PARTS, WORDS, groups
from paramtool.parts.sizes import COMPOSED, Sizes
from paramtool.parts.solving import extent

Words = tuple[str, ...]


class LaidTensor(NamedTuple):
    """A fused tensor as a map has it."""

    content: str
    """Its pattern."""
    along: int
    """The axis along which blocks follow each other."""
    length: int
    """Of this axis."""


def other_sizes(laid: LaidTensor, sizes: Sizes, known: Facts) -> str | None:
    """What facts say of the sizes other than a map does, `heads=4, head_dim=16`; "" where the two agree.

    None where facts lack a size, or the tensor has another length under them.  Nobody says how many chunks there are,
    so this number is the map's.
    """
    items = parse(laid.content, WORDS)
    every = list(_counted(items, laid.along))
    words = dict.fromkeys(word for group in every for word in group)
    try:
        if "chunks" in words and "chunks" not in known.sizes:
            known = Facts({**known.sizes, "chunks": sizes.of("chunks")}, known.said)
        said = Sizes({word: _said(word, known) for word in words})
        if extent(items, laid.along, said) != laid.length:
            return None
        other = [group for group in every if _product(group, sizes) != _product(group, said)]
    except LayoutError:
        return None
    return ", ".join(f"{word}={said.of(word)}" for word in dict.fromkeys(word for group in other for word in group))


def _product(words: Words, sizes: Sizes) -> int:
    return prod(sizes.of(word) for word in words)


def _counted(items: Items, axis: int) -> Iterator[Words]:
    """Sizes along an axis, those together of which only the product says which rows are whose."""
    for item in items:
        if not isinstance(item, Block):
            yield item.axes
            yield from _counted(item.items, axis)
            continue
        words, places = item.axes[axis], _places(item.terms[0][1])
        order = [places.get(word, ()) for word in words]
        if item.gates or order != sorted(order):
            yield from ((word,) for word in words)  # rows are in another order, which depends on each size
        else:
            yield words


def _places(term: str) -> dict[str, tuple[int, ...]]:
    """{word: where it is in the rows of a part}, the slowest first."""
    found: dict[str, tuple[int, ...]] = {}
    todo: list[tuple[str, tuple[int, ...]]] = [
        (word, (k,)) for group in groups(PARTS[term]) for k, word in enumerate(group)
    ]
    for word, place in todo:
        found[word] = place
        todo += [(inner, (*place, k)) for split in COMPOSED.get(word, ()) for k, inner in enumerate(split)]
    return found


def _said(word: str, known: Facts) -> int:
    """A size by facts; UnknownSize if they lack it.

    Rows of a part are the product of its sizes.
    """
    sizes = Sizes(known.sizes)
    part = word.removesuffix("_rows")
    if part == word or part not in PARTS:
        return sizes.of(word)
    return prod(sizes.of(one) for group in groups(PARTS[part]) if len(group) > 1 for one in group)
