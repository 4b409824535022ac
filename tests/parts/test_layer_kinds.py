"""Layers of two kinds have the heads of their own kind, by the pattern of the config; chunks are those of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paramtool.errors import LayoutError
from paramtool.parts.config_facts import KnownModel
from paramtool.parts.families import kind, of_family
from tests.hostile.command import command

HUB = {
    "model_type": "mimo_v2_flash", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "v_head_dim": 4,
    "swa_num_attention_heads": 8, "swa_num_key_value_heads": 4, "swa_head_dim": 4, "swa_v_head_dim": 3,
    "hybrid_layer_pattern": [0, 1, 1], "hidden_size": 5, "num_hidden_layers": 3,
}  # fmt: skip
"""A config as in MiMo-V2-Flash's own files, whose two kinds of layers differ in every number."""
SAID = {key: value for key, value in HUB.items() if not key.startswith("swa_")}
FULL, SLIDING = (4, 2, 6, 4), (8, 4, 4, 3)
WORDS = ("heads", "kv_heads", "head_dim", "value_dim")


def facts(config: dict[str, Any], layer: int) -> tuple[int | None, ...]:
    known = KnownModel(config).facts(f"model.layers.{layer}.self_attn.qkv_proj").sizes
    return tuple(known.get(word) for word in WORDS)


def test_each_layer_has_the_heads_of_its_kind() -> None:
    assert [facts(HUB, layer) for layer in range(3)] == [FULL, SLIDING, SLIDING]


def test_the_pattern_decides_and_not_the_position() -> None:
    other = {**HUB, "hybrid_layer_pattern": [1, 0, 1]}
    assert [facts(other, layer) for layer in range(3)] == [SLIDING, FULL, SLIDING]
    words = {**other, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    assert [facts(words, layer) for layer in range(3)] == [SLIDING, FULL, SLIDING]


def test_keys_of_a_model_type_that_is_not_known_mean_the_same() -> None:
    assert [facts({**HUB, "model_type": "mimo_v2"}, layer) for layer in range(3)] == [FULL, SLIDING, SLIDING]


@pytest.mark.parametrize("name", ["model.mtp.layers.0.self_attn.qkv_proj", "model.layers.3.self_attn.qkv_proj", "x"])
def test_a_layer_outside_the_pattern_has_no_kind(name: str) -> None:
    """Its heads are not known, and nothing is assumed."""
    assert not kind(name, "mimo_v2_flash", HUB)
    known = KnownModel(HUB).facts(name).sizes
    assert not known.keys() & {*WORDS}


def test_without_keys_of_its_own_a_sliding_layer_has_what_the_class_gives_it() -> None:
    """transformers' class: twice num_key_value_heads."""
    assert [facts(SAID, layer) for layer in range(2)] == [FULL, (4, 4, 6, 4)]
    without = {key: value for key, value in SAID.items() if key != "hybrid_layer_pattern"}
    every = [facts({**without, "num_hidden_layers": 12}, layer)[1] for layer in range(12)]
    assert every == [2, 4, 4, 4, 4, 2, 4, 4, 4, 4, 4, 2]


def test_who_said_it() -> None:
    said = KnownModel(HUB).facts("model.layers.1.self_attn.qkv_proj").said
    assert said["kv_heads"] == "config.json: swa_num_key_value_heads"
    said = KnownModel(SAID).facts("model.layers.1.self_attn.qkv_proj").said
    assert said["kv_heads"] == "config.json: num_key_value_heads x 2"
    assert said["heads"] == "config.json: num_attention_heads"


def test_patterns_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"layer 1 is by hybrid_layer_pattern of sliding .* layer_types of full"):
        facts({**HUB, "layer_types": ["full_attention"] * 3}, 1)


def test_chunks_are_those_of_the_model_in_every_layer() -> None:
    quantised = {"weight_block_size": [128, 128], "quant_method": "fp8"}
    config = {**HUB, "attention_projection_layout": "fused_qkv", "quantization_config": quantised}
    for layer in range(3):
        assert KnownModel(config).facts(f"model.layers.{layer}.self_attn.qkv_proj").sizes["chunks"] == 2
    assert of_family("mimo_v2_flash", config)["qkv_proj"] == ("qkv-per-chunk",)
    assert of_family("mimo_v2_flash", config)["experts"] == ("experts",)
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    assert of_family("mimo_v2_flash", plain)["qkv_proj"] == ("qkv",)


def model(where: Path, config: dict[str, Any], chunks: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """A folder of fused layers by NumPy alone; the parts, by name."""
    where.mkdir()
    (where / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    parts: dict[str, np.ndarray[Any, Any]] = {}
    fused: dict[str, np.ndarray[Any, Any]] = {}
    for layer, (heads, groups, dim, value) in enumerate((FULL, SLIDING, SLIDING)):
        at = f"model.layers.{layer}.self_attn."
        one = [random.normal(size=(rows, 5)).astype(np.float32) for rows in (heads * dim, groups * dim, groups * value)]
        parts |= {f"{at}{which}_proj.weight": array for which, array in zip("qkv", one, strict=True)}
        cut = [np.split(array, chunks or 1) for array in one]
        fused[f"{at}qkv_proj.weight"] = np.concatenate([each[c] for c in range(chunks or 1) for each in cut])
    save_file(fused, where / "model.safetensors")
    return parts


@pytest.mark.parametrize("chunks", [0, 2])
def test_files_are_taken_apart_by_the_heads_of_each_layer(chunks: int, tmp_path: Path) -> None:
    """NumPy joined them; the chunks are as many in a layer with 2 KV heads as in one with 4."""
    config = {**HUB, "attention_projection_layout": "fused_qkv"}
    if chunks:
        config["quantization_config"] = {"weight_block_size": [128, 128]}
    parts = model(tmp_path / "in", config, chunks)
    ran = command("unfuse", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 0, ran
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in parts.items()}


def test_chunks_by_the_heads_of_a_layer_are_refused(tmp_path: Path) -> None:
    config = {**HUB, "attention_projection_layout": "fused_qkv", "quantization_config": {"weight_block_size": [8, 8]}}
    model(tmp_path / "in", config, 2)
    words = ("--layout", "qkv-per-chunk", "--spec", "qkv chunks=4")
    ran = command("unfuse", "in", "-o", "out", *words, cwd=tmp_path)
    assert ran.code == 5 and "chunks is 2 by config.json: num_key_value_heads of the model" in ran.err, ran
    assert not (tmp_path / "out").exists()
