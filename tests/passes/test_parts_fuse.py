"""Fusing and taking apart by facts: the same pieces both ways, names, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import LayoutError
from paramtool.parts import patterns, rows
from paramtool.parts.layout import PartLayout, all_part_layouts, find_part_layout, group
from paramtool.parts.pieces import whole
from paramtool.parts.sizes import Sizes
from paramtool.passes.parts import find, fuse

NAMES: dict[str, str] = {}
Shapes = dict[str, tuple[int, ...]]
ATTENTION = [one for one in all_part_layouts() if one.group == "qkv"]


def layout(name: str) -> PartLayout:
    found = find_part_layout(name)
    assert found is not None
    return found


def shapes_of(heads: int, kv_heads: int, dim: int, at: str = "h.0") -> Shapes:
    rows = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    found: Shapes = {f"{at}.{part}_proj.weight": (count, 5) for part, count in rows.items()}
    return found | {f"{at}.{part}_proj.bias": (count,) for part, count in rows.items()}


def fused(shapes: Shapes, name: str, names: dict[str, str] = NAMES, **facts: int) -> list[fuse.Joint]:
    groups = find.apart(shapes, group(layout(name).group), (), "f")
    return [*fuse.fused(groups, layout(name), fuse.KnownParts(shapes, lambda at: facts, names))]


def unfused(shapes: Shapes, name: str, names: dict[str, str] = NAMES, **facts: int) -> list[fuse.Joint]:
    groups = find.fused(shapes, layout(name), (), "f")
    return [*fuse.unfused(groups, layout(name), fuse.KnownParts(shapes, lambda at: facts, names))]


def outline(joint: fuse.Joint) -> tuple[object, ...]:
    """A tensor with the boxes of its parts, however their indexes are written."""
    return joint.stored.name, joint.stored.shape, tuple((p.part, p.start, p.shape, p.at) for p in joint.stored.pieces)


@pytest.mark.parametrize("one", ATTENTION, ids=lambda one: one.name)
@given(kv_heads=st.integers(1, 3), dim=st.integers(1, 4))
def test_both_ways_say_the_same(one: PartLayout, kv_heads: int, dim: int) -> None:
    """What fusing makes has the pieces that unfusing finds in it, and the same parts."""
    heads = kv_heads if "per-head" in one.name or "per-element" in one.name else 2 * kv_heads
    facts = {"heads": heads, "kv_heads": kv_heads, "chunks": kv_heads, "head_dim": dim}
    shapes = shapes_of(heads, kv_heads, dim)
    there = fused(shapes, one.name, **facts)
    back = unfused({joint.stored.name: joint.stored.shape for joint in there}, one.name, **facts)
    assert {outline(joint) for joint in back} == {outline(joint) for joint in there}
    assert {part.name: part.shape for part in fuse.parts_of(back)} == shapes


@given(kv_heads=st.integers(1, 3), group_=st.integers(1, 3), dim=st.integers(1, 4))
def test_a_record_says_it_again(kv_heads: int, group_: int, dim: int) -> None:
    """The sizes that a joint keeps describe the same tensor without any other fact."""
    shapes = shapes_of(kv_heads * group_, kv_heads, dim)
    for joint in fused(shapes, "qkv-per-group", heads=kv_heads * group_, kv_heads=kv_heads):
        again = fuse.recorded(joint.described, shapes, is_fused=False)
        assert again.stored == joint.stored and again.apart == joint.apart


def test_plain_rows_need_no_fact() -> None:
    """Parts in whole runs are joined whatever their heads; taking them apart needs the number of rows of each."""
    weight, bias = fused(shapes_of(4, 2, 3), "qkv")
    assert weight.stored.shape == (24, 5) and bias.stored.shape == (24,)
    with pytest.raises(LayoutError, match="layout qkv needs"):
        unfused({"h.0.qkv_proj.weight": (24, 5)}, "qkv")
    found = unfused({"h.0.qkv_proj.weight": (24, 5)}, "qkv", heads=4, kv_heads=2)
    assert [part.shape for part in fuse.parts_of(found)] == [(12, 5), (6, 5), (6, 5)]


def test_a_layout_per_group_needs_its_groups() -> None:
    with pytest.raises(LayoutError) as error:
        fused(shapes_of(4, 2, 3), "qkv-per-group")
    assert "needs" in error.value.message and "--spec" in error.value.hint


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"heads": 5, "kv_heads": 2}, "5"),
        ({"heads": 4, "kv_heads": 3}, "3"),
        ({"heads": 4, "kv_heads": 2, "head_dim": 4}, "head_dim=4"),
    ],
)
def test_facts_that_contradict_shapes(facts: dict[str, int], says: str) -> None:
    for name in ("qkv", "qkv-per-group"):
        with pytest.raises(LayoutError, match=says):
            fused(shapes_of(4, 2, 3), name, **facts)
        with pytest.raises(LayoutError):
            unfused({"h.0.qkv_proj.weight": (23, 5)}, name, heads=4, kv_heads=2)


def test_names() -> None:
    names = {"qkv_proj": "mix", "q_proj": "queries"}
    assert {one.stored.name for one in fused(shapes_of(2, 2, 1), "qkv", names)} == {"h.0.mix.weight", "h.0.mix.bias"}
    found = unfused({"h.0.qkv_proj.weight": (6, 5)}, "qkv", names, heads=2, kv_heads=2)
    assert [part.name for part in fuse.parts_of(found)] == [
        "h.0.queries.weight", "h.0.k_proj.weight", "h.0.v_proj.weight"
    ]  # fmt: skip


def test_experts_of_another_orientation_are_refused() -> None:
    """A stack [E, 2F, N] is no [E, N, 2F], where the two widths differ."""
    shapes: Shapes = {"e.gate_up_proj": (3, 8, 5), "e.down_proj": (3, 5, 4)}
    assert len(fuse.parts_of(unfused(shapes, "experts"))) == 9
    with pytest.raises(LayoutError):
        unfused(shapes, "experts-transposed")


@given(st.sampled_from(["qkv", "qkv-conv1d", "kv", "qk"]))
def test_loosened_patterns_are_the_same_rows(name: str) -> None:
    """Where no head is split, rows are rows: the pieces are those of the whole pattern."""
    (row,) = layout(name).tensors
    loose = patterns.loosened(row.content)
    assert ("heads" not in loose and "q_rows" in loose) or "k_rows" in loose
    known = Sizes({"heads": 4, "kv_heads": 2, "head_dim": 3, "in": 5})
    shapes = {term: rows.part_shape(patterns.PARTS[term], known) for term in row.terms()}
    made = []
    for content in (row.content, loose):
        parts = {t: [rows.PartTensor(t, patterns.axes_of(t, content), shape)] for t, shape in shapes.items()}
        made.append(rows.stored("x", content, row.along, parts, sizes=known))
    strip = [
        (one.shape, [(p.part, p.shape, p.at) for p in one.pieces]) for one in made
    ]  # fmt: skip
    assert strip[0] == strip[1]
    assert {whole(t, shape).shape for t, shape in shapes.items()} == {p.shape for p in made[1].pieces}


def test_patterns_that_split_heads_stay() -> None:
    for name in ("qkv-per-head", "qkv-per-group", "rope-pairs", "heads-by-position"):
        for row in layout(name).tensors:
            loose = patterns.loosened(row.content)
            assert loose == row.content or "value_dim" in row.content
