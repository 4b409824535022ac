"""Rows: a pattern, sizes and the parts' own shapes give the pieces of one tensor.

    q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in]      Phi-3: one below the other
    {heads: q[head_dim in] k[head_dim in] v[head_dim in]}                            GPT-NeoX: for each head
    {kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]}                Falcon-40B: for each group
    q[in (heads head_dim)] k[in (kv_heads head_dim)] v[in (kv_heads value_dim)]      GPT-2: transposed, along axis 1
    {ffn: gate[1 in] up[1 in]}                                                       gpt-oss: interleaved
    gate[experts ffn in] up[experts ffn in]                                          a stack of experts, along axis 1

The language is that of `layouts.pattern`, with the words of `sizes`.  `q.rot[...]` and `q.rest[...]` are the elements
of each head that RoPE rotates and the others.  An axis of a block that the part does not have is a repetition: the
tensor holds the same elements several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, product
from math import lcm, prod
from typing import NamedTuple

from paramtool.errors import LayoutError, UsageError, plural
from paramtool.layouts.pattern import Block, Items, Repeated, Vocabulary, parse
from paramtool.lazy_dataclass import dataclass
from paramtool.parts.pieces import Digit, Digits, Piece, Stored
from paramtool.parts.sizes import CHECK, COMPOSED, MEANINGS, Sizes, UnknownSize

WORDS = Vocabulary(frozenset(), frozenset(), frozenset())
PARTS: Mapping[str, str] = {
    "q": "(heads head_dim) in",
    "k": "(kv_heads head_dim) in",
    "v": "(kv_heads value_dim) in",
    "gate": "ffn in",
    "up": "ffn in",
    "down": "out ffn",
    "o": "out (heads value_dim)",
    "z": "(heads head_dim) in",
    "s": "heads in",
    "q_conv": "(linear_key_heads linear_key_dim) 1 taps",
    "k_conv": "(linear_key_heads linear_key_dim) 1 taps",
    "v_conv": "(linear_value_heads linear_value_dim) 1 taps",
    "linear_q": "(linear_key_heads linear_key_dim) in",
    "linear_k": "(linear_key_heads linear_key_dim) in",
    "linear_v": "(linear_value_heads linear_value_dim) in",
    "linear_z": "(linear_value_heads linear_value_dim) in",
    "linear_b": "linear_value_heads in",
    "linear_a": "linear_value_heads in",
    "q_a": "q_rank in",
    "kv_a": "kv_joint in",
    "latent": "kv_rank in",
    "k_rope": "rope in",
    "k_nope": "(heads nope) in",
    "v_b": "(heads value_dim) in",
    "q_nope": "(heads nope) in",
    "q_rope": "(heads rope) in",
    "ssm_x": "inner in",
    "ssm_z": "inner in",
    "ssm_b": "(groups state) in",
    "ssm_c": "(groups state) in",
    "ssm_dt": "state_heads in",
    "dt_low": "dt_rank in",
    "b_state": "state in",
    "c_state": "state in",
    "x_conv": "inner 1 taps",
    "b_conv": "(groups state) 1 taps",
    "c_conv": "(groups state) 1 taps",
    "conv": "channels 1 taps",
    "mlp": "ffn in",
    "shift": "width in",
    "scale": "width in",
}
"""{part: the axes of its own tensor}: those of a Linear of PyTorch, [outputs, inputs]."""
EXPERTS = "experts"
"""The axis over which parts of one name are separate tensors, one for each expert."""
SLICES: Mapping[str, tuple[str, str, str]] = {
    "rot": ("head_dim", "", "rotary"),
    "rest": ("head_dim", "rotary", "rest"),
}
"""{slice: (axis of the part, the axis whose length it begins after, the axis that has its length)}"""


@dataclass(frozen=True, slots=True)
class PartTensor:
    """A tensor that is one part."""

    name: str
    axes: str
    """Its axes as a pattern has them: `(heads head_dim) in`."""
    shape: tuple[int, ...]


Parts = Mapping[str, Sequence[PartTensor]]
"""{term of a pattern: its tensors, one for each expert, else one}"""


@cache
def groups(axes: str) -> tuple[tuple[str, ...], ...]:
    """The words of each axis.

    >>> groups("(heads head_dim) in")
    (('heads', 'head_dim'), ('in',))
    """
    items = parse(f"x[{axes}]", WORDS)
    assert isinstance(items[0], Block)
    return items[0].axes


@cache
def inputs(part: str) -> frozenset[str]:
    """The words of the axes of a part that its bias lacks: all but the first, and what they can be split into.

    >>> sorted(inputs("q")), sorted(inputs("q_conv"))
    (['in'], ['1', 'taps'])
    """
    found: set[str] = set()
    todo = [word for group in groups(PARTS[part])[1:] for word in group]
    while todo:
        word = todo.pop()
        found.add(word)
        todo += [inner for split in COMPOSED.get(word, ()) for inner in split if inner not in found]
    return frozenset(found)


def of_bias(axes: str) -> str:
    """The axes of the bias of a part: the first, of outputs or channels.

    >>> of_bias("(heads head_dim) in"), of_bias("channels 1 taps")
    ('(heads head_dim)', 'channels')
    """
    return _written(groups(axes)[:1])


def _written(axes: Iterable[tuple[str, ...]]) -> str:
    return " ".join(f"({' '.join(group)})" if len(group) > 1 else group[0] for group in axes)


def without(axes: str, word: str) -> str:
    """Axes without one.

    >>> without("(heads head_dim) in", "in")
    '(heads head_dim)'
    """
    return _written(group for group in groups(axes) if group != (word,))


def bias_pattern(content: str, along: int) -> tuple[str, int]:
    """The pattern of the bias that belongs to a weight, and the axis along which its blocks follow each other.

    LayoutError if rows are joined with inputs, of which a bias has none.

    >>> bias_pattern("{heads: q[head_dim in] k[head_dim in] v[head_dim in]}", 0)
    ('{heads: q[head_dim] k[head_dim] v[head_dim]}', 0)
    >>> bias_pattern("q[in (heads head_dim)] k[in (kv_heads head_dim)]", 1)
    ('q[(heads head_dim)] k[(kv_heads head_dim)]', 0)
    """
    first = next(_blocks(parse(content, WORDS)))
    of_first = inputs(first.terms[0][1])
    dropped = [k for k, group in enumerate(first.axes) if of_first.issuperset(group)]
    along = 0 if along in dropped else along - sum(k < along for k in dropped)
    return _without_inputs(content, parse(content, WORDS)), along


def _without_inputs(content: str, items: Items) -> str:
    texts = []
    for item in items:
        if isinstance(item, Repeated):
            texts.append(f"{{{' '.join(item.axes)}: {_without_inputs(content, item.items)}}}")
            continue
        term = item.terms[0][1]
        kept = [group for group in item.axes if not inputs(term).issuperset(group)]
        if not kept or any(not inputs(term).isdisjoint(group) for group in kept):
            raise LayoutError(f"no file is known that has a bias beside {content}")
        texts.append(f"{term}{'.' if item.gates else ''}{item.gates}[{_written(kept)}]")
    return " ".join(texts)


def _blocks(items: Items) -> Iterator[Block]:
    for item in items:
        if isinstance(item, Block):
            yield item
        else:
            yield from _blocks(item.items)


def terms(content: str) -> tuple[str, ...]:
    """The parts that a pattern names, in order."""
    return tuple(dict.fromkeys(block.terms[0][1] for block in _blocks(parse(content, WORDS))))


def has_experts(content: str) -> bool:
    """Whether the tensor holds several experts."""
    return EXPERTS in content.replace("(", " ").replace(")", " ").replace("[", " ").replace(":", " ").split()


def learned(sizes: Sizes, parts: Iterable[PartTensor]) -> Sizes:
    """The sizes that are known, with those that the shapes of parts show.

    LayoutError if a shape contradicts a size; a size that no shape shows alone stays unknown.
    """
    kinds: dict[tuple[str, tuple[int, ...]], PartTensor] = {}
    for part in parts:
        kinds.setdefault((part.axes, part.shape), part)
    waiting = [(part, group, length) for part in kinds.values() for group, length in _pairs(part)]
    again = True
    while again:
        again = False
        for part, group, length in waiting:
            unknown = [word for word in group if not sizes.knows(word)]
            product_ = prod(sizes.of(word) for word in group if sizes.knows(word))
            if not unknown and product_ != length:
                raise LayoutError(
                    f"{part.name!r} has {length} rows; expected {_said(group, sizes)} = {product_}"
                    if len(group) > 1
                    else f"{part.name!r} has shape {list(part.shape)}; expected {_said(group, sizes)}",
                    hint="the facts in config.json or --spec are those of another model or module; --at chooses",
                )
            if len(unknown) == 1:
                if not product_ or length % product_:
                    known = tuple(word for word in group if word != unknown[0])
                    raise LayoutError(
                        f"{part.name!r} has {length} rows, which do not divide by {_said(known, sizes)}",
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


def solved(name: str, content: str, along: int, shape: tuple[int, ...], *, sizes: Sizes) -> Sizes:
    """The sizes that are known, with those that the shape of a fused tensor shows.

    One size that its blocks have in common can be solved for along their axis.  UnknownSize if more are lacking,
    LayoutError if the shape contradicts the sizes.
    """
    items = parse(content, WORDS)
    sizes = per_head(content, sizes)
    for block in _blocks(items):
        if len(block.axes) != len(shape):
            raise LayoutError(
                f"{name!r} has shape {list(shape)}; expected {plural(len(block.axes), 'axis', 'axes')}: {content}"
            )
        for axis, group in enumerate(block.axes):
            if axis == along:
                continue
            unknown = [word for word in group if not sizes.knows(word)]
            rest = prod(sizes.of(word) for word in group if sizes.knows(word))
            if len(unknown) == 1 and rest and shape[axis] % rest == 0:
                sizes = sizes.with_one(unknown[0], shape[axis] // rest)
    lacking = _lacking(items, along, sizes)
    if not lacking:
        return sizes
    word, *others = lacking
    if others:
        raise UnknownSize(others[0] if word in ("head_dim", "rows", "ffn") else word)
    unit = _unit(sizes)
    once, twice = (_extent(items, along, sizes.with_one(word, length)) for length in (unit, 2 * unit))
    slope = (twice - once) // unit
    length = unit + (shape[along] - once) // slope if slope else 0
    if not slope or (shape[along] - once) % slope or length < 1:
        raise LayoutError(f"{name!r} has {shape[along]} rows, which do not divide as {content}", hint=CHECK)
    return sizes.with_one(word, length)


def _lacking(items: Items, along: int, sizes: Sizes) -> list[str]:
    """The sizes without which the length along the blocks' axis is not known."""
    found: list[str] = []
    probe = sizes
    while True:
        try:
            _extent(items, along, probe)
            return found
        except UnknownSize as error:
            found.append(error.word)
            probe = probe.with_one(error.word, _unit(sizes))


def _unit(sizes: Sizes) -> int:
    """A length that divides by all that a size is ever divided by."""
    return 2 * lcm(*(sizes.known.get(word, 1) for word in ("chunks", "kv_heads", "linear_key_heads", "rotary")))


def _extent(items: Items, along: int, sizes: Sizes) -> int:
    """The length of blocks one after the other."""
    total = 0
    for item in items:
        if isinstance(item, Block):
            total += prod(sizes.of(word) for word in item.axes[along])
        else:
            total += prod(sizes.of(word) for word in item.axes) * _extent(item.items, along, sizes)
    return total


def per_head(content: str, sizes: Sizes) -> Sizes:
    """Sizes for a pattern that gives each head its own key and value: then KV heads are heads.

    Likewise values are as wide as keys if they take turns.  LayoutError if the two are known to differ.
    """
    found = words(content)
    canonical = {word for term in terms(content) if term in PARTS for group in groups(PARTS[term]) for word in group}
    for word, other in AS_MANY.items():
        splits = {part for split in COMPOSED.get(word, ()) for part in split}
        if word not in canonical or other not in found or found & {word, *splits} or not sizes.knows(other):
            continue
        if not sizes.knows(word):
            sizes = sizes.with_one(word, sizes.of(other))
        elif sizes.of(word) != sizes.of(other):
            raise LayoutError(
                f"{content} needs {word} = {other}; found {word}={sizes.of(word)} {other}={sizes.of(other)}",
                hint="qkv-per-group is the layout for fewer KV heads" if word == "kv_heads" else "",
            )
    return sizes


AS_MANY = {"kv_heads": "heads", "value_dim": "head_dim"}
"""{axis: the axis of a pattern that stands for it, too, where the pattern has no own}"""


def words(content: str) -> set[str]:
    """The axes that a pattern names, those of braces included."""
    return _all_words(parse(content, WORDS))


def words_of(term: str, content: str) -> set[str]:
    """The axes of the blocks of one part."""
    own = (block for block in _blocks(parse(content, WORDS)) if block.terms[0][1] == term)
    return {word for block in own for group in block.axes for word in group}


def slice_words(content: str) -> set[str]:
    """The axes that say which elements of each head a pattern's slices are."""
    slices = [SLICES[block.gates] for block in _blocks(parse(content, WORDS)) if block.gates in SLICES]
    return {word for _, *lengths in slices for word in lengths if word}


def _all_words(items: Items) -> set[str]:
    found: set[str] = set()
    for item in items:
        if isinstance(item, Repeated):
            found |= set(item.axes) | _all_words(item.items)
        else:
            found |= {word for axes in item.axes for word in axes}
    return found


def part_shape(axes: str, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a part with these axes; UnknownSize if a size is lacking."""
    return tuple(prod(sizes.of(word) for word in group) for group in groups(axes))


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
"""So many pieces has a tensor at most, beside one for each part: two for each head where RoPE rotates a share of it,
one for each element of a head where a gate is repeated."""


def shape_of(name: str, content: str, along: int, sizes: Sizes) -> tuple[int, ...]:
    """The shape of the tensor that a pattern describes; LayoutError if its blocks do not fit together."""
    items = parse(content, WORDS)
    shapes = {_rest_of(block, along, sizes) for block in _blocks(items)}
    if len(shapes) > 1:
        raise LayoutError(f"{name!r}: the blocks of {content} do not fit together: {sorted(shapes)}")
    rest = shapes.pop()
    return (*rest[:along], _extent(items, along, sizes), *rest[along:])


MAX_PATTERN = 1000
"""The longest pattern of a record, in characters; those of the tables have 200 at most."""


def check(content: str, along: int, parts: Mapping[str, Sequence[object]]) -> None:
    """LayoutError if a pattern from a record is none, or if these are not its parts."""
    if len(content) > MAX_PATTERN:
        raise LayoutError(f"a pattern has {len(content)} characters; expected at most {MAX_PATTERN}")
    try:
        blocks = list(_blocks(parse(content, WORDS)))
    except UsageError as error:
        raise LayoutError(error.message) from None
    if unknown := [term for term in terms(content) if term not in PARTS]:
        raise LayoutError(f"pattern {content!r}: {unknown[0]!r} is no part; expected one of: {', '.join(PARTS)}")
    if any(along >= len(block.axes) or len(block.axes) != len(blocks[0].axes) for block in blocks):
        raise LayoutError(f"pattern {content!r}: its blocks have no axis {along} in common")
    if parts.keys() != set(terms(content)) or not all(parts.values()):
        raise LayoutError(
            f"pattern {content!r}: expected names for {', '.join(terms(content))}; found {', '.join(parts)}"
        )


def _rest_of(block: Block, along: int, sizes: Sizes) -> tuple[int, ...]:
    return tuple(
        prod(sizes.of(word) for word in group) for axis, group in enumerate(block.axes) if axis != along
    )  # fmt: skip


def _placed(
    items: Items, start: int, loops: Mapping[str, _AxisWay], along: int, *, parts: Parts, sizes: Sizes
) -> Iterator[Piece]:
    """The pieces of blocks that begin at `start` along their axis, inside braces that repeat them."""
    for item in items:
        if isinstance(item, Repeated):
            step = _extent(item.items, along, sizes)
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
    if EXPERTS in ways and not any(EXPERTS in group for group in groups(tensors[0].axes) if tensors):
        way = ways.pop(EXPERTS)
        if len(tensors) != sizes.of(EXPERTS):
            raise LayoutError(f"{len(tensors)} experts have {term!r}; expected experts={sizes.of(EXPERTS)}")
        yield from _of_experts(tensors, way, list(_of_part(tensors[0], block.gates, ways, at, sizes=sizes)))
        return
    for tensor in tensors[:1]:
        yield from _of_part(tensor, block.gates, ways, at, sizes=sizes)


def _of_experts(tensors: Iterable[PartTensor], way: _AxisWay, first: Sequence[Piece]) -> Iterator[Piece]:
    """The pieces of all experts, which are those of the first, further along."""
    for expert, tensor in enumerate(tensors):
        for piece in first:
            yield Piece(tensor.name, piece.start, piece.digits, _shifted(piece.at, way, expert))


def _shifted(at: tuple[int, ...], way: _AxisWay, value: int) -> tuple[int, ...]:
    return tuple(k + value * way.step if axis == way.axis else k for axis, k in enumerate(at))


def _of_part(
    tensor: PartTensor, slice_: str, ways: Mapping[str, _AxisWay], at: tuple[int, ...], *, sizes: Sizes
) -> Iterator[Piece]:
    """The pieces of one part in one block: several if it is a slice of each head, or repeated."""
    used: set[str] = set()
    axes = [list(_axis(group, slice_, ways, used, sizes=sizes)) for group in groups(tensor.axes)]
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
    digits = tuple(_digits((*_inside(length, ways), *group[k + 1 :]), ways, used, sizes))
    begin = sizes.of(after) if after else 0
    for values in product(*(range(sizes.of(word)) for word, _ in outer)):
        index = 0
        for (word, _), value in zip(outer, values, strict=True):
            index = index * sizes.of(word) + value
        start = (index * sizes.of(sliced) + begin) * inner
        yield _AxisRun(start, digits, tuple((way, value) for (_, way), value in zip(outer, values, strict=True)))


def _inside(word: str, ways: Mapping[str, _AxisWay]) -> tuple[str, ...]:
    """The axes of a slice: its own, or those that it is split into."""
    return ("two", "half") if word == "rotary" and word not in ways else (word,)


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
