"""What is seen of attention, gated MLPs and experts: towers, forms, and the layouts that fit where nothing says one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.passes.parts import groups, layouts_seen

Shapes = dict[str, tuple[int, ...]]


def seen(shapes: Shapes, config: dict[str, Any] | None = None, **known: Any) -> groups.SeenParts:
    """What is seen; `known` may only be asked where a tensor is fused."""
    made = {"config": config or {}, "layouts": {}, **known}
    return groups.seen(shapes, lambda name: shapes.get(name, ()), lambda: _KNOWN(**made))


_KNOWN = layouts_seen.judged.__globals__[layouts_seen.judged.__annotations__["known"]]


def layers(count: int, tensors: Shapes, at: str = "model.layers") -> Shapes:
    return {f"{at}.{k}.{name}": shape for k in range(count) for name, shape in tensors.items()}


APART: Shapes = {f"attn.{part}_proj.weight": (8, 8) for part in "qkv"}
FUSED: Shapes = {"attn.qkv_proj.weight": (24, 8), "attn.o_proj.weight": (8, 8)}


@given(st.integers(1, 12), st.integers(1, 5))
def test_layers_are_counted(count: int, experts: int) -> None:
    one = APART | {
        f"mlp.experts.{k}.{part}_proj.weight": (4, 8) for k in range(experts) for part in ("gate", "up", "down")
    }
    (tower,) = seen(layers(count, one)).towers
    assert (tower.at, tower.layers) == ("model.layers", count)
    assert [(g.kind, g.form, g.modules) for g in tower.groups] == [("qkv", "apart", count), ("experts", "list", count)]
    assert tower.groups[1].experts == experts
    assert groups.words(tower).endswith(f": q, k, v apart; experts as a list of {experts}")


def test_two_towers() -> None:
    found = seen({**layers(2, APART), **layers(3, APART, "vision.blocks")})
    assert [(tower.at, tower.layers) for tower in found.towers] == [("model.layers", 2), ("vision.blocks", 3)]


def test_nothing_is_seen_in_other_models() -> None:
    assert seen({"fc1.weight": (3, 3), "lstm.weight_ih_l0": (8, 2)}) == groups.NOTHING


def test_a_record_says_the_layout() -> None:
    shapes = layers(1, FUSED)
    (one,) = seen(shapes, layouts={"model.layers.0.attn.qkv_proj.weight": "qkv-per-head"}).groups
    assert (one.layout, one.source) == ("qkv-per-head", "its record")


def test_a_family_says_the_layout() -> None:
    shapes = layers(1, {"attention.query_key_value.weight": (24, 8)}, "gpt_neox.layers")
    (one,) = seen(shapes, {"model_type": "gpt_neox"}).groups
    assert (one.layout, one.source) == ("qkv-per-head", "config.json (gpt_neox)")


def test_what_fits_is_listed_with_what_decides() -> None:
    """Shapes alone never decide between layouts of one shape."""
    (one,) = seen(layers(1, FUSED)).groups
    assert one.layout == "" and {fit.layout for fit in one.fits} == set(layouts_seen.PER_HEAD)
    assert "--layout" in one.decides and "heads=..." in one.decides
    error = layouts_seen.refusal([one], "f")
    assert all(name in str(error) for name in layouts_seen.PER_HEAD)


@pytest.mark.parametrize(("kv_rows", "fits"), [(8, layouts_seen.PER_HEAD), (4, layouts_seen.PER_GROUP), (3, ())])
def test_rows_take_layouts_away(kv_rows: int, fits: tuple[str, ...]) -> None:
    found = list(seen(layers(1, {**FUSED, "attn.qkv_proj.weight": (8 + 2 * kv_rows, 8)})).groups)
    assert {fit.layout for one in found for fit in one.fits} == set(fits)


def test_facts_take_layouts_away() -> None:
    """Rows that do not divide into the heads that were given have none of the layouts."""
    assert not list(seen(layers(1, FUSED), facts={"heads": 3, "kv_heads": 3}).groups)
    (one,) = seen(layers(1, FUSED), facts={"heads": 4, "kv_heads": 4, "chunks": 2}).groups
    assert {fit.layout for fit in one.fits} == {"qvk-per-chunk", "qkv-per-chunk"}


STACKED = [
    ({"gate_up_proj": (3, 8, 6), "down_proj": (3, 6, 4)}, {"experts", "experts-interleaved"}),
    ({"gate_up_proj": (3, 6, 8), "down_proj": (3, 4, 6)}, {"experts-transposed", "experts-transposed-interleaved"}),
    ({"gate_up_proj": (3, 8, 8), "down_proj": (3, 8, 4)}, {"experts", "experts-interleaved"}),
    ({"gate_up_proj": (3, 8, 4), "down_proj": (3, 2, 8)}, {"experts-transposed", "experts-transposed-interleaved"}),
    ({"gate_up_proj": (3, 8, 6), "down_proj": (3, 6, 5)}, set()),
    ({"gate_up_proj": (3, 8, 6), "down_proj": (2, 6, 4)}, set()),
]


@pytest.mark.parametrize(("shapes", "fits"), STACKED)
def test_stacks_of_experts(shapes: Shapes, fits: set[str]) -> None:
    found = list(seen(layers(1, {f"mlp.experts.{name}": shape for name, shape in shapes.items()})).groups)
    assert {fit.layout for one in found for fit in one.fits} == fits


BLOOM = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "n_head": 2, "hidden_size": 8}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_head": 2, "n_embd": 8}


@pytest.mark.parametrize(
    ("config", "name", "of_family"),
    [(BLOOM, "self_attention.query_key_value", "qkv-per-head"), (GPT2, "attn.c_attn", "qkv-conv1d")],
)
def test_the_dialect_of_the_record_says_the_layout(config: dict[str, Any], name: str, of_family: str) -> None:
    """vLLM has other rows under these names than transformers, whose family the config says."""
    shapes = layers(1, {f"{name}.weight": (24, 8)}, "transformer.h")
    layouts = {dialect: next(seen(shapes, config, dialect=dialect).groups).layout for dialect in ("", "vllm", "mine")}
    assert layouts == {"": of_family, "vllm": "qkv", "mine": of_family}


def test_rows_of_a_dialect_that_no_layout_has_are_not_those_of_the_family() -> None:
    """Llama 4 in vLLM: queries and keys in pairs, and fused."""
    config = {"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"]}
    (one,) = seen(layers(1, FUSED), config, dialect="vllm").groups
    assert (one.layout, one.fits, one.decides) == ("", (), "")
    assert one.pattern.startswith("q[(heads two half) in]") and one.source == "its record (vllm)"
