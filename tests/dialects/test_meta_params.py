"""params.json of Meta's folders: calculated from config.json and back, by the formula of Meta's code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.dialects import meta_params
from paramtool.errors import LayoutError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_theta": 5e5,
}  # fmt: skip
SHAPES = {meta_params.GATE: (172, 64), meta_params.EMBEDDING: (32, 64)}
RELEASED = {
    "Llama 7B": (4096, 256, None, 11008), "Llama 13B": (5120, 256, None, 13824),
    "Llama 2 70B": (8192, 4096, 1.3, 28672),
    "Llama 3 8B": (4096, 1024, 1.3, 14336), "Llama 3.1 405B": (16384, 4096, 1.2, 53248),
    "Llama 3.2 1B": (2048, 256, 1.5, 8192),
}  # fmt: skip
"""{model: dim, multiple_of and ffn_dim_multiplier of Meta's params.json, the width that transformers' config has}"""


@pytest.mark.parametrize("name", RELEASED)
def test_the_widths_of_released_models(name: str) -> None:
    dim, multiple, multiplier, width = RELEASED[name]
    assert meta_params.ffn_width(dim, multiple, multiplier) == width
    assert meta_params.ffn_width(dim, *meta_params.ffn_factors(dim, width)) == width


@given(st.integers(1, 1 << 16), st.integers(1, 1 << 18))
def test_every_width_has_factors(dim: int, width: int) -> None:
    multiple, multiplier = meta_params.ffn_factors(dim, width)
    assert meta_params.ffn_width(dim, multiple, multiplier) == width


@given(
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 16), st.integers(1, 999), st.booleans(),
    st.floats(1e-9, 1e-3), st.floats(1, 1e7),
)  # fmt: skip
def test_there_and_back(
    groups: int, kv_heads: int, head_dim: int, width: int, is_scaled: bool, eps: float, theta: float
) -> None:
    heads = groups * kv_heads
    dim = heads * head_dim
    rope = {**LLAMA3, "rope_theta": theta} if is_scaled else {"rope_type": "default", "rope_theta": theta}
    config = CONFIG | {
        "hidden_size": dim, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": width,
        "rms_norm_eps": eps, "rope_parameters": rope,
    }  # fmt: skip
    shapes = {meta_params.GATE: (width, dim), meta_params.EMBEDDING: (32, dim)}
    params = meta_params.params_of(config)
    back = meta_params.config_of(params, shapes)
    for key in CONFIG.keys() - {"rope_theta"}:
        assert back[key] == config[key]
    assert back["rope_theta"] == theta and ("rope_scaling" in back) == is_scaled
    assert meta_params.params_of(back) == params
    assert not list(meta_params.contradictions(params, config))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"head_dim": 8}, "head_dim=8"),
        ({"num_attention_heads": 5}, "head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 2}}, "llama3"),
        ({"rope_scaling": "x"}, "expected an object"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"intermediate_size": None}, "intermediate_size is None"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'"),
        ({"vocab_size": True}, "vocab_size is True"),
    ],
)
def test_what_meta_has_no_place_for(more: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        meta_params.params_of({**CONFIG, **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"dim": 60}, "expected"),
        ({"multiple_of": 0}, "multiple_of is 0"),
        ({"ffn_dim_multiplier": 1e300}, "ffn_dim_multiplier"),
        ({"ffn_dim_multiplier": "1"}, "ffn_dim_multiplier"),
        ({"vocab_size": 33}, r"\[33, 64\]"),
        ({"n_layers": 1.5}, "n_layers"),
        ({"norm_eps": None}, "norm_eps"),
        ({"hidden_dim": 172}, "Mistral"),
        ({"use_scaled_rope": True}, "by which factor"),
    ],
)
def test_what_params_do_not_say(more: dict[str, Any], said: str) -> None:
    params = {**meta_params.params_of(CONFIG), **more}
    with pytest.raises(LayoutError, match=said):
        meta_params.config_of(params, SHAPES)


def test_the_vocabulary_of_the_file() -> None:
    """Llama 2 says -1."""
    params = {**meta_params.params_of(CONFIG), "vocab_size": -1}
    assert meta_params.config_of(params, SHAPES)["vocab_size"] == 32
    assert meta_params.config_of({"model": params}, SHAPES)["vocab_size"] == 32
    with pytest.raises(LayoutError, match="vocab_size"):
        meta_params.config_of(params, {})


def test_one_rank_of_several() -> None:
    with pytest.raises(LayoutError, match="feed_forward") as error:
        meta_params.config_of(meta_params.params_of(CONFIG), {**SHAPES, meta_params.GATE: (86, 64)})
    assert "several ranks" in error.value.hint
