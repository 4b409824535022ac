"""Companions of fused weights, by names and shapes: which belong together, which place they have, what is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import LayoutError
from paramtool.parts.layout import find_part_layout, group
from paramtool.parts.pieces import Stored, joined, whole
from paramtool.parts.schemes import Packing
from paramtool.passes.parts import find, following, fuse

Shapes = dict[str, tuple[int, ...]]
TILE = Packing(tile=(4, 4))
SCHEMES = {
    "gptq": lambda out, inside: {
        "qweight": (inside // 8, out), "qzeros": (2, out // 8), "scales": (2, out), "g_idx": (inside,)
    },
    "awq": lambda out, inside: {"qweight": (inside, out // 8), "qzeros": (2, out // 8), "scales": (2, out)},
    "fp8": lambda out, inside: {"weight": (out, inside), "weight_scale_inv": (out // 4, inside // 4)},
    "rows": lambda out, inside: {"weight": (out, inside), "weight_scale": (out, 1)},
    "nvfp4": lambda out, inside: {
        "weight_packed": (out, inside // 2), "weight_scale": (out, inside // 16), "weight_global_scale": (1,)
    },
}  # fmt: skip


def modules(scheme: str, rows: dict[str, int], at: str = "a") -> Shapes:
    return {
        f"{at}.{part}_proj.{suffix}": shape
        for part, out in rows.items()
        for suffix, shape in SCHEMES[scheme](out, 32).items()
    }


def fused(shapes: Shapes, name: str, **facts: int) -> dict[str, fuse.Joint]:
    layout = find_part_layout(name)
    assert layout is not None
    groups = find.apart(shapes, group("qkv"), (), "f")
    found = fuse.fused(groups, layout, fuse.KnownParts(shapes, lambda at: facts, packing=TILE))
    return {one.stored.name: one for one in found}


def places(one: Stored) -> list[tuple[str, int]]:
    """(part, row) of each row of a tensor, along its axis of outputs."""
    found: dict[int, tuple[str, int]] = {}
    for piece in one.pieces:
        for index in range(piece.shape[0]):
            at, rest = piece.at[0], index
            for digit in reversed(piece.digits[0]):
                rest, k = divmod(rest, digit.length)
                at += k * digit.step
            found[at] = (piece.part.split(".")[1][0], piece.start[0] + index)
    return [found[k] for k in sorted(found)]


@given(kv_heads=st.integers(1, 3), group_=st.integers(1, 3), scheme=st.sampled_from(["fp8", "rows"]))
def test_scales_go_where_their_rows_go(kv_heads: int, group_: int, scheme: str) -> None:
    """A head of 8 rows is 2 tiles of 4 rows, or 8 scales: they are in the order of the weight's rows."""
    rows = {"q": kv_heads * group_ * 8, "k": kv_heads * 8, "v": kv_heads * 8}
    shapes = modules(scheme, rows)
    made = fused(shapes, "qkv-per-group", heads=kv_heads * group_, kv_heads=kv_heads)
    block, suffix = (4, "weight_scale_inv") if scheme == "fp8" else (1, "weight_scale")
    weight = places(made["a.query_key_value.weight"].stored)
    scale = places(made[f"a.query_key_value.{suffix}"].stored)
    assert scale == [(part, row // block) for part, row in weight[::block]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shapes_of_fused_companions(scheme: str) -> None:
    """Those of one layer with as many outputs."""
    rows = {"q": 16, "k": 8, "v": 8}
    found = fused(modules(scheme, rows), "qkv")
    wanted = {f"a.qkv_proj.{suffix}": shape for suffix, shape in SCHEMES[scheme](32, 32).items()}
    assert {name: one.stored.shape for name, one in found.items()} == wanted
    assert {name: one.described.companion for name, one in found.items() if one.described.companion} == {
        name: name.rpartition(".")[2] for name in wanted if not name.endswith(".weight")
    }


def test_a_tile_that_would_be_cut() -> None:
    shapes = modules("fp8", {"q": 12, "k": 12, "v": 12})
    assert fused(shapes, "qkv")
    with pytest.raises(LayoutError, match=r"weight_scale_inv' has blocks of 4 x 4, and its elements move in runs of 6"):
        fused(shapes, "qkv-per-head", heads=2, kv_heads=2)


def test_what_all_parts_share() -> None:
    """The order of inputs and the scale of a tensor have one place, so that the bytes must be equal."""
    gptq = fused(modules("gptq", {"q": 16, "k": 8, "v": 8}), "qkv")["a.qkv_proj.g_idx"]
    assert [piece.part for piece in gptq.stored.pieces] == ["a.q_proj.g_idx"]
    assert [(one.name, one.pieces[0].part) for one in gptq.apart] == [
        (f"a.{part}_proj.g_idx", "a.q_proj.g_idx") for part in "qkv"
    ]


def test_an_unknown_tensor_beside_a_weight() -> None:
    shapes = modules("rows", {"q": 16, "k": 8, "v": 8}) | {f"a.{part}_proj.magic": (3,) for part in "qkv"}
    with pytest.raises(LayoutError, match="'magic'"):
        fused(shapes, "qkv")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_told_apart(scheme: str) -> None:
    """A module has one weight, packed or not, in the shape that it had; the rest are companions of it."""
    shapes = modules(scheme, {"q": 16, "k": 8, "v": 8}) | {"a.norm.weight": (32,), "a.q_proj.bias": (16,)}
    found = following.told_apart(shapes, TILE)
    assert {name: found.weights[name] for name in ("a.q_proj.weight", "a.k_proj.weight")} == {
        "a.q_proj.weight": (16, 32), "a.k_proj.weight": (8, 32)
    }  # fmt: skip
    assert found.weights.keys() == {f"a.{p}_proj.weight" for p in "qkv"} | {"a.norm.weight", "a.q_proj.bias"}
    assert found.packed == found.weights.keys() - shapes.keys()
    assert {one.name for one in found.beside} == shapes.keys() - found.weights.keys()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_followed_into_other_names(scheme: str) -> None:
    """Weights that move give their companions' places; of packed weights only what is packed is read and made."""
    shapes = modules(scheme, {"q": 16, "k": 8})
    found = following.told_apart(shapes, TILE)
    read = [whole(name, shape) for name, shape in found.weights.items()]
    (q, k) = read
    both = Stored("a.qk.weight", (24, 32), (q.pieces[0], k.pieces[0]._replace(at=(16, 0))))
    sources, targets = following.followed(read, [both], found, shapes, packing=TILE)
    assert {one.name: one.shape for one in sources} == shapes
    wanted = {f"a.qk.{suffix}": shape for suffix, shape in SCHEMES[scheme](24, 32).items()}
    assert {one.name: one.shape for one in targets} == wanted
    for target in targets:
        held = [piece for one in sources for piece in one.pieces]
        own = [pair for piece in target.pieces for pair in joined([piece], [h for h in held if h.part == piece.part])]
        assert own


def test_a_companion_of_one_part_only() -> None:
    shapes = modules("rows", {"q": 16, "k": 8})
    del shapes["a.k_proj.weight_scale"]
    found = following.told_apart(shapes, TILE)
    q, k = (whole(name, shape) for name, shape in found.weights.items())
    both = Stored("a.qk.weight", (24, 32), (q.pieces[0], k.pieces[0]._replace(at=(16, 0))))
    with pytest.raises(
        LayoutError, match=r"'a\.k_proj\.weight_scale' is missing; weight_scale is there for 1 of 2 parts"
    ):
        following.followed([q, k], [both], found, shapes, packing=TILE)
