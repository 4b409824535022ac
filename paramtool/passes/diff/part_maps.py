"""The maps that a layout allows between parts and a fused tensor, without facts: sizes are divisors of the shapes.

    q, k [64, 32], v [64, 32] -> query_key_value [192, 32]     heads = 1, 2, 4, 8, ...
    query_key_value [96, 32] in one layout, and in another     heads, kv_heads and head_dim, all unknown

Pure: which of them holds is for the bytes to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import islice
from math import gcd, prod
from random import Random
from typing import NamedTuple, TypeVar

from paramtool.errors import LayoutError
from paramtool.grouping import grouped
from paramtool.layouts.pattern import Block, Items, Repeated, Words, blocks
from paramtool.model.view import Shape, contiguous_strides
from paramtool.parts import patterns, rows
from paramtool.parts.facts import Facts
from paramtool.parts.layout import FusedRow, PartGroup, PartLayout, all_groups, all_part_layouts, find_part_layout
from paramtool.parts.patterns import PARTS, groups
from paramtool.parts.pieces import Digits, Piece, Stored, whole
from paramtool.parts.rows import PartTensor, extent
from paramtool.parts.sizes import COMPOSED, Sizes, UnknownSize
from paramtool.parts.words import APART, Names
from paramtool.passes.parts.find import named_parts, variants_of
from paramtool.passes.parts.fuse import pattern_of

Made = TypeVar("Made")
POINTS = 24
"""Elements that are looked at before a map is made."""
KEPT = 256
"""Answers for this number of kinds of tensors are remembered: a model has many tensors of few shapes."""
KEPT_STORED = 8192
"""Fused tensors of certain sizes, and divisors of numbers, are remembered."""
MAX_DIVISORS = 48
"""The most lengths that are tried for one size; most numbers of heads and widths have fewer divisors."""
MAX_HEADS = 128
"""The most heads that are tried, or the most for each KV head."""
MAX_MAPS = 2000
"""The most maps that are tried between two tensors."""


class PartMap:
    """A tensor of the second checkpoint made of some of the first, for one layout and certain sizes.

    Parts are called by their terms, and tensors of the first by these or by `row 0`, `row 1`: the map is that of all
    tensors of these shapes.
    """

    def __init__(self, mine: Iterable[Stored], theirs: Stored, laid: Sequence[LaidTensor], sizes: Sizes) -> None:
        """`laid` are the fused tensors on either side; the pattern of the last one says what the map is."""
        self.mine = tuple(mine)
        self.theirs = theirs
        self.laid, self._content, self.all_sizes = laid, laid[-1].content, sizes
        self.place = lru_cache(maxsize=None)(self._place)

    def named(self, names: Mapping[str, str], new: str) -> tuple[tuple[Stored, ...], Stored]:
        """The tensors of the first and of the second by their names there."""
        mine = (Stored(names[one.name], one.shape, one.pieces) for one in self.mine)
        return tuple(mine), Stored(new, self.theirs.shape, self.theirs.pieces)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes that the shapes alone do not show."""
        return {word: size for word, size in rows.used(self._content, self.all_sizes).items() if word not in UNSAID}

    def against(self, known: Facts) -> str | None:
        """What facts say of the sizes other than this map: `heads=4, head_dim=16`; "" where they agree, else None."""
        every = [other_sizes(one, self.all_sizes, known) for one in self.laid]
        other = ", ".join(dict.fromkeys(filter(None, every)))
        return None if not other and None in every else other

    @property
    def ones(self) -> int:
        """How many sizes are 1, as of a layout with one chunk: another layout says the same in fewer words."""
        return sum(size == 1 for size in self.sizes.values())

    @property
    def words(self) -> str:
        """The pattern and its sizes."""
        said = " ".join(f"{word}={size}" for word, size in self.sizes.items() if size > 1)
        return f"{self._content}, {said}" if said else self._content

    def _place(self, element: int) -> ElementPlace | None:
        """Where an element of the second is in the first; None where no tensor of the first has it."""
        return origin(element, self.theirs, self._held)

    @cached_property
    def _held(self) -> Mapping[str, Sequence[HeldPiece]]:
        return held(self.mine)


class PartMaps(tuple[PartMap, ...]):
    """The maps between tensors of some shapes; where each says that some elements are is the same for all of these."""

    def where(self, holds: Callable[[int, ElementPlace], bool]) -> Iterator[PartMap]:
        """The maps whose places hold: whether an element of the second is at a place of the first."""
        left: Iterable[PartMap] = self
        for element in self._elements:  # the first elements rule out most maps, many of them at once
            places = {one.place(element) for one in left}
            held = {place for place in places if place is not None and holds(element, place)}
            left = [one for one in left if one.place(element) in held]
        yield from left

    @cached_property
    def _elements(self) -> Sequence[int]:
        numel = prod(self[0].theirs.shape) if self else 0
        chance = Random(numel)
        return (numel - 1, *(chance.randrange(numel) for _ in range(POINTS))) if self else ()


UNSAID = ("in", "out", "half", "two", "rest", "q_rows", "k_rows", "v_rows", "taps", "width")
"""Sizes that a shape shows, or that follow from others."""


class FusedShape(NamedTuple):
    """A fused tensor by its row of a layout and its shape."""

    layout: str
    row: int
    suffix: str
    shape: Shape

    def pattern(self) -> tuple[str, int]:
        """Its pattern, and the axis along which blocks follow each other; LayoutError for a bias that has none."""
        layout = find_part_layout(self.layout)
        assert layout is not None
        return pattern_of(layout.tensors[self.row], self.suffix)


PartShapes = tuple[tuple[str, int, Shape], ...]
"""(term, how many experts, the shape of one) of each part"""


@lru_cache(maxsize=KEPT)
def of_parts(fused: FusedShape, parts: PartShapes, wanted: str) -> PartMaps:
    """The maps between a fused tensor and its parts, for all sizes that their shapes allow.

    The second checkpoint has the fused tensor, or, if `wanted` is the name of a part, this part.
    """
    if not wanted:
        return _joined(fused, parts)
    each = ((next(part for part in one.mine if part.name == wanted), one) for one in _joined(fused, parts))
    return PartMaps(PartMap([one.theirs], part, one.laid, one.all_sizes) for part, one in each)


@lru_cache(maxsize=KEPT)
def _joined(fused: FusedShape, parts: PartShapes) -> PartMaps:
    """A fused tensor of its parts, for all sizes that their shapes allow."""
    try:
        content, along = fused.pattern()
    except LayoutError:
        return PartMaps()
    content = patterns.loosened(content)
    terms = patterns.terms(content)
    given = {
        term: tuple(PartTensor(f"{term} {k}", patterns.axes_of(term, content), shape) for k in range(count))
        for term, count, shape in parts
        if term in terms
    }
    if len(given) != len(terms):
        return PartMaps()
    every = [part for own in given.values() for part in own]
    start = Sizes({patterns.EXPERTS: len(given[terms[0]])} if patterns.has_experts(content) else {})

    def made(sizes: Sizes) -> PartMap:
        keys = [part for term, own in given.items() if term != "v" for part in own]
        sizes = rows.learned(_with_values(rows.learned(sizes, keys), given), every)
        stored = rows.stored("row 0", content, along, given, sizes=sizes)
        if stored.shape != fused.shape:
            raise LayoutError("another shape")
        mine = [whole(part.name, part.shape) for part in every]
        return PartMap(mine, stored, [LaidTensor("row 0", content, along, stored.shape)], sizes)

    found = _tried(made, start, lambda word, sizes: _lengths(word, sizes, given, fused.shape))
    return PartMaps(islice(found, MAX_MAPS))


def _with_values(sizes: Sizes, given: Mapping[str, tuple[PartTensor, ...]]) -> Sizes:
    """Sizes with the width of a head's values as their own tensor shows it: that of keys is assumed elsewhere."""
    if "v" not in given or "value_dim" in sizes.known or not sizes.knows("kv_heads"):
        return sizes
    width, rest = divmod(given["v"][0].shape[0], sizes.of("kv_heads"))
    return sizes if rest or not width else sizes.with_one("value_dim", width)


@lru_cache(maxsize=KEPT)
def keeps_rows(fused: FusedShape, term: str) -> bool:
    """Whether a fused matrix holds the rows of a part as they are, in any order."""
    try:
        content, along = fused.pattern()
    except LayoutError:
        return False
    inner = patterns.groups(patterns.axes_of(term, content))[1:]
    found = [block.axes for block in blocks(patterns.parsed(content)) if block.terms[0][1] == term]
    return along == 0 and all(axes[1:] == inner for axes in found)


def is_of_rows(*fused: FusedShape) -> bool:
    """Whether the blocks of fused tensors follow each other along their first axis."""
    try:
        return all(one.pattern()[1] == 0 for one in fused)
    except LayoutError:
        return False


@lru_cache(maxsize=KEPT)
def between(mine: tuple[FusedShape, ...], other: FusedShape) -> PartMaps:
    """The maps between fused tensors of a module and one of another layout, for all sizes that their shapes allow."""
    try:
        ways = [LaidTensor(f"row {k}", *one.pattern(), one.shape) for k, one in enumerate((*mine, other))]
    except LayoutError:
        return PartMaps()
    wanted = set(patterns.terms(ways[-1].content))
    if not wanted <= {term for way in ways[:-1] for term in patterns.terms(way.content)}:
        return PartMaps()
    ways = [way for way in ways if wanted.intersection(patterns.terms(way.content))]
    lengths = sorted({length for way in ways for size in way.shape for length in divisors(size)})[:MAX_DIVISORS]
    unseen = {way: way.unseen for way in ways}
    order = sorted(ways, key=lambda way: (bool(unseen[way]), -len(way.shape)))

    def made(sizes: Sizes) -> PartMap:
        for way in order:
            if unseen[way]:
                sizes.of(unseen[way])
            sizes = rows.solved(way.name, way.content, way.along, way.shape, sizes=sizes)
        *held, there = (_alone(way, sizes) for way in ways)
        return PartMap(held, there, ways, sizes)

    def can_fit(sizes: Sizes) -> bool:
        return all(rows.can_fit(way.content, way.along, way.shape, sizes=sizes) for way in ways)

    def of(word: str, sizes: Sizes) -> Iterable[int]:
        return (length for length in every(word, sizes) if can_fit(sizes.with_one(word, length)))

    def every(word: str, sizes: Sizes) -> Sequence[int]:
        if word == "rotary":
            return _rotary(sizes.of("head_dim"))
        if word == "heads":  # beside keys and values, they need divide no number of rows
            step = sizes.of("kv_heads") if sizes.knows("kv_heads") else 1
            return range(step, MAX_HEADS * step + 1, step)
        if word == "kv_heads" and sizes.knows("heads"):
            return divisors(sizes.of("heads"))
        repeated = [way.shape[way.along] for way in ways if word in way.repeated]
        return divisors(gcd(*repeated)) if repeated else lengths

    return PartMaps(islice(_tried(made, Sizes({}), of), MAX_MAPS))


class LaidTensor(NamedTuple):
    """A fused tensor, its pattern and its shape."""

    name: str
    content: str
    along: int
    """The axis along which blocks follow each other."""
    shape: Shape

    @property
    def repeated(self) -> tuple[str, ...]:
        """The axes for each of which its blocks are repeated: their number divides its rows."""
        first, *others = patterns.parsed(self.content)
        return first.axes if isinstance(first, Repeated) and not others else ()

    @property
    def unseen(self) -> str:
        """The axis of its braces on which its shape does not hang."""
        words = {"chunks": "chunks", "value_group": "linear_key_heads"}
        return next((word for sign, word in words.items() if sign in self.content), "")


def _alone(way: LaidTensor, sizes: Sizes) -> Stored:
    """A fused tensor without its parts, which are called like the terms of its pattern."""
    return _of_sizes(way, tuple(rows.used(way.content, sizes).items()))


@lru_cache(maxsize=KEPT_STORED)
def _of_sizes(way: LaidTensor, known: tuple[tuple[str, int], ...]) -> Stored:
    """As `_alone`: the other layouts with which a layout is tried ask for the same sizes again."""
    content = way.content
    sizes = rows.per_head(content, Sizes(dict(known)))
    count = sizes.of(patterns.EXPERTS) if patterns.has_experts(content) else 1
    parts = {
        term: tuple(PartTensor(f"{term} {k}", axes, rows.part_shape(axes, sizes)) for k in range(count))
        for term in patterns.terms(content)
        for axes in (patterns.axes_of(term, content),)
    }
    stored = rows.stored(way.name, content, way.along, parts, sizes=sizes)
    if stored.shape != way.shape:
        raise LayoutError("another shape")
    return stored


def _tried(
    make: Callable[[Sizes], Made], sizes: Sizes, lengths: Callable[[str, Sizes], Iterable[int]]
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


def _lengths(word: str, sizes: Sizes, parts: Mapping[str, tuple[PartTensor, ...]], shape: Shape) -> Sequence[int]:
    """The lengths that an axis can have: what divides every axis of the parts that it is in."""
    if word == "rotary":
        return _rotary(sizes.of("head_dim"))
    found = 0
    for term, own in parts.items():
        for group, length in zip(patterns.groups(PARTS[term]), own[0].shape, strict=False):
            if any(word == one or any(word in split for split in COMPOSED.get(one, ())) for one in group):
                found = gcd(found, length)
    return divisors(found or gcd(*shape[:1]))


def _rotary(head: int) -> Sequence[int]:
    """How many elements of a head RoPE rotates: all, or a share that models have."""
    return list(dict.fromkeys(size for size in (head, head // 2, head // 4, 3 * head // 4) if size and not size % 2))


@lru_cache(maxsize=KEPT_STORED)
def divisors(number: int) -> Sequence[int]:
    """The divisors of a number, the smallest first, without itself and 1 at the end.

    >>> divisors(12)
    (2, 3, 4, 6, 12, 1)
    """
    low = [k for k in range(1, min(number, 1 << 16) + 1) if k * k <= number and not number % k]
    every = sorted({*low, *(number // k for k in low)})
    return (*every[1:], *every[:1])[:MAX_DIVISORS]


# --- Whether a map that fits the bytes has the sizes that a config.json says -----------------------------------------
#
#     conv1d.weight   88 rows, and q, k and v of 30, 30 and 28 rows hold all of them in order
#     config.json     24, 24 and 40 rows, which are 88, too: a loader cuts elsewhere
#
# A config under which the tensor has another length says nothing of it: a shard, or queries with gates among them.


def other_sizes(laid: LaidTensor, sizes: Sizes, known: Facts) -> str | None:
    """What facts say of the sizes other than a map does, `heads=4, head_dim=16`; "" where the two agree.

    None where facts lack a size, or the tensor has another length under them.  Nobody says how many chunks there are,
    so this number is the map's.
    """
    items = patterns.parsed(laid.content)
    every = list(_counted(items, laid.along))
    words = dict.fromkeys(word for group in every for word in group)
    try:
        if "chunks" in words and "chunks" not in known.sizes:
            known = Facts({**known.sizes, "chunks": sizes.of("chunks")}, known.said)
        said = Sizes({word: _said(word, known) for word in words})
        if extent(items, laid.along, said) != laid.shape[laid.along]:
            return None
        other = [group for group in every if sizes.product(group) != said.product(group)]
    except LayoutError:
        return None
    return ", ".join(f"{word}={said.of(word)}" for word in dict.fromkeys(word for group in other for word in group))


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


def _places(term: str) -> dict[str, Shape]:
    """{word: where it is in the rows of a part}, the slowest first."""
    found: dict[str, Shape] = {}
    todo: list[tuple[str, Shape]] = [(word, (k,)) for group in groups(PARTS[term]) for k, word in enumerate(group)]
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


# --- Where one element of a tensor is in others that hold the same parts, without making the map of all elements ------
#
# B[5, 7] of qkv_proj  ->  k[1, 7]  ->  A[1, 7] of k_proj


class _DigitStep(NamedTuple):
    """A digit of a part's index, as steps in a flat tensor."""

    step: int
    length: int
    part_axis: int
    weight: int
    """How much one of it counts in the index along that axis of the part."""


class ElementPlace(NamedTuple):
    """An element of a tensor, counted row by row."""

    name: str
    element: int


HeldPiece = tuple[str, Piece, Shape]
"""A tensor, a piece that it holds, and its shape."""


def origin(element: int, theirs: Stored, mine: Mapping[str, Sequence[HeldPiece]]) -> ElementPlace | None:
    """Where an element of a tensor is among pieces {part: [(tensor, piece, shape of the tensor)]}; None if nowhere."""
    strides = contiguous_strides(theirs.shape)
    for piece in theirs.pieces:
        index = _index(element, piece, strides)
        if index is None:
            continue
        for name, held, shape in mine.get(piece.part, ()):
            there = _element(index, held, contiguous_strides(shape))
            if there is not None:
                return ElementPlace(name, there)
    return None


def held(tensors: Iterable[Stored]) -> dict[str, list[HeldPiece]]:
    """{part: [(tensor, piece, shape of the tensor)]}"""
    return grouped((piece.part, (one.name, piece, one.shape)) for one in tensors for piece in one.pieces)


def _index(element: int, piece: Piece, strides: Sequence[int]) -> list[int] | None:
    """The index in a part of an element of a tensor; None if the piece does not hold it."""
    rest = element - sum(k * stride for k, stride in zip(piece.at, strides, strict=True))
    if rest < 0:
        return None
    index = list(piece.start)
    for axis in sorted(_axes(piece.digits, strides), reverse=True):
        value, rest = divmod(rest, axis.step)
        if value >= axis.length:
            return None
        index[axis.part_axis] += value * axis.weight
    return None if rest else index


def _axes(digits: Sequence[Digits], strides: Sequence[int]) -> Iterable[_DigitStep]:
    for part_axis, own in enumerate(digits):
        weight = prod(digit.length for digit in own)
        for digit in own:
            weight //= digit.length
            if digit.length > 1:
                yield _DigitStep(digit.step * strides[digit.axis], digit.length, part_axis, weight)


def _element(index: Sequence[int], piece: Piece, strides: Sequence[int]) -> int | None:
    """The element of a tensor that is an index of a part; None if the piece does not hold it."""
    found = sum(k * stride for k, stride in zip(piece.at, strides, strict=True))
    for k, start, own in zip(index, piece.start, piece.digits, strict=True):
        rest, weight = k - start, prod(digit.length for digit in own)
        if not 0 <= rest < weight:
            return None
        for digit in own:
            weight //= digit.length
            value, rest = divmod(rest, weight)
            found += value * digit.step * strides[digit.axis]
    return found


# --- Which tensors of two checkpoints could be parts, and which fused tensors of them, by their names ----------------


WEIGHT = "weight"
BARE = ("_weight", "_bias")
"""How a tensor's own name says what it is: `in_proj_weight`."""


class ModuleParts(NamedTuple):
    """Tensors that have the names of parts of one kind, in one module."""

    kind: str
    at: str
    suffix: str
    """`weight`, `bias`, or what else follows the names."""
    tensors: Mapping[str, Names]
    """{term: its tensors, one for each expert, else one}"""


class FusedTensorName(NamedTuple):
    """A tensor that has the name of a row of a layout."""

    layout: PartLayout
    row: FusedRow
    at: str
    suffix: str
    name: str


class FusedModule(NamedTuple):
    """The fused tensors of one layout in one module."""

    layout: PartLayout
    at: str
    suffix: str
    tensors: tuple[FusedTensorName, ...]

    @property
    def terms(self) -> set[str]:
        """The parts in them."""
        return {term for one in self.tensors for term in one.row.terms()}


def modules(tensors: Iterable[FusedTensorName]) -> list[FusedModule]:
    """Fused tensors by their modules, one for each row."""
    found: dict[tuple[str, str, str], dict[str, FusedTensorName]] = {}
    for one in tensors:
        found.setdefault((one.layout.name, one.at, one.suffix), {}).setdefault(one.row.name, one)
    every = [tuple(rows.values()) for rows in found.values()]
    return [FusedModule(rows[0].layout, rows[0].at, rows[0].suffix, rows) for rows in every]


def parts_in(names: Iterable[str]) -> dict[str, list[ModuleParts]]:
    """{kind: tensors with the names of all its parts}, in the order of the names."""
    every = list(names)
    return {kind.kind: list(_of_kind(every, kind)) for kind in all_groups()}


def _of_kind(names: Iterable[str], kind: PartGroup) -> Iterator[ModuleParts]:
    """The groups of one kind that have every part, and as many experts of each."""
    ways = _ways(kind)
    children = {child for way in ways for child in way}
    found: dict[tuple[str, str], dict[str, dict[int, str]]] = {}
    for base, expert, child, suffix, name in named_parts(names, children, kind):
        found.setdefault((base, suffix or WEIGHT), {}).setdefault(child, {})[expert] = name
    for (base, suffix), there in found.items():
        for way in ways:
            tensors = {term: there.get(child, {}) for term, child in zip(kind.parts, way, strict=True)}
            counts = {len(own) for own in tensors.values()}
            if counts == {0} or len(counts) > 1 or any(max(own) >= len(own) for own in tensors.values()):
                continue
            ordered = {term: tuple(own[k] for k in range(len(own))) for term, own in tensors.items()}
            yield ModuleParts(kind.kind, base, suffix, ordered)


def _ways(kind: PartGroup) -> tuple[Names, ...]:
    """The names of a kind's parts, in each way that files have them."""
    if kind.kind == "rope":
        return tuple(names[:2] for names in APART["qkv"])
    return tuple(kind.names)


def fused_in(names: Iterable[str]) -> list[FusedTensorName]:
    """The tensors that have the name of a row of a layout, once for each row, in the order of the layouts."""
    known = _rows()
    found = []
    for name in names:
        for at, child, suffix in _children(name):
            found += [
                (number, FusedTensorName(one, row, at, suffix, name)) for number, one, row in known.get(child, ())
            ]
    return [one for _, one in sorted(found, key=lambda item: item[0])]


@cache
def _rows() -> Mapping[str, list[tuple[int, PartLayout, FusedRow]]]:
    """{name of a fused tensor in its module: (number, layout, row)}"""
    found: dict[str, dict[tuple[str, str], tuple[int, PartLayout, FusedRow]]] = {}
    for number, layout in enumerate(all_part_layouts()):
        for k, row in enumerate(layout.tensors):
            own = {variant[k] for variant in variants_of(layout)}
            if layout.group == "rope":
                own |= {names[k] for names in APART["qkv"]}
            for name in own:
                found.setdefault(name, {})[layout.name, row.name] = (number, layout, row)
    return {name: list(rows.values()) for name, rows in found.items()}


def _children(name: str) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, what follows): `attn.in_proj_weight` is `in_proj` with `weight`, too."""
    known = _rows()
    words = name.split(".")
    for k, word in enumerate(words):
        at, rest = ".".join(words[:k]), ".".join(words[k + 1 :])
        if word in known:
            yield at, word, rest or WEIGHT
        if not rest:
            for end in BARE:
                if word.endswith(end) and word.removesuffix(end) in known:
                    yield at, word.removesuffix(end), end[1:]
