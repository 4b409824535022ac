"""Names of parts, maps of all sizes, and where one element is: without files."""

from __future__ import annotations

import numpy as np
import pytest

from paramtool.passes.diff import part_maps, positions
from paramtool.passes.diff.part_names import fused_in, modules, parts_in
from tests.parts.references import fused

SIZES = {"heads": 6, "kv_heads": 2, "head_dim": 4, "value_dim": 4, "chunks": 2}
LAYOUTS = ("qkv", "qkv-per-group", "qkv-per-chunk", "qvk-per-chunk")


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_of_the_maps_is_the_reference(layout: str) -> None:
    """All sizes are tried, and the points of the one that is meant are where NumPy has these elements."""
    parts = {"q": np.arange(24 * 3).reshape(24, 3), "k": 100 + np.arange(8 * 3).reshape(8, 3)}
    parts["v"] = 200 + np.arange(8 * 3).reshape(8, 3)
    (wanted,) = fused(layout, parts, SIZES)
    shapes = tuple((term, 1, array.shape) for term, array in parts.items())
    maps = part_maps.of_parts(part_maps.FusedShape(layout, 0, "weight", wanted.shape), shapes, "")
    flat = {f"{term} 0": array.reshape(-1) for term, array in parts.items()}

    def is_reference(one: part_maps.PartMap) -> bool:
        held = positions.held(one.mine)
        places = [positions.origin(k, one.theirs, held) for k in range(wanted.size)]
        return all(
            place is not None and flat[place.name][place.element] == element
            for place, element in zip(places, wanted.reshape(-1), strict=True)
        )

    assert any(is_reference(one) for one in maps)
    assert len({one.points for one in maps}) <= len(maps)


@pytest.mark.parametrize("number", [1, 2, 12, 97, 6144])
def test_divisors(number: int) -> None:
    assert sorted(part_maps.divisors(number)) == [k for k in range(1, number + 1) if not number % k]
