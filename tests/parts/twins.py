"""Facts that give fused tensors of one shape: whoever takes the tensors apart by the wrong ones gets other parts.

Every combination of some small facts is laid out; those with the same shapes are twins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import permutations, product
from typing import NamedTuple

from paramtool.errors import LayoutError
from paramtool.parts import patterns
from paramtool.parts import rows as part_rows
from paramtool.parts.layout import PartLayout
from paramtool.parts.sizes import Sizes

Facts = Mapping[str, int]


class Choice(NamedTuple):
    """Facts that are tried."""

    said: Facts
    """`value_dim=0` is one that nobody says: it is head_dim."""
    sizes: Facts
    """All sizes that follow."""


FEW, SOME = (1, 2, 4), (1, 2, 3, 4, 6)
LENGTHS: Mapping[str, tuple[int, ...]] = {
    "heads": (2, 4, 6, 8),
    "kv_heads": FEW,
    "chunks": FEW,
    "head_dim": (1, *range(2, 17, 2)),
    "value_dim": (0, *SOME),
    "rotary": (2, 4, 6),
    "ffn": (*SOME, 8, 12),
    "experts": FEW,
    "linear_key_heads": FEW,
    "linear_key_dim": (2, 4),
    "linear_value_heads": FEW,
    "linear_value_dim": (1, 2, 3, 4, 6, 8),
    "q_rank": SOME,
    "kv_rank": SOME,
    "nope": SOME,
    "rope": SOME,
    "inner": (2, 4, 8),
    "groups": FEW,
    "state": SOME,
    "state_heads": (2, 4, 6, 8, 10, 12),
    "dt_rank": SOME,
}
"""{fact: the lengths that are tried}"""
UNMOVED: Mapping[str, Callable[[Facts], bool]] = {
    "kv": lambda facts: not facts["value_dim"],
    "kv-conv1d": lambda facts: not facts["value_dim"],
    "rope-pairs": lambda facts: facts["rotary"] == 2,
    "heads-by-position": lambda facts: facts["kv_heads"] in (1, facts["heads"]),
}
"""{layout: whether it is one order by these facts, whatever they are}: halves of a tensor, one pair, one group."""
ANY: Mapping[str, int] = {"in": 2, "out": 2, "taps": 2}
"""Lengths that every shape shows."""


def _words(layout: PartLayout) -> list[str]:
    """The facts on which the shapes of a layout's tensors depend, or the order in them."""
    found: set[str] = set()
    for row in layout.tensors:
        found |= patterns.words(row.content) | patterns.slice_words(row.content)
        found |= {word for term in row.terms() for group in patterns.groups(patterns.PARTS[term]) for word in group}
    splits = {"group": ("heads", "kv_heads"), "half": ("rotary",)}
    found |= {word for part in found for word in splits.get(part, ())}
    found |= {"kv_rank", "rope"} if "kv_joint" in found else set()
    return [word for word in LENGTHS if word in found]


def _complete(layout: PartLayout, facts: Facts) -> dict[str, int] | None:
    """Facts with those that follow from them, or None if the layout cannot have them."""
    sizes = Sizes({**ANY, **{word: length for word, length in facts.items() if length}})
    if "q" in {term for row in layout.tensors for term in row.terms()} and not _grouped(sizes):
        return None
    try:
        for row in layout.tensors:
            sizes = part_rows.per_head(row.content, sizes)
            for word in sorted(patterns.words(row.content) | patterns.slice_words(row.content)):
                sizes.of(word)
    except LayoutError:
        return None
    found = dict(sizes.known)
    if "head_dim" in found:
        found.setdefault("value_dim", found["head_dim"])
    return found


def _grouped(sizes: Sizes) -> bool:
    """Whether KV heads divide the heads."""
    return sizes.of("heads") % sizes.known.get("kv_heads", 1) == 0


def shapes(layout: PartLayout, sizes: Facts) -> tuple[tuple[int, ...], ...]:
    """The shapes of the fused tensors."""
    known = Sizes(sizes)
    return tuple(part_rows.shape_of(row.name, row.content, row.along, known) for row in layout.tensors)


@cache
def of_one_shape(layout: PartLayout) -> tuple[tuple[Choice, ...], ...]:
    """Facts of a layout by the shapes of its tensors, where several have the same."""
    found: dict[tuple[tuple[int, ...], ...], list[Choice]] = {}
    words = _words(layout)
    for lengths in product(*(LENGTHS[one] for one in words)):
        said = dict(zip(words, lengths, strict=True))
        complete, unmoved = _complete(layout, said), UNMOVED.get(layout.name)
        if complete and not (unmoved and unmoved(said)):
            found.setdefault(shapes(layout, complete), []).append(Choice(said, complete))
    return tuple(tuple(same) for same in found.values() if len(same) > 1)


@cache
def twins(layout: PartLayout, word: str) -> tuple[tuple[Facts, Facts], ...]:
    """Pairs of facts of one shape with another `word`, and with as few others changed as possible.

    Facts that the layout asks for count first, then those that follow from shapes.
    """
    asked = {*layout.facts} - {word}
    found: dict[tuple[int, int], list[tuple[Facts, Facts]]] = {}
    for same in of_one_shape(layout):
        for one, other in permutations(same, 2):
            if one.said[word] != other.said[word]:
                differ = {fact for fact in one.said if one.said[fact] != other.said[fact]} - {word}
                found.setdefault((len(differ & asked), len(differ - asked)), []).append((one.sizes, other.sizes))
    return tuple(found[min(found)]) if found else ()
