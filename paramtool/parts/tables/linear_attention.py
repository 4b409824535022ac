"""Convolutions of linear attention in one tensor.

Source: transformers 5.23.0 `conversion_mapping.py` 737, 1243, 2215, 2337; the sizes are those of
`models/olmo_hybrid/configuration_olmo_hybrid.py` 139 (linear_num_key_heads, linear_key_head_dim, ...).
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout

GROUPS = (
    PartGroup(
        "convs",
        "linear attention: the convolutions of queries, keys and values",
        {"q_conv": "q_conv1d", "k_conv": "k_conv1d", "v_conv": "v_conv1d"},
        (("q_conv", "k_conv", "v_conv"),),
    ),
    PartGroup(
        "linear",
        "linear attention: queries, keys, values and the gate of its output",
        {"linear_q": "q_proj", "linear_k": "k_proj", "linear_v": "v_proj", "linear_z": "z_proj"},
    ),
    PartGroup(
        "linear-qkv",
        "linear attention: queries, keys and values",
        {"linear_q": "q_proj", "linear_k": "k_proj", "linear_v": "v_proj"},
    ),
    PartGroup(
        "linear-gates",
        "linear attention: how much each head learns and forgets",
        {"linear_b": "b_proj", "linear_a": "a_proj"},
        (("in_proj_b", "in_proj_a"),),
    ),
)
_Q, _K = "linear_q[(linear_key_heads linear_key_dim) in]", "linear_k[(linear_key_heads linear_key_dim) in]"
_V, _Z = "linear_v[(linear_value_heads linear_value_dim) in]", "linear_z[(linear_value_heads linear_value_dim) in]"
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
        "queries, then keys, then values, which may be of unequal number",
        (FusedRow("in_proj_qkv", f"{_Q} {_K} {_V}"),),
        models="files of Qwen3.5 and Qwen4-exp",
        source="transformers `qwen3_5` 539; Megatron-Bridge 2355, 3609-3715",
    ),
    PartLayout(
        "linear-qkv-z",
        "linear",
        "queries, then keys, then values; and the gates in a tensor of their own",
        (FusedRow("in_proj_qkv", f"{_Q} {_K} {_V}"), FusedRow("in_proj_z", _Z)),
        models="files of Qwen3.5 and Qwen4-exp",
        source="transformers `qwen3_5` 539; Megatron-Bridge 2355, 3609-3715",
    ),
    PartLayout(
        "qkvz",
        "linear",
        "queries, keys, values, gates",
        (FusedRow("in_proj_qkvz", f"{_Q} {_K} {_V} {_Z}"),),
        models="Qwen3.5 in vLLM",
        source="transformers `qwen3_5` 539; vLLM `qwen3_5.py` 228-231, 315",
        like=("qkvz-per-head", "qkvz-per-chunk"),
    ),
    PartLayout(
        "qkvz-per-head",
        "linear",
        "for each key head its query, its key, its values and their gates",
        (
            FusedRow(
                "in_proj_qkvz",
                "{linear_key_heads: linear_q[linear_key_dim in] linear_k[linear_key_dim in] "
                "linear_v[(value_group linear_value_dim) in] linear_z[(value_group linear_value_dim) in]}",
            ),
        ),
        models="files of Qwen3-Next",
        source="transformers `qwen3_next` 628-649; Megatron-Bridge 3502",
        like=("qkvz", "qkvz-per-chunk"),
    ),
    PartLayout(
        "qkvz-per-chunk",
        "linear",
        "for each chunk of heads queries, keys, values, gates",
        (
            FusedRow(
                "in_proj",
                "{chunks: linear_q[(chunk_key_heads linear_key_dim) in] linear_k[(chunk_key_heads linear_key_dim) in] "
                "linear_v[(chunk_value_heads linear_value_dim) in] linear_z[(chunk_value_heads linear_value_dim) in]}",
            ),
        ),
        models="tensor-parallel ranks of Megatron that were joined row by row, without b and a",
        source="Megatron-Bridge 3502-3550",
        like=("qkvz", "qkvz-per-head"),
    ),
    PartLayout(
        "ba",
        "linear-gates",
        "b, then a",
        (FusedRow("in_proj_ba", "linear_b[linear_value_heads in] linear_a[linear_value_heads in]"),),
        models="Qwen3.5 in vLLM",
        source="vLLM `qwen3_5.py` 228-231",
        like=("ba-per-head",),
    ),
    PartLayout(
        "ba-per-head",
        "linear-gates",
        "for each key head b, then a, of its values",
        (FusedRow("in_proj_ba", "{linear_key_heads: linear_b[value_group in] linear_a[value_group in]}"),),
        models="files of Qwen3-Next",
        source="transformers `qwen3_next` 628-649",
        like=("ba",),
    ),
)
