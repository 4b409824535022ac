"""Patterns: the language that says in which order a tensor holds the elements of its parts.

    q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in]      Phi-3: one below the other
    {heads: q[head_dim in] k[head_dim in] v[head_dim in]}                            GPT-NeoX: for each head
    {kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]}                Falcon-40B: for each group
    q[in (heads head_dim)] k[in (kv_heads head_dim)] v[in (kv_heads value_dim)]      GPT-2: transposed, along axis 1
    {ffn: gate[1 in] up[1 in]}                                                       gpt-oss: interleaved
    gate[experts ffn in] up[experts ffn in]                                          a stack of experts, along axis 1

The language is that of `layouts.pattern`, with the words of `sizes`.  `q.rot[...]` and `q.rest[...]` are the elements
of each head that RoPE rotates and the others.  An axis of a block that the part does not have is a repetition: the
tensor holds the same elements several times.  `rows` finds the sizes of a pattern, and the pieces of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache

from paramtool.errors import LayoutError, UsageError
from paramtool.layouts import pattern
from paramtool.layouts.pattern import Block, Items, Repeated, Words, blocks, parse
from paramtool.parts.sizes import COMPOSED, VOCABULARY

KEPT = 1024
"""Answers about this number of patterns are remembered."""


PARTS: Mapping[str, str] = VOCABULARY["parts"]
"""{part: the axes of its tensor}: those of a Linear of PyTorch, [outputs, inputs]."""
EXPERTS = "experts"
"""The axis over which parts of one name are separate tensors, one for each expert."""
SLICES: Mapping[str, tuple[str, str, str]] = {
    "rot": ("head_dim", "", "rotary"),
    "rest": ("head_dim", "rotary", "rest"),
}
"""{slice: (axis of the part, the axis whose length it begins after, the axis that has its length)}"""


def parsed(content: str) -> Items:
    """The blocks of a pattern; errors as of `layouts.pattern.parse`."""
    return parse(content, any_words=True)


@cache
def groups(axes: str) -> tuple[Words, ...]:
    """The words of each axis.

    >>> groups("(heads head_dim) in")
    (('heads', 'head_dim'), ('in',))
    """
    items = parsed(f"x[{axes}]")
    assert isinstance(items[0], Block)
    return items[0].axes


def _written(axes: Iterable[Words]) -> str:
    return " ".join(f"({' '.join(group)})" if len(group) > 1 else group[0] for group in axes)


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


def without(axes: str, word: str) -> str:
    """Axes without one.

    >>> without("(heads head_dim) in", "in")
    '(heads head_dim)'
    """
    return _written(group for group in groups(axes) if group != (word,))


@lru_cache(maxsize=KEPT)
def axes_of(term: str, content: str) -> str:
    """The axes of a part, given the pattern that it is in: without inputs for a bias, rows where they are not split.

    >>> axes_of("q", "q[q_rows in] k[k_rows in]"), axes_of("q", "{heads: q[head_dim] k[head_dim]}")
    ('q_rows in', '(heads head_dim)')
    """
    axes = split_axes(term, content)
    if f"{term}_rows" in words_of(term, content):
        return _written((f"{term}_rows",) if len(group) > 1 else group for group in groups(axes))
    return axes


def split_axes(term: str, content: str) -> str:
    """The axes of a part, given the pattern that it is in, with heads and their width also where these are not split.

    >>> split_axes("q", "q[q_rows in] k[k_rows in]"), split_axes("q", "q[q_rows] k[k_rows]")
    ('(heads head_dim) in', '(heads head_dim)')
    """
    axes = groups(PARTS[term])
    return _written(axes if inputs(term) & words_of(term, content) else axes[:1])


def bias_pattern(content: str, along: int) -> tuple[str, int]:
    """The pattern of the bias that belongs to a weight, and the axis along which its blocks follow each other.

    LayoutError if rows are joined with inputs, of which a bias has none.

    >>> bias_pattern("{heads: q[head_dim in] k[head_dim in] v[head_dim in]}", 0)
    ('{heads: q[head_dim] k[head_dim] v[head_dim]}', 0)
    >>> bias_pattern("q[in (heads head_dim)] k[in (kv_heads head_dim)]", 1)
    ('q[(heads head_dim)] k[(kv_heads head_dim)]', 0)
    """
    first = next(blocks(parsed(content)))
    of_first = inputs(first.terms[0][1])
    dropped = [k for k, group in enumerate(first.axes) if of_first.issuperset(group)]
    along = 0 if along in dropped else along - sum(k < along for k in dropped)
    return _without_inputs(content, parsed(content)), along


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


def loosened(content: str) -> str:
    """A pattern that asks for no more sizes than it needs: axes that no block splits or reorders are rows.

    >>> loosened("q[(heads head_dim) in] k[(kv_heads head_dim) in]")
    'q[q_rows in] k[k_rows in]'
    """
    texts = []
    for item in parsed(content):
        if not isinstance(item, Block):
            return content
        term = item.terms[0][1]
        whole_groups = {axes for axes in groups(PARTS[term]) if len(axes) > 1}
        if item.gates or (whole_groups and whole_groups.isdisjoint(item.axes)):
            return content
        axes = ((f"{term}_rows",) if axes in whole_groups else axes for axes in item.axes)
        texts.append(f"{term}[{_written(axes)}]")
    return " ".join(texts)


@lru_cache(maxsize=KEPT)
def terms(content: str) -> tuple[str, ...]:
    """The parts that a pattern names, in order."""
    return tuple(dict.fromkeys(block.terms[0][1] for block in blocks(parsed(content))))


@lru_cache(maxsize=KEPT)
def words(content: str) -> frozenset[str]:
    """The axes that a pattern names, those of braces included."""
    return frozenset(pattern.words(parsed(content)))


def counted(items: Items, along: int) -> Iterator[Words]:
    """For each block the axes whose product is its length along an axis, with those of the braces around it."""
    for item in items:
        if isinstance(item, Repeated):
            yield from ((*item.axes, *inner) for inner in counted(item.items, along))
        else:
            yield item.axes[along]


def words_of(term: str, content: str) -> set[str]:
    """The axes of the blocks of one part."""
    own = (block for block in blocks(parsed(content)) if block.terms[0][1] == term)
    return {word for block in own for word in block.words}


def slice_words(content: str) -> set[str]:
    """The axes that say which elements of each head a pattern's slices are."""
    slices = [SLICES[block.gates] for block in blocks(parsed(content)) if block.gates in SLICES]
    return {word for _, *lengths in slices for word in lengths if word}


def has_experts(content: str) -> bool:
    """Whether the tensor holds several experts."""
    return EXPERTS in content.replace("(", " ").replace(")", " ").replace("[", " ").replace(":", " ").split()


MAX_PATTERN = 1000
"""The longest pattern of a record, in characters; those of the tables have 200 at most."""


def check(content: str, along: int, parts: Mapping[str, Sequence[object]]) -> None:
    """LayoutError if a pattern from a record is not a pattern, or if these are not its parts."""
    if len(content) > MAX_PATTERN:
        raise LayoutError(f"a pattern has {len(content)} characters; expected at most {MAX_PATTERN}")
    try:
        found = list(blocks(parsed(content)))
    except UsageError as error:
        raise LayoutError(error.message) from None
    if unknown := [term for term in terms(content) if term not in PARTS]:
        raise LayoutError(f"pattern {content!r}: {unknown[0]!r} is not a part; expected one of: {', '.join(PARTS)}")
    if any(along >= len(block.axes) or len(block.axes) != len(found[0].axes) for block in found):
        raise LayoutError(f"pattern {content!r}: its blocks have no axis {along} in common")
    if parts.keys() != set(terms(content)) or not all(parts.values()):
        raise LayoutError(
            f"pattern {content!r}: expected names for {', '.join(terms(content))}; found {', '.join(parts)}"
        )
