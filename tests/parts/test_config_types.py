"""The types of settings in a config, and the number of rows of embeddings, where tests of the commands do not go."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import LayoutError
from paramtool.parts import config_types, widths

RIGHT: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "num_key_value_heads": None, "num_attention_heads": 4, "architectures": ["A"]},
    {"model_type": "swin", "num_heads": [3, 6], "depths": [2, 2]},
    {"model_type": "gemma3n_text", "intermediate_size": [8, 8]},
    {"model_type": "mine", "num_kv_heads": [1, 2, 3]},
    {"model_type": "jamba", "mamba_dt_rank": "auto"},
    {"model_type": "lfm2", "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.5},
    {"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": 8}, "vision_config": None},
    {"model_type": "llama", "quantization_config": {"num_heads": "any"}},
)
WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"model_type": "llama", "num_attention_heads": [4, 4]}, "num_attention_heads is [4, 4]; expected a whole number"),
    ({"model_type": "swin", "num_heads": [3, "6"]}, "num_heads is [3, '6']; expected a whole number, or a list of"),
    ({"model_type": "mine", "num_kv_heads": "2"}, "num_kv_heads is '2'; expected a whole number"),
    ({"model_type": "llava", "text_config": [1]}, "text_config is [1]; expected an object"),
    ({"text_config": {"model_type": "llama", "hidden_size": "8"}}, "text_config.hidden_size is '8'"),
    ({"model_type": "dbrx", "attn_config": {"kv_n_heads": "2"}}, "attn_config.kv_n_heads is '2'"),
    ({"model_type": "falcon", "multi_query": "false"}, "multi_query is 'false'; expected true or false"),
    ({"model_type": "llama", "partial_rotary_factor": "0.5"}, "partial_rotary_factor is '0.5'; expected a number"),
    ({"model_type": "jamba", "mamba_dt_rank": "some"}, "mamba_dt_rank is 'some'; expected a whole number or 'auto'"),
    ({"model_type": 3}, "model_type is 3; expected a string"),
)


@pytest.mark.parametrize("config", RIGHT, ids=lambda one: one["model_type"])
def test_settings_that_configs_have(config: dict[str, Any]) -> None:
    config_types.check(config, "config.json")


@pytest.mark.parametrize(("config", "says"), WRONG, ids=lambda one: one if isinstance(one, str) else "")
def test_settings_of_another_type(config: dict[str, Any], says: str) -> None:
    with pytest.raises(LayoutError) as error:
        config_types.check(config, "here/config.json")
    assert error.value.message.startswith("here/config.json: 1 setting has the wrong type:") and says in str(
        error.value
    )


def test_all_settings_are_named_at_once() -> None:
    with pytest.raises(LayoutError, match="2 settings have the wrong type"):
        config_types.check({"hidden_size": "8", "vocab_size": 1.5}, "config.json")


def rows(count: int, name: str = "model.embed_tokens.weight", **config: Any) -> list[str]:
    return [str(one) for one in widths.row_contradictions({name: (count, 4)}, {"model_type": "llama", **config})]


def test_rows_of_embeddings() -> None:
    assert rows(8, vocab_size=8) == rows(8) == rows(8, vocab_size=9, model_type="mine") == []
    assert rows(8, "model.layers.0.embed.weight", vocab_size=9) == []
    assert rows(9, vocab_size=8, model_type="moshi") == []
    (fewer,), (more,) = rows(7, vocab_size=8), rows(9, "lm_head.weight", vocab_size=8)
    assert "expected 8 (config.json: vocab_size)" in fewer and "padded" not in fewer and "padded" in more


def test_rows_of_a_tower() -> None:
    config = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 8}}
    shapes = {"language_model.model.embed_tokens.weight": (7, 4)}
    (line,) = widths.row_contradictions(shapes, config)
    assert line.expected.startswith("8 (config.json: text_config.vocab_size)")
