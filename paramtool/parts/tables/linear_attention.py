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
)
