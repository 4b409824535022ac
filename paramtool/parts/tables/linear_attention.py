"""Linear attention: joint inputs of queries, keys, values and gates, and the convolutions in one tensor.

Sources: transformers 5.23.0 (`models/NAME/modeling_NAME.py`), vLLM 0.33.0 `model_executor/models/qwen3_5.py`,
Megatron-Bridge 067f987df `models/conversion/param_mapping.py`; for convolutions
transformers `conversion_mapping.py` 737, 1243, 2215, 2337; the sizes are those of
`models/olmo_hybrid/configuration_olmo_hybrid.py` 139 (linear_num_key_heads, linear_key_head_dim, ...).
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout

_QKV = {"lq": "in_proj_q", "lk": "in_proj_k", "lv": "in_proj_v"}
GROUPS = (
    PartGroup(
        "convs",
        "linear attention: the convolutions of queries, keys and values",
        {"q_conv": "q_conv1d", "k_conv": "k_conv1d", "v_conv": "v_conv1d"},
        (("q_conv", "k_conv", "v_conv"),),
    ),
    PartGroup("linear-qkv", "linear attention: queries, keys and values", _QKV),
    PartGroup("linear-qkvz", "linear attention: queries, keys, values and the gate z", {**_QKV, "lz": "in_proj_z"}),
    PartGroup("linear-ba", "linear attention: b and a, a number for each head", {"lb": "in_proj_b", "la": "in_proj_a"}),
)
_FLAT = (
    "lq[(linear_key_heads linear_key_dim) in] lk[(linear_key_heads linear_key_dim) in] "
    "lv[(linear_value_heads linear_value_dim) in]"
)
LAYOUTS = (
    PartLayout(
        "convs",
        "convs",
        "the channels of queries, of keys and of values, which may be of unequal number",
        (
            FusedRow(
                "conv1d",
                "q_conv[(linear_key_heads linear_key_dim) 1 taps] k_conv[(linear_key_heads linear_key_dim) 1 taps] "
                "v_conv[(linear_value_heads linear_value_dim) 1 taps]",
            ),
        ),
        models="OLMo-Hybrid, Kimi-Linear, GLM-5-next, Bailing",
        source="transformers map 737, 1243, 2215, 2337",
    ),
    PartLayout(
        "linear-qkv",
        "linear-qkv",
        "queries, then keys, then values",
        (FusedRow("in_proj_qkv", _FLAT),),
        models="Qwen3.5, Qwen4-exp",
        source="transformers `qwen3_5` 539; Megatron-Bridge 2355, 3609-3715",
    ),
    PartLayout(
        "linear-qkvz",
        "linear-qkvz",
        "queries, keys, values, then the gate z",
        (FusedRow("in_proj_qkvz", f"{_FLAT} lz[(linear_value_heads linear_value_dim) in]"),),
        models="Qwen3.5 in vLLM",
        source="vLLM `qwen3_5.py` 228-231, 315",
        like=("linear-qkvz-per-head",),
    ),
    PartLayout(
        "linear-qkvz-per-head",
        "linear-qkvz",
        "for each head of keys its query, its key, its values and their gates",
        (
            FusedRow(
                "in_proj_qkvz",
                "{linear_key_heads: lq[linear_key_dim in] lk[linear_key_dim in] "
                "lv[(value_group linear_value_dim) in] lz[(value_group linear_value_dim) in]}",
            ),
        ),
        models="Qwen3-Next",
        source="transformers `qwen3_next` 628-649; Megatron-Bridge 3502; llama.cpp `conversion/qwen.py`",
        like=("linear-qkvz",),
    ),
    PartLayout(
        "linear-ba",
        "linear-ba",
        "b of all heads, then a",
        (FusedRow("in_proj_ba", "lb[linear_value_heads in] la[linear_value_heads in]"),),
        models="Qwen3.5 in vLLM",
        source="vLLM `qwen3_5.py` 228-231, 315",
        like=("linear-ba-per-head",),
    ),
    PartLayout(
        "linear-ba-per-head",
        "linear-ba",
        "for each head of keys b of its values, then a",
        (FusedRow("in_proj_ba", "{linear_key_heads: lb[value_group in] la[value_group in]}"),),
        models="Qwen3-Next",
        source="transformers `qwen3_next` 628-649; Megatron-Bridge 3502",
        like=("linear-ba",),
    ),
)
