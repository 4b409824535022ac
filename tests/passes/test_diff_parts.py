"""Names of parts, maps of all sizes, and where one element is: without files."""

from __future__ import annotations

import pytest

from paramtool.parts import rows as part_rows
from paramtool.passes.diff import part_maps
from paramtool.passes.diff.part_maps import fused_in, modules, parts_in


def test_parts_and_fused_tensors_are_found_by_name() -> None:
    """A group that lacks a part is none; a fused name is one of each layout that has it."""
    whole = [f"h.0.attn.{name}_proj.weight" for name in "qkv"]
    (one,) = parts_in([*whole, "h.1.attn.q_proj.weight"])["qkv"]
    assert (one.at, one.suffix, [*one.tensors.values()]) == ("h.0.attn", "weight", [(name,) for name in whole])
    found = fused_in(["h.0.attn.in_proj_bias", "h.0.attn.o_proj.weight"])
    assert {row.suffix for row in found if row.name.endswith("in_proj_bias")} == {"bias"}
    assert len(modules(found)) == len(found)


def test_experts_are_one_group() -> None:
    names = [f"mlp.experts.{k}.{part}_proj.weight" for k in range(3) for part in ("gate", "up", "down")]
    (one,) = parts_in(names)["experts"]
    assert one.tensors["down"] == tuple(f"mlp.experts.{k}.down_proj.weight" for k in range(3))
    assert not parts_in(names[:-1])["experts"]


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_one_of_the_maps_is_that_of_the_heads(heads: int) -> None:
    """All divisors are tried; each element is where heads in turn have it: its query, its key, its value."""
    shapes = tuple((term, 1, (12, 2)) for term in "qkv")
    maps = part_maps.of_parts(part_maps.FusedShape("qkv-per-head", 0, "weight", (36, 2)), shapes, "")
    size = 12 // heads
    wanted = [f"{term} 0 {2 * (head * size + row) + column}" for head in range(heads) for term in "qkv"
              for row in range(size) for column in range(2)]  # fmt: skip

    def told(one: part_maps.PartMap) -> list[str]:
        held = part_maps.held(one.mine)
        places = (part_maps.origin(k, one.theirs, held) for k in range(72))
        return [f"{place.name} {place.element}" for place in places if place is not None]

    assert wanted in [told(one) for one in maps] and len(maps) == len(part_maps.divisors(12))


@pytest.mark.parametrize("number", [1, 2, 12, 97, 6144])
def test_divisors(number: int) -> None:
    assert sorted(part_maps.divisors(number)) == [k for k in range(1, number + 1) if not number % k]


@pytest.mark.sample(4)
@pytest.mark.parametrize("rows", [24, 40, 96])
@pytest.mark.parametrize(
    "mine, other", [("qkv", "qkv-per-group"), ("qkv-per-chunk", "qkv"), ("qkvz", "qkvz-per-chunk")]
)
def test_sizes_that_cannot_fit_are_left_out_and_no_others(
    mine: str, other: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sizes that are tried without the quick look give the same maps."""
    fused = [part_maps.FusedShape(layout, 0, "weight", (rows, 8)) for layout in (mine, other)]
    quick = part_maps.between.__wrapped__((fused[0],), fused[1])
    monkeypatch.setattr(part_rows, "can_fit", lambda *_, **__: True)
    assert [one.words for one in quick] == [one.words for one in part_maps.between.__wrapped__((fused[0],), fused[1])]
    assert quick


def test_a_tensor_with_fewer_axes_than_a_pattern_has_no_map() -> None:
    one, other = ((24, 8), (24,))
    fused = part_maps.FusedShape("qkv", 0, "weight", one), part_maps.FusedShape("qkv-conv1d", 0, "weight", other)
    assert part_maps.between((fused[0],), fused[1]) == part_maps.between((fused[1],), fused[0]) == ()
