"""Layouts that a fused tensor could have: what fits by shape, in the order of the families, and what says it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.commands.guess import guess, part_layouts
from paramtool.parts.layout import find_part_layout

NAME = "model.layers.{}.self_attn.qkv_proj.weight"


def model(folder: Path, rows: int = 64, config: dict[str, object] | None = None) -> Path:
    """Two layers of attention, 32 wide, with a fused tensor, and a gated MLP."""
    tensors = {NAME.format(k): np.zeros((rows, 32), np.float32) for k in range(2)}
    tensors |= {f"model.layers.{k}.self_attn.o_proj.weight": np.zeros((32, 32), np.float32) for k in range(2)}
    tensors |= {f"model.layers.{k}.mlp.gate_up_proj.weight": np.zeros((48, 32), np.float32) for k in range(2)}
    save_file(tensors, str(folder / "model.safetensors"))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.safetensors"


def layouts(path: Path, **more: str) -> dict[str, list[str]]:
    return {
        group.names[0]: [one.layout for one in part_layouts(group)]
        for group in guess(path, **more).fused  # type: ignore[arg-type]
    }


def test_without_a_config_every_layout_of_the_shape_is_a_candidate(tmp_path: Path) -> None:
    """Grouped queries: not per head; as many keys as queries: per head, and groups are heads."""
    grouped = layouts(model(tmp_path, 64))["qkv_proj"]
    assert set(grouped) == {"qkv", "qkv-per-group", "qvk-per-chunk", "qkv-per-chunk"}
    assert grouped[0] == "qkv", "most families have this name so"
    equal = layouts(model(tmp_path, 96))["qkv_proj"]
    assert set(equal) == {"qkv", "qkv-per-head", "qkv-per-element", "qvk-per-chunk", "qkv-per-chunk"}
    assert layouts(model(tmp_path, 64))["gate_up_proj"][0] == "gate-up"


def test_candidates_are_layouts_and_each_has_a_reason(tmp_path: Path) -> None:
    """`--layout` takes each, and `--spec` the facts that it needs."""
    for group in guess(model(tmp_path)).fused:
        assert group.decides
        for one in part_layouts(group):
            layout = find_part_layout(one.layout)
            assert layout is not None and layout.group == group.kind and one.sure == "possible"
            assert one.reasons and all(f"{fact}=..." in one.spec for fact in layout.facts)


@pytest.mark.parametrize("config, layout", [({"model_type": "phi3"}, "qkv"), ({"model_type": "codegen"}, "qvk-per-chunk")])  # fmt: skip  # noqa: E501
def test_a_family_says_it(config: dict[str, object], layout: str, tmp_path: Path) -> None:
    """One candidate, nothing to decide; another family has another."""
    (group,) = (one for one in guess(model(tmp_path, 96, config)).fused if one.kind == "qkv")
    (one,) = part_layouts(group)
    assert (one.layout, one.sure, group.decides) == (layout, "said", "")


@pytest.mark.parametrize("at", ["model.layers.1.self_attn", "model.layers.*.self_attn", NAME.format(0),
                                "model.layers.0.self_attn.qkv_proj"])  # fmt: skip
def test_at_chooses(at: str, tmp_path: Path) -> None:
    """A module, a pattern, a tensor; nothing else is listed."""
    found = guess(model(tmp_path), at)
    assert [group.names for group in found.fused] == [("qkv_proj",)] and not found.considered


def test_facts_leave_fewer(tmp_path: Path) -> None:
    """32 rows of queries and 2 x 16: 4 heads and 2 of keys, not 4 and 4."""
    assert "qkv" in layouts(model(tmp_path), spec="qkv heads=4 kv_heads=2")["qkv_proj"]
    assert "qkv_proj" not in layouts(model(tmp_path), spec="qkv heads=4 kv_heads=4")
