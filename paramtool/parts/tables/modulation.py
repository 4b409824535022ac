"""Diffusion transformers: attention and MLP in one projection, and the two halves of a modulation.

Source: torchtitan b5bcd76c6, `flux/model/state_dict_adapter.py`.
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout

GROUPS = (
    PartGroup(
        "qkv-mlp",
        "attention and MLP side by side: queries, keys, values and the MLP's first layer",
        {"q": "to_q", "k": "to_k", "v": "to_v", "mlp": "proj_mlp"},
    ),
    PartGroup("modulation", "adaLN: shift and scale", {"shift": "shift", "scale": "scale"}),
)
LAYOUTS = (
    PartLayout(
        "qkv-mlp",
        "qkv-mlp",
        "queries, then keys, then values, then the MLP",
        (
            FusedRow(
                "linear1",
                "q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in] mlp[ffn in]",
            ),
        ),
        models="single blocks of Flux and MMDiT",
        source="state_dict_adapter.py 129-144, 212-226",
    ),
    PartLayout(
        "shift-scale",
        "modulation",
        "the shift, then the scale",
        (FusedRow("modulation", "shift[width in] scale[width in]"),),
        models="the final layer of Flux",
        source="state_dict_adapter.py 158-162",
        like=("scale-shift",),
    ),
    PartLayout(
        "scale-shift",
        "modulation",
        "the scale, then the shift",
        (FusedRow("modulation", "scale[width in] shift[width in]"),),
        models="the final layer of Flux in diffusers",
        source="state_dict_adapter.py 158-162",
        like=("shift-scale",),
    ),
)
