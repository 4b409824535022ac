"""Patterns: where the cells are in one tensor, written as readable text.

    W[(gate hidden) in]                       torch: gates one below the other, each hidden x in
    W[in (gate hidden)]                       Keras: the same, transposed
    W[in (gate hidden)] R[rec (gate hidden)]  TensorFlow 1: blocks follow each other along the first axis
    {layer dir: W[(gate hidden in)] R[(gate hidden rec)]} {layer dir: bW[(gate hidden)] bR[(gate hidden)]}
                                              cuDNN: a flat vector, all matrices, then all biases

A block is `TERMS.GATES[AXES]`.  AXES are named as in einops: each word or group in brackets is an axis of the tensor,
the words in a group from the slowest to the fastest.  TERMS say what is stored: a cell (`W`), its negative (`-W`), a
sum (`bW+bR`), a sum with an offset (`bW+bR-forget_bias`, where `forget_bias` is an option of the layout), or filler
(`0`).  GATES are the gates of the block in their order, if that is not the layout's.  `W~` says that the tensor holds
the cell's bytes in the cell's own order, whatever the axes are called.  `bW!` is present, as zeros, even if the network
has no such cell; `bW!tail` only if the option `tail` is yes.

`paramtool.parts` has words of its own for attention, gated MLPs and experts (`any_words`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from math import prod

from paramtool.errors import UsageError
from paramtool.layouts.spec import KINDS
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape

Words = tuple[str, ...]
"""The words of one axis, from the slowest to the fastest."""
INDEXES = ("layer", "dir", "gate")
"""Axes that choose a cell, over which braces can repeat; the others run inside one."""
AXES = {*INDEXES, "hidden", "in", "rec", "proj"}


@frozen
class Block:
    """A part of a tensor with one cell (or sum of cells) for each layer, direction and gate that it names."""

    terms: tuple[tuple[int, str], ...]
    """(sign, kind of cell)."""
    shift: tuple[tuple[int, str], ...]
    """(sign, a whole number or the name of an option), added to the sum."""
    gates: str
    """The gates in order; empty for the gates of the layout."""
    axes: tuple[Words, ...]
    """For each axis of the tensor, the words of its group."""
    raw: bool = False
    """Whether the cell's bytes are in the cell's own order."""
    always: str = ""
    """`!` for a block that is present even without its cells; `!` and an option if the option decides that."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of cells in it."""
        return frozenset(kind for _, kind in self.terms)

    @property
    def words(self) -> Words:
        """The words of all axes."""
        return tuple(word for group in self.axes for word in group)


@frozen
class Repeated:
    """Items that are repeated for each value of the index axes, one after the other."""

    axes: Words
    items: tuple[Block | Repeated, ...]


Items = tuple[Block | Repeated, ...]
_TOKEN = re.compile(
    r"\s*(?:(?P<open>\{(?P<loop>[a-z_ ]+):)|(?P<close>\})|"
    r"(?P<terms>-?\w+(?:[+-]\w+)*)(?P<raw>~?)(?P<always>!\w*)?(?:\.(?P<gates>\w+))?\[(?P<axes>[^\[\]]*)\])"
)


@cache
def parse(content: str, any_words: bool = False) -> Items:
    """The blocks of a pattern; UsageError says where it is malformed.

    With `any_words` every word can be a part, or an axis, and none is a number that is added.

    >>> parse("W[in (gate hidden)]")[0].axes
    (('in',), ('gate', 'hidden'))
    """
    stack: list[tuple[Words, list[Block | Repeated]]] = [((), [])]
    at = 0
    while content[at:].strip():
        found = _TOKEN.match(content, at)
        if found is None:
            raise UsageError(f"pattern {content!r}: cannot be parsed at {content[at:].strip()[:30]!r}")
        at = found.end()
        if found["open"]:
            axes = tuple(found["loop"].split())
            if not any_words and (unknown := set(axes) - {*INDEXES}):
                raise UsageError(f"pattern {content!r}: repeats {min(unknown)!r}; expected layer, dir or gate")
            stack.append((axes, []))
        elif found["close"]:
            if len(stack) == 1:
                raise UsageError(f"pattern {content!r}: has a closing brace without an opening one")
            axes, items = stack.pop()
            stack[-1][1].append(Repeated(axes, tuple(items)))
        else:
            stack[-1][1].append(_block(content, found, any_words))
    if len(stack) > 1 or not stack[0][1]:
        raise UsageError(f"pattern {content!r}: " + ("has an unclosed brace" if len(stack) > 1 else "is empty"))
    return tuple(stack[0][1])


def _block(content: str, found: re.Match[str], any_words: bool) -> Block:
    terms, shift = [], []
    for sign, word in re.findall(r"([+-]?)(\w+)", found["terms"]):
        number = -1 if sign == "-" else 1
        if any_words or word in KINDS:
            terms.append((number, word))
        elif word != "0":
            shift.append((number, word))
    axes = tuple(tuple(group.strip("()").split()) for group in re.findall(r"\([^()]*\)|[^\s()]+", found["axes"]))
    block = Block(tuple(terms), tuple(shift), found["gates"] or "", axes, bool(found["raw"]), found["always"] or "")
    for word in () if any_words else block.words:
        if word not in AXES and not word.isdigit():
            raise UsageError(
                f"pattern {content!r}: {word!r} is not an axis; expected hidden, in, rec, proj, layer, dir, gate"
            )
    return block


def blocks(items: Items) -> Iterator[Block]:
    """Every block of a pattern; repeated blocks are yielded once."""
    for item in items:
        if isinstance(item, Block):
            yield item
        else:
            yield from blocks(item.items)


def words(items: Items) -> set[str]:
    """The axes that a pattern names, those of braces included."""
    return set().union(*((*one.axes, *words(one.items)) if isinstance(one, Repeated) else one.words for one in items))


Binding = Mapping[str, int | str]
"""Values of index axes: layer and dir as numbers, gate as its letter."""


def bound(
    items: Items, binding: Binding, values: Mapping[str, tuple[int | str, ...]]
) -> Iterator[tuple[Block, Binding]]:
    """Every block with the values of the axes of the braces around it, in the order of the tensor."""
    for item in items:
        if isinstance(item, Block):
            yield item, binding
            continue
        for chosen in product(*(values[axis] for axis in item.axes)):
            yield from bound(item.items, {**binding, **dict(zip(item.axes, chosen, strict=True))}, values)


def extent(block: Block, lengths: Mapping[str, int]) -> Shape:
    """The shape of a block, from the length of each of its axes."""
    return tuple(prod(length(word, lengths) for word in group) for group in block.axes)


def length(word: str, lengths: Mapping[str, int]) -> int:
    """The length of one axis; a number is its own length."""
    return int(word) if word.isdigit() else lengths[word]


def window(
    block: Block,
    lengths: Mapping[str, int],
    strides: Shape,
    index: Mapping[str, int],
    *,
    order: Words,
) -> tuple[int, Shape, Shape]:
    """(offset, shape, strides) of one cell in a block: index axes fixed by `index`, the rest in `order`.

    `strides` are those of the tensor's axes.  With `order` empty the axes stay as the pattern has them.
    """
    offset = 0
    found: dict[str, tuple[int, int]] = {}
    for group, stride in zip(block.axes, strides, strict=True):
        step = stride
        for word in reversed(group):
            size = length(word, lengths)
            if word in index:
                offset += index[word] * step
            elif not word.isdigit():
                found[word] = size, step
            step *= size
    words = order or tuple(word for word in block.words if word in found)
    if set(words) != found.keys():
        raise UsageError(
            f"a block of {'+'.join(block.kinds)} has the axes {sorted(found)}; expected {sorted(set(words))}"
        )
    return offset, tuple(found[word][0] for word in words), tuple(found[word][1] for word in words)
