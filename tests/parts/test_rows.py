"""Laws of rows: each layout is its reference, its places tile, both ways give the same bytes, and facts matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.errors import LayoutError
from paramtool.parts import patterns
from paramtool.parts import rows as part_rows
from paramtool.parts.layout import PartLayout, all_groups, all_part_layouts, group
from paramtool.parts.patterns import PARTS
from paramtool.parts.pieces import Stored, whole
from paramtool.parts.sizes import Sizes, UnknownSize
from paramtool.passes.parts import fuse
from paramtool.passes.parts.find import ApartGroup, FusedGroup, GroupMember
from tests.examples import examples
from tests.parts.moving import elements, moved, numbered
from tests.parts.references import REFERENCES, fused
from tests.parts.twins import of_one_shape, shapes, twins

LAYOUTS = all_part_layouts()
REPEATS = {"qkv-scalar-gate-expanded": "s"}
"""{layout: the part whose elements it holds several times}"""
UNBIASED = {"experts-flat": "down is transposed: its outputs are columns, and its rows are joined with experts"}
"""{layout: why no bias goes along}"""
by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def test_every_layout_has_a_reference() -> None:
    """And every group has a layout, every part a group, every layout a source."""
    assert REFERENCES.keys() == {layout.name for layout in LAYOUTS}
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)
    assert {layout.group for layout in LAYOUTS} == {one.kind for one in all_groups()}
    assert {term for one in all_groups() for term in one.parts} == PARTS.keys()
    assert all(layout.models and layout.source and layout.title for layout in LAYOUTS)


SAMPLE = {
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 6,
    "value_dim": 6,
    "rotary": 4,
    "chunks": 2,
    "ffn": 10,
    "experts": 3,
    "in": 5,
    "out": 5,
    "taps": 3,
    "linear_key_heads": 2,
    "linear_key_dim": 7,
    "linear_value_heads": 2,
    "linear_value_dim": 7,
    "q_rank": 9,
    "kv_rank": 11,
    "rope": 4,
    "nope": 6,
    "inner": 8,
    "state": 3,
    "groups": 2,
    "state_heads": 4,
    "dt_rank": 5,
    "width": 5,
    "channels": 4,
}
"""Sizes that every layout can have."""


@by_layout
def test_a_layout_says_the_facts_that_unfusing_needs(layout: PartLayout) -> None:
    """They are the sizes that no shape of its fused tensors shows, in the order in which a sample asks for them."""
    asked: dict[str, None] = {}
    sizes = Sizes({})
    for row in layout.tensors:
        count = SAMPLE["experts"] if patterns.has_experts(row.content) else 1
        parts = {
            term: [
                part_rows.PartTensor(f"{term}{k}", PARTS[term], part_rows.part_shape(PARTS[term], Sizes(SAMPLE)))
                for k in range(count)
            ]
            for term in row.terms()
        }
        shape = part_rows.stored(row.name, row.content, row.along, parts, sizes=Sizes(SAMPLE)).shape
        while True:
            try:
                sizes = part_rows.solved(row.name, row.content, row.along, shape, sizes=sizes)
                for term in row.terms():
                    part_rows.part_shape(PARTS[term], sizes)
                break
            except UnknownSize as error:
                asked[error.word] = None
                sizes = sizes.with_one(error.word, SAMPLE[error.word])
    assert layout.facts == tuple(asked)


def test_layouts_that_are_like_each_other_are_so_both_ways() -> None:
    like = {layout.name: layout.like for layout in LAYOUTS}
    for layout in LAYOUTS:
        assert all(layout.name in like[other] for other in layout.like), layout.name


def _one_head(layout: PartLayout) -> bool:
    """Whether queries, keys and values have as many heads of the same size."""
    contents = " ".join(row.content for row in layout.tensors)
    return "{heads: q[head_dim in] k" in contents or "{heads head_dim" in contents


@st.composite
def sizes_of(draw: st.DrawFn, layout: PartLayout, least: int = 1) -> dict[str, int]:
    """Facts and widths that a layout can have, in which no two axes need to be equal."""

    def some(most: int = 4) -> int:
        return draw(st.integers(least, most))

    chunks, group_, half = some(3), some(3), some(3)
    kv_heads = chunks * some(2)
    found = {
        "kv_heads": kv_heads,
        "heads": kv_heads * group_,
        "chunks": chunks,
        "rotary": 2 * half,
        "head_dim": 2 * half + draw(st.integers(0, 3)),
        "value_dim": some(5),
        "ffn": chunks * some(5),
        "experts": some(4),
        "in": some(5),
        "taps": some(4),
        "channels": some(4),
        "linear_key_heads": chunks * some(3),
        **{word: some(5) for word in ("q_rank", "kv_rank", "rope", "nope", "state", "dt_rank", "width")},
        **{word: chunks * some(3) for word in ("inner", "groups", "state_heads")},
        "linear_key_dim": some(4),
        "linear_value_dim": some(4),
    }
    found["linear_value_heads"] = found["linear_key_heads"] * some(3)
    found |= {"out": found["in"], "kv_joint": found["kv_rank"] + found["rope"]}
    if _one_head(layout):
        found |= {"heads": kv_heads, "value_dim": found["value_dim"] if "v[value_dim" in str(layout) else 0}
        found["value_dim"] = found["value_dim"] or found["head_dim"]
    return found


class Laid:
    """A group of parts of a layout, apart and fused by the reference, weights or biases."""

    def __init__(self, layout: PartLayout, sizes: Mapping[str, int], suffix: str) -> None:
        self.layout, self.sizes, self.suffix = layout, sizes, suffix
        self.kind = group(layout.group)
        known = Sizes(sizes)
        experts = range(sizes["experts"]) if self.kind.inside else (None,)
        self.parts: dict[str, tuple[Stored, ...]] = {}
        for term, child in self.kind.parts.items():
            shape = part_rows.part_shape(PARTS[term], known)
            shape = shape if suffix == "weight" else shape[:1]
            names = [".".join(filter(None, ("at", "" if k is None else f"{k}", child, suffix))) for k in experts]
            self.parts[term] = tuple(whole(name, shape) for name in names)
        self.apart = [one for tensors in self.parts.values() for one in tensors]
        self.arrays = numbered(self.apart)
        self.shapes = {one.name: one.shape for one in self.apart}
        self.fused = self._fused_by(sizes)

    @property
    def group(self) -> ApartGroup:
        member = GroupMember(self.suffix, {term: tuple(one.name for one in own) for term, own in self.parts.items()})
        return ApartGroup("at", tuple(self.kind.parts.values()), (member,))

    def joints(self, facts: Mapping[str, int]) -> list[fuse.Joint]:
        return [*fuse.fused([self.group], self.layout, fuse.KnownParts(self.shapes, lambda at: facts))]

    def apart_again(self, facts: Mapping[str, int]) -> dict[str, Any]:
        """{part: its array}, as unfusing the reference's arrays gives them."""
        names = [fuse.fused_name("at", row.name, self.suffix, row.is_bare) for row in self.layout.tensors]
        arrays = dict(zip(names, self.fused, strict=True))
        shapes = {name: array.shape for name, array in arrays.items()}
        found = FusedGroup("at", tuple(row.name for row in self.layout.tensors), ((f".{self.suffix}", tuple(names)),))
        joints = [*fuse.unfused([found], self.layout, fuse.KnownParts(shapes, lambda at: facts))]
        made = fuse.parts_of(joints)
        return moved([one.stored for one in joints], arrays, made)

    def has(self, found: Mapping[str, Any]) -> bool:
        """Whether these are the parts: names, shapes and numbers."""
        return {name: array.tolist() for name, array in found.items()} == {
            name: array.tolist() for name, array in self.arrays.items()
        }

    def is_fused_as_by(self, others: Mapping[str, int]) -> bool:
        """Whether the reference gives the same fused arrays by other sizes, and these parts are of those sizes."""
        known = Sizes(others)
        if self.kind.inside and self.sizes["experts"] != others["experts"]:
            return False
        if any(part_rows.part_shape(PARTS[term], known) != own[0].shape for term, own in self.parts.items()):
            return False
        return all(map(np.array_equal, self.fused, self._fused_by(others)))

    def _fused_by(self, sizes: Mapping[str, int]) -> Sequence[np.ndarray]:
        given = {term: [self.arrays[one.name] for one in tensors] for term, tensors in self.parts.items()}
        named = {term + "_" * (term == "s"): a if self.kind.inside else a[0] for term, a in given.items()}
        return fused(self.layout.name, named, sizes)


def facts_of(layout: PartLayout, sizes: Mapping[str, int]) -> dict[str, int]:
    """What somebody has to say: the facts that the layout asks for, and those that are not as usual."""
    words = {*layout.facts, "rope", "heads", "kv_heads", "value_dim", "head_dim", "rotary", "experts"}
    return {word: size for word, size in sizes.items() if word in words}


def suffixes(layout: PartLayout) -> st.SearchStrategy[str]:
    return st.sampled_from(["weight"] if layout.name in UNBIASED else ["weight", "bias"])


@pytest.mark.sample(7)
@by_layout
@given(data=st.data())
def test_a_layout_is_its_reference(layout: PartLayout, data: st.DataObject) -> None:
    """Fused by the table and fused by array operations are the same bytes, for weights and for biases."""
    sizes = data.draw(sizes_of(layout))
    laid = Laid(layout, sizes, data.draw(suffixes(layout)))
    joints = laid.joints(facts_of(layout, sizes))
    made = moved(laid.apart, laid.arrays, [one.stored for one in joints])
    assert [made[one.stored.name].tolist() for one in joints] == [array.tolist() for array in laid.fused]
    assert [one.stored.shape for one in joints] == [array.shape for array in laid.fused]


@pytest.mark.sample(5)
@by_layout
@given(data=st.data())
def test_places_tile(layout: PartLayout, data: st.DataObject) -> None:
    """Every element of a fused tensor belongs to one element of one part; every part is there, once unless repeated."""
    sizes = data.draw(sizes_of(layout))
    laid = Laid(layout, sizes, data.draw(suffixes(layout)))
    held: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for joint in laid.joints(facts_of(layout, sizes)):
        places = [
            (place, (piece.part, index)) for piece in joint.stored.pieces for index, place in elements(piece).items()
        ]
        assert sorted(place for place, _ in places) == [*np.ndindex(joint.stored.shape)]
        held.update(what for _, what in places)
    times = {
        name: laid.sizes["head_dim"] if term == REPEATS.get(layout.name) else 1
        for term, tensors in laid.parts.items()
        for name in [one.name for one in tensors]
    }
    assert held == {(one.name, index): times[one.name] for one in laid.apart for index in np.ndindex(one.shape)}


@pytest.mark.sample(6)
@by_layout
@given(data=st.data())
def test_there_and_back(layout: PartLayout, data: st.DataObject) -> None:
    """Taking apart what the reference fused gives the parts."""
    sizes = data.draw(sizes_of(layout))
    laid = Laid(layout, sizes, data.draw(suffixes(layout)))
    assert laid.has(laid.apart_again(facts_of(layout, sizes)))


@pytest.mark.parametrize("name", UNBIASED)
def test_a_bias_without_a_place_is_refused(name: str) -> None:
    layout = next(one for one in LAYOUTS if one.name == name)
    with pytest.raises(LayoutError, match="bias"):
        for row in layout.tensors:
            patterns.bias_pattern(row.content, row.along)


ALIKE = {
    ("qkv-per-element", "heads"): "head_dim follows, and elements of one head follow those of another",
    ("convs", "linear_value_heads"): "linear_value_dim follows, and values are what is not of queries and keys",
    ("linear-qkv", "linear_value_heads"): "the same",
    ("linear-qkv-z", "linear_key_heads"): "linear_key_dim follows: the gates show how many values there are",
    ("linear-qkv-z", "linear_key_dim"): "linear_key_heads follows from the gates, too",
    ("linear-qkv-z", "linear_value_heads"): "linear_value_dim follows from the gates, too",
    ("qkvz", "linear_value_heads"): "the same, with as many gates",
    ("qkvz-per-head", "linear_value_heads"): "the same for each key head",
    ("qkvz-per-chunk", "linear_value_heads"): "the same for each chunk",
    ("mla-down", "kv_rank"): "rope follows, and both are one part",
    ("mamba2-convs", "groups"): "the size of a group follows, and these are the same channels",
}
"""{(layout, fact): why another number, with what follows from it, is the same order}"""
MATTER = [(layout, word) for layout in LAYOUTS for word in dict.fromkeys(layout.facts)]
by_fact = pytest.mark.parametrize(("layout", "word"), MATTER, ids=lambda one: getattr(one, "name", one))


@pytest.mark.sample(8)
@by_fact
@settings(max_examples=examples(25))
@given(data=st.data())
def test_a_changed_fact_of_the_same_shape_gives_other_bytes(layout: PartLayout, word: str, data: st.DataObject) -> None:
    """Facts that a layout asks for decide: no refusal helps whoever says the wrong number, so the parts differ.

    Every example compares.  Pairs of `ALIKE` give the same bytes, or they would not be there.
    """
    sizes, others = data.draw(st.sampled_from(twins(layout, word)))
    laid = Laid(layout, sizes, "weight")
    changed = facts_of(layout, others)
    if data.draw(st.booleans()):
        changed.pop("head_dim", None)
    assert laid.has(laid.apart_again(changed)) is ((layout.name, word) in ALIKE)


@pytest.mark.sample(13)
@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one.facts], ids=lambda layout: layout.name)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_facts_of_one_shape_give_the_same_bytes_only_where_their_references_do(
    layout: PartLayout, data: st.DataObject
) -> None:
    """However many facts change together: heads with KV heads, a rank with another."""
    same = data.draw(st.sampled_from(of_one_shape(layout)))
    mine, other = (data.draw(st.sampled_from(same)) for _ in range(2))
    laid = Laid(layout, mine.sizes, "weight")
    assert laid.has(laid.apart_again(facts_of(layout, other.sizes))) is laid.is_fused_as_by(other.sizes)


@pytest.mark.sample(11)
@by_fact
@settings(max_examples=examples(25))
@given(data=st.data())
def test_a_changed_fact_of_another_shape_is_refused(layout: PartLayout, word: str, data: st.DataObject) -> None:
    """All facts are said, and one is wrong: refused, unless the tensors would have the same shapes."""
    sizes = data.draw(sizes_of(layout, least=2))
    laid = Laid(layout, sizes, "weight")
    sizes.pop("kv_joint")  # which nobody says: it follows
    changed = {**sizes, word: data.draw(st.integers(1, 40).filter(lambda number: number != sizes[word]))}
    try:
        there = shapes(layout, changed)
    except LayoutError:
        there = ()
    if there == shapes(layout, sizes):
        assert not laid.has(laid.apart_again(changed))
    else:
        with pytest.raises(LayoutError):
            laid.apart_again(changed)
