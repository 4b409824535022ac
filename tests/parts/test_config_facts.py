"""Configs of real models, in the spellings that their files have, and names of tensors with the towers they are in."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import LayoutError
from paramtool.parts.config_facts import ROWS, SIDES, TOWERS, from_config, tower_of
from paramtool.parts.sizes import MEANINGS

CLIP = {"model_type": "clip_vision_model", "hidden_size": 1024, "num_attention_heads": 16}
LLAVA = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}, "vision_config": CLIP}
QWEN2_VL = {"model_type": "qwen2_vl", "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2,
            "vision_config": {"hidden_size": 1536, "embed_dim": 1280, "num_heads": 16}}  # fmt: skip
T5 = {"model_type": "t5", "num_heads": 12, "d_kv": 64, "d_model": 512}
BART = {"model_type": "bart", "d_model": 1024, "encoder_attention_heads": 16, "decoder_attention_heads": 8}
CHATGLM = {"model_type": "chatglm", "num_attention_heads": 32, "kv_channels": 128, "hidden_size": 4096}
FALCON = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71}
DBRX = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"moe_num_experts": 16}}  # fmt: skip
NEXT = {"model_type": "qwen3_next", "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "partial_rotary_factor": 0.25, "linear_num_key_heads": 16, "linear_num_value_heads": 32}  # fmt: skip
V3 = {"model_type": "deepseek_v3", "num_attention_heads": 128, "qk_nope_head_dim": 128, "v_head_dim": 128}


@pytest.mark.parametrize(
    ("config", "tower", "sizes"),
    [
        ({"model_type": "llama"}, "", "heads=32 kv_heads=32 head_dim=128 rotary=128"),
        ({"model_type": "llama", "head_dim": None, "num_key_value_heads": 8}, "", "heads=32 kv_heads=8 head_dim=128"),
        ({"model_type": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 8}, "", "heads=16 head_dim=128"),
        ({"model_type": "gpt2", "n_head": 12, "n_embd": 768}, "", "heads=12 kv_heads=12 head_dim=64 group=1"),
        ({"model_type": "gpt2", "num_attention_heads": 6}, "", "heads=6 head_dim=128"),
        ({"model_type": "gpt_neox", "num_attention_heads": 8, "hidden_size": 512, "rotary_pct": 0.5}, "", "rotary=32"),
        ({"model_type": "gpt_neox", "num_attention_heads": 8, "hidden_size": 512}, "", "rotary=16 kv_heads=8"),
        ({"model_type": "gpt_bigcode", "n_head": 48, "n_embd": 6144}, "", "heads=48 kv_heads=1 head_dim=128"),
        ({"model_type": "gpt_bigcode", "n_head": 48, "multi_query": False}, "", "heads=48 kv_heads=48"),
        ({"model_type": "codegen", "n_head": 16, "n_embd": 1024}, "", "heads=16 head_dim=64 chunks=4 rotary=64"),
        ({"model_type": "mpt", "n_heads": 32, "d_model": 4096}, "", "heads=32 kv_heads=32 head_dim=128"),
        ({"model_type": "jetmoe", "num_key_value_heads": 8}, "", "heads=16 kv_heads=8 head_dim=128"),
        ({"model_type": "mixtral", "num_local_experts": 16}, "", "experts=16 kv_heads=8"),
        ({"model_type": "gemma2"}, "", "head_dim=256 kv_heads=4 heads=8"),
        (T5, "encoder", "heads=12 kv_heads=12 head_dim=64"),
        (BART, "encoder", "heads=16 head_dim=64"),
        (BART, "decoder", "heads=8 head_dim=128"),
        (FALCON, "", "heads=71 kv_heads=1 head_dim=64"),
        ({**FALCON, "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8,
          "new_decoder_architecture": True}, "", "heads=128 kv_heads=8 head_dim=64 group=16"),
        ({**FALCON, "multi_query": False, "hidden_size": 2048, "num_attention_heads": 32}, "", "kv_heads=32"),
        ({"model_type": "RefinedWeb", "n_head": 128, "n_head_kv": 8, "hidden_size": 8192,
          "new_decoder_architecture": True}, "", "heads=128 kv_heads=8"),
        ({"model_type": "RefinedWeb", "n_head": 128, "n_head_kv": 8, "hidden_size": 8192, "alibi": False}, "",
         "heads=128 kv_heads=8 head_dim=64 rotary=64"),
        ({"model_type": "RefinedWebModel", "n_head": 71, "multi_query": True, "hidden_size": 4544}, "", "kv_heads=1"),
        ({"model_type": "RefinedWebModel", "n_head": 32, "multi_query": False, "hidden_size": 2048}, "", "kv_heads=32"),
        (CHATGLM, "", "heads=32 kv_heads=32 head_dim=128"),
        ({**CHATGLM, "multi_query_attention": True, "multi_query_group_num": 2}, "", "heads=32 kv_heads=2 group=16"),
        (DBRX, "", "heads=48 kv_heads=8 head_dim=128 experts=16"),
        (NEXT, "", "heads=16 kv_heads=2 rotary=64 linear_key_heads=16 linear_value_heads=32 linear_key_dim=128"),
        (V3, "", "heads=128 nope=128 rope=64 value_dim=128 experts=256"),
        (LLAVA, "text_config", "heads=32 kv_heads=32 head_dim=128"),
        (LLAVA, "vision_config", "heads=16 kv_heads=16 head_dim=64"),
        (QWEN2_VL, "text_config", "heads=12 kv_heads=2 head_dim=128"),
        (QWEN2_VL, "vision_config", "heads=16 kv_heads=16 head_dim=80"),
        ({"model_type": "internlm2", "num_attention_heads": 32, "num_key_value_heads": 8}, "", "heads=32 kv_heads=8"),
    ],
)  # fmt: skip
def test_what_configs_say(config: dict[str, Any], tower: str, sizes: str) -> None:
    found = from_config(config, tower)
    expected = {word: int(number) for word, number in (one.split("=") for one in sizes.split())}
    assert {word: found.sizes.get(word) for word in expected} == expected
    assert all(said.startswith("config.json: ") for said in found.said.values())


def test_who_said_it() -> None:
    said = from_config(LLAVA, "vision_config").said
    assert said["heads"] == "config.json: vision_config.num_attention_heads"
    assert "num_attention_heads is absent, and the default" in from_config(LLAVA, "text_config").said["heads"]


@pytest.mark.parametrize(
    ("config", "tower"),
    [
        (LLAVA, ""),  # a composite model has no attention of its own
        (LLAVA, "audio_config"),
        (BART, ""),  # halves that differ: which one is not said
        ({"model_type": "swin", "num_heads": [3, 6, 12, 24]}, ""),
        ({"model_type": "openelm", "num_query_heads": [12, 12, 16], "num_kv_heads": [3, 3, 4]}, ""),
        ({"model_type": "unheard_of", "num_attention_heads": 32, "swa_num_attention_heads": 64}, ""),
        ({"model_type": "unheard_of", "text_config": {"num_attention_heads": 32}}, "text_config"),
        ({}, ""),
    ],
)
def test_what_is_not_said_is_absent(config: dict[str, Any], tower: str) -> None:
    assert not from_config(config, tower).sizes


def test_an_unknown_model_type_says_only_what_it_writes() -> None:
    """kv_heads of a config that lacks them could be heads, or one."""
    found = from_config({"model_type": "unheard_of", "num_attention_heads": 32, "hidden_size": 4096})
    assert found.sizes == {"heads": 32}


def test_layers_of_other_sizes_take_the_word_away() -> None:
    config = {"model_type": "mistral", "num_key_value_heads": 8, "swa_num_key_value_heads": 16}
    assert "kv_heads" not in from_config(config).sizes
    assert from_config({**config, "swa_num_key_value_heads": 8}).sizes["kv_heads"] == 8


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"model_type": "gpt2", "n_head": 12, "num_attention_heads": 16},
            "n_head is 12, and num_attention",
        ),
        ({"model_type": "llama", "num_attention_heads": 30, "num_key_value_heads": 8}, "heads must be a multiple"),
        ({"model_type": "llama", "num_attention_heads": 0}, "expected a number from 1"),
        ({"model_type": "llama", "num_attention_heads": -32}, "expected a number from 1"),
    ],
)
def test_configs_that_contradict_themselves(config: dict[str, Any], says: str) -> None:
    with pytest.raises(LayoutError) as caught:
        from_config(config)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("name", "config", "tower"),
    [
        ("model.layers.0.self_attn.q_proj.weight", {"model_type": "llama"}, ""),
        ("language_model.model.layers.0.self_attn.q_proj.weight", LLAVA, "text_config"),
        ("model.language_model.layers.0.self_attn.q_proj.weight", LLAVA, "text_config"),
        ("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", LLAVA, "vision_config"),
        ("multi_modal_projector.linear_1.weight", LLAVA, None),
        ("visual.blocks.0.attn.qkv.weight", QWEN2_VL, "vision_config"),
        ("model.visual.blocks.0.attn.qkv.weight", QWEN2_VL, "vision_config"),
        ("model.layers.0.self_attn.q_proj.weight", QWEN2_VL, "text_config"),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", T5, ""),
        ("model.encoder.layers.0.self_attn.q_proj.weight", BART, "encoder"),
        ("model.decoder.layers.0.encoder_attn.q_proj.weight", BART, "decoder"),
        ("model.shared.weight", BART, None),
        ("thinker.visual.blocks.0.attn.q.weight",
         {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": {}, "text_config": {}}},
         "thinker_config.vision_config"),
    ],
)  # fmt: skip
def test_towers(name: str, config: dict[str, Any], tower: str | None) -> None:
    assert tower_of(name, config) == tower


def test_rows_have_words_and_types_that_exist() -> None:
    assert {one.split("=", 1)[0] for row in ROWS.values() for one in row.split()} <= set(MEANINGS)
    assert all(key.split("/")[1] in SIDES for key in ROWS if "/" in key)
    assert len(ROWS) > 400 and len(TOWERS) > 150
