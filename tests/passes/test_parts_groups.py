"""What is said of attention, gated MLPs and experts by names, shapes and a config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from paramtool.package_data import package_data
from paramtool.parts import families, words
from paramtool.parts.layout import all_groups, find_part_layout
from paramtool.passes.parts.groups import SeenParts, seen
from paramtool.passes.parts.groups import words as in_words
from paramtool.passes.parts.seen_groups import KnownOfFile

Shapes = dict[str, tuple[int, ...]]


def known(config: Mapping[str, Any] | None = None, **layouts: str) -> KnownOfFile:
    return KnownOfFile(config or {}, layouts)


def told(shapes: Shapes, config: Mapping[str, Any] | None = None) -> SeenParts:
    return seen(shapes, lambda name: shapes.get(name, ()), lambda: known(config))


def attention(layers: int, name: str = "query_key_value", rows: int = 24) -> Shapes:
    found: Shapes = {}
    for k in range(layers):
        at = f"gpt_neox.layers.{k}.attention"
        found |= {f"{at}.{name}.weight": (rows, 8), f"{at}.dense.weight": (8, 8)}
    return found


def test_parts_apart_need_no_config() -> None:
    """Nobody is asked for a config where no tensor is fused."""
    shapes = {f"m.layers.{k}.attn.{name}.weight": (8, 8) for k in range(3) for name in ("q_proj", "k_proj", "v_proj")}

    def asked() -> KnownOfFile:
        raise AssertionError("a config was read")

    (tower,) = seen(shapes, lambda name: shapes.get(name, ()), asked).towers
    assert in_words(tower) == "3 layers: q, k, v apart"


def test_the_family_decides() -> None:
    (tower,) = told(attention(2), {"model_type": "gpt_neox"}).towers
    (group,) = tower.groups
    assert (group.layout, group.source, group.fits) == ("qkv-per-head", "config.json (gpt_neox)", ())


def test_another_family_decides_otherwise() -> None:
    (group,) = told(attention(2), {"model_type": "chatglm"}).groups
    assert group.layout == "qkv"


def test_shapes_never_decide() -> None:
    """Several layouts of one shape are listed with what they need."""
    (group,) = told(attention(2)).groups
    assert not group.layout
    assert {"qkv", "qkv-per-head", "qkv-per-element"} <= {fit.layout for fit in group.fits}
    assert "config.json" in group.decides and "heads=..." in group.decides


def test_shapes_take_layouts_away() -> None:
    """With fewer keys than queries no layout is per head."""
    (group,) = told(attention(1, rows=16)).groups
    fits = {fit.layout for fit in group.fits}
    assert "qkv-per-group" in fits and "qkv-per-head" not in fits


def test_what_cannot_be_queries_keys_and_values_is_not_told() -> None:
    assert not told(attention(1, rows=9)).towers


def test_the_record_is_asked_first() -> None:
    shapes = attention(1)
    layouts = {name: "qkv" for name in shapes if "query_key_value" in name}
    (group,) = seen(shapes, lambda name: shapes.get(name, ()), lambda: known({"model_type": "bloom"}, **layouts)).groups
    assert (group.layout, group.source) == ("qkv", "its record")


def test_experts_are_counted_in_the_first_layer() -> None:
    names = ("w1", "w2", "w3")
    at = "model.layers.{}.block_sparse_moe.experts.{}.{}.weight"
    shapes = {at.format(k, e, name): (4, 4) for k in range(2) for e in range(5) for name in names}
    found = told(shapes)
    (group,) = found.groups
    assert (group.form, group.experts, group.modules, found.dialect) == ("list", 5, 2, "transformers-4")


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((4, 12, 8), (4, 8, 6)), {"experts", "experts-interleaved"}),
        (((4, 8, 12), (4, 6, 8)), {"experts-transposed", "experts-transposed-interleaved"}),
        (
            ((4, 12, 12), (4, 12, 6)),
            {"experts", "experts-interleaved"},
        ),
    ],
)
def test_stacks(shapes: tuple[tuple[int, ...], tuple[int, ...]], expected: set[str]) -> None:
    at = "model.layers.0.mlp.experts"
    (group,) = told({f"{at}.gate_up_proj": shapes[0], f"{at}.down_proj": shapes[1]}).groups
    assert {fit.layout for fit in group.fits} == expected and group.experts == 4


def test_a_model_of_text_and_images_has_two_towers() -> None:
    shapes = {f"visual.blocks.{k}.attn.qkv.weight": (24, 8) for k in range(2)}
    shapes |= {f"visual.blocks.{k}.attn.proj.weight": (8, 8) for k in range(2)}
    shapes |= {f"model.layers.{k}.self_attn.{n}_proj.weight": (8, 8) for k in range(3) for n in "qkv"}
    config = {"model_type": "qwen2_vl", "vision_config": {"model_type": "qwen2_vl_vision"}}
    found = {tower.at: in_words(tower) for tower in told(shapes, config).towers}
    assert found["model.layers"] == "3 layers: q, k, v apart"
    assert found["visual.blocks"].startswith("2 layers: qkv fused: qkv by config.json")


def test_nothing_is_told_of_other_names() -> None:
    assert told({"conv.weight": (3, 3), "gate.weight": (4, 4), "mlp.in_proj.weight": (24, 8)}) == SeenParts()


def test_each_shape_is_asked_a_few_times() -> None:
    """Work grows with the number of names, and shapes are only looked at where a tensor is fused."""

    def asked(layers: int) -> int:
        shapes, count = attention(layers), 0

        def shape_of(name: str) -> tuple[int, ...]:
            nonlocal count
            count += 1
            return shapes.get(name, ())

        seen(shapes, shape_of, known)
        return count

    assert asked(2000) == asked(20)


# --- the tables agree ------------------------------------------------------------------------------------------------


def test_names_of_parts_are_those_of_the_tables() -> None:
    for group in all_groups():
        if group.kind in words.APART:
            assert set(group.names) == set(words.APART[group.kind]), group.kind


def test_layouts_of_families_exist() -> None:
    """Of the kind that the fused name has, where `inspect` knows the name."""
    kinds = {**words.FUSED, **words.OF_FAMILIES}
    assert all(row["source"] for row in json.loads(package_data("parts", "families.json")))
    for model_type, row in families.rows().items():
        for place, layouts in row.items():
            module, _, name = place.rpartition(".")
            for one in layouts:
                layout = find_part_layout(one)
                assert layout is not None, one
                kind = words.kind_in(module, name) if module else kinds.get(name, families.EXPERTS)
                assert layout.group == kind, (model_type, place)


def test_fused_names_can_be_taken_apart() -> None:
    """What `inspect` calls fused, `unfuse` finds under that name."""
    for name, kind in {**words.FUSED, **words.OF_FAMILIES}.items():
        if (name, kind) != (words.TORCH_MHA, "qkv"):
            assert name in words.FUSED_NAMES[kind], name
