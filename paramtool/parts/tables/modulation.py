"""Diffusion transformers: attention with an MLP in one tensor, and the two halves of a modulation.

Source: torchtitan b5bcd76c6 `torchtitan/models/flux/model/state_dict_adapter.py`.
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout

GROUPS = (
    PartGroup(
        "qkv-mlp",
        "attention and an MLP beside it: queries, keys, values and the MLP's inputs",
        {"q": "q_proj", "k": "k_proj", "v": "v_proj", "mlp": "proj_mlp"},
        (("to_q", "to_k", "to_v", "proj_mlp"),),
    ),
    PartGroup("shift-scale", "what a modulation adds and what it multiplies by", {"shift": "shift", "scale": "scale"}),
)
LAYOUTS = (
    PartLayout(
        "qkv-mlp",
        "qkv-mlp",
        "queries, keys, values, then the MLP's inputs",
        (
            FusedRow(
                "linear1",
                "q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in] mlp[ffn in]",
            ),
        ),
        models="the single blocks of Flux",
        source="state_dict_adapter.py 129-144, 212-226",
    ),
    PartLayout(
        "shift-scale",
        "shift-scale",
        "the shift, then the scale",
        (FusedRow("modulation", "shift[out in] scale[out in]"),),
        models="Flux's last layer in its own files",
        source="state_dict_adapter.py 158-162",
        like=("scale-shift",),
    ),
    PartLayout(
        "scale-shift",
        "shift-scale",
        "the scale, then the shift",
        (FusedRow("modulation", "scale[out in] shift[out in]"),),
        models="Flux's last layer in diffusers",
        source="state_dict_adapter.py 158-162",
        like=("shift-scale",),
    ),
)
