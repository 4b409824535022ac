"""State spaces: the joint inputs of Mamba and Mamba-2, and their convolutions.

Sources: transformers 5.23.0 `models/mamba/modeling_mamba.py`, `models/mamba2/modeling_mamba2.py`, Megatron-Bridge
067f987df `models/conversion/param_mapping.py`, llama.cpp `conversion/mamba.py`, mlx-lm d78bf58e `models/mamba.py`.
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout

GROUPS = (
    PartGroup(
        "mamba-in", "Mamba: the inputs x and z", {"ssm_x": "in_proj_x", "ssm_z": "in_proj_z"}
    ),
    PartGroup(
        "mamba-x",
        "Mamba: what follows from x, the time step, B and C",
        {"x_dt": "x_proj_dt", "x_b": "x_proj_b", "x_c": "x_proj_c"},
    ),
    PartGroup(
        "mamba2-in",
        "Mamba-2: z, x, B, C and the time steps",
        {"ssm_z": "in_proj_z", "ssm_x": "in_proj_x", "ssm_b": "in_proj_b", "ssm_c": "in_proj_c",
         "ssm_dt": "in_proj_dt"},
    ),
    PartGroup(
        "mamba2-conv",
        "Mamba-2: the convolutions of x, B and C",
        {"x_conv": "conv1d_x", "b_conv": "conv1d_b", "c_conv": "conv1d_c"},
    ),
    PartGroup("conv", "a convolution of each channel alone, [channels, 1, taps]", {"conv": "conv1d"}),
)  # fmt: skip
LAYOUTS = (
    PartLayout(
        "mamba-in",
        "mamba-in",
        "x, then z",
        (FusedRow("in_proj", "ssm_x[inner in] ssm_z[inner in]"),),
        models="Mamba, Falcon-Mamba, Jamba",
        source="transformers `mamba` 318, 400",
    ),
    PartLayout(
        "mamba-x",
        "mamba-x",
        "the time step, then B, then C",
        (FusedRow("x_proj", "x_dt[dt_rank in] x_b[state in] x_c[state in]"),),
        models="Mamba, Falcon-Mamba, Jamba",
        source="transformers `mamba` 320, 432",
    ),
    PartLayout(
        "mamba2-in",
        "mamba2-in",
        "z, x, B, C, then the time steps",
        (
            FusedRow(
                "in_proj",
                "ssm_z[inner in] ssm_x[inner in] ssm_b[(groups state) in] ssm_c[(groups state) in] "
                "ssm_dt[state_heads in]",
            ),
        ),
        models="Mamba-2, Bamba, Nemotron-H, Granite hybrid, Zamba2",
        source="transformers `mamba2` 417, 506; Megatron-Bridge 2034-2080",
    ),
    PartLayout(
        "mamba2-conv",
        "mamba2-conv",
        "the channels of x, of B and of C",
        (FusedRow("conv1d", "x_conv[inner 1 taps] b_conv[(groups state) 1 taps] c_conv[(groups state) 1 taps]"),),
        models="Mamba-2, Bamba, Nemotron-H, Granite hybrid, Zamba2",
        source="transformers `mamba2` 541; Megatron-Bridge 2250",
    ),
    PartLayout(
        "conv-flat",
        "conv",
        "[channels, taps]",
        (FusedRow("conv1d", "conv[channels taps]"),),
        models="GGUF",
        source="llama.cpp `conversion/mamba.py`",
    ),
    PartLayout(
        "conv-last",
        "conv",
        "[channels, taps, 1]",
        (FusedRow("conv1d", "conv[channels taps 1]"),),
        models="MLX",
        source="mlx-lm `mamba.py` 214",
    ),
)
