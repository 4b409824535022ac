"""State space layers: what one projection gives, and the channels of their convolution.

Sources: transformers 5.23.0 (`models/NAME/modeling_NAME.py`), Megatron-Bridge 067f987df (`models/conversion/
param_mapping.py` is "MB").
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout

GROUPS = (
    PartGroup("mamba", "Mamba: what is scanned, and its gate", {"ssm_x": "x_in_proj", "ssm_z": "z_in_proj"}),
    PartGroup(
        "mamba-steps",
        "Mamba: time steps, B and C",
        {"dt_low": "dt_in_proj", "b_state": "B_proj", "c_state": "C_proj"},
    ),
    PartGroup(
        "state-space",
        "Mamba-2: the gate, what is scanned, B, C and time steps",
        {"ssm_z": "z_in_proj", "ssm_x": "x_in_proj", "ssm_b": "B_proj", "ssm_c": "C_proj", "ssm_dt": "dt_in_proj"},
    ),
    PartGroup(
        "state-space-convs",
        "Mamba-2: the convolutions of what is scanned, of B and of C",
        {"x_conv": "x_conv1d", "b_conv": "B_conv1d", "c_conv": "C_conv1d"},
    ),
    PartGroup("conv", "a convolution of each channel alone: [channels, 1, taps] in PyTorch", {"conv": "conv1d"}),
)
LAYOUTS = (
    PartLayout(
        "mamba-in",
        "mamba",
        "what is scanned, then its gate",
        (FusedRow("in_proj", "ssm_x[inner in] ssm_z[inner in]"),),
        models="Mamba, Falcon-Mamba, Jamba",
        source="transformers `mamba` 318, 400",
    ),
    PartLayout(
        "mamba-steps",
        "mamba-steps",
        "time steps of low rank, then B, then C",
        (FusedRow("x_proj", "dt_low[dt_rank in] b_state[state in] c_state[state in]"),),
        models="Mamba, Falcon-Mamba, Jamba",
        source="transformers `mamba` 320, 432",
    ),
    PartLayout(
        "mamba2-in",
        "state-space",
        "the gate, what is scanned, B, C, time steps",
        (
            FusedRow(
                "in_proj",
                "ssm_z[inner in] ssm_x[inner in] ssm_b[(groups state) in] ssm_c[(groups state) in] "
                "ssm_dt[state_heads in]",
            ),
        ),
        models="Mamba-2, Bamba, Nemotron-H, Granite hybrid, Zamba2",
        source="transformers `mamba2` 417, 506; MB 2034-2080",
        like=("mamba2-in-per-chunk",),
    ),
    PartLayout(
        "mamba2-in-per-chunk",
        "state-space",
        "for each chunk its gate, what it scans, B, C, time steps",
        (
            FusedRow(
                "in_proj",
                "{chunks: ssm_z[chunk_inner in] ssm_x[chunk_inner in] ssm_b[(chunk_groups state) in] "
                "ssm_c[(chunk_groups state) in] ssm_dt[chunk_state_heads in]}",
            ),
        ),
        models="the same in Megatron, files of tensor-parallel ranks that were joined row by row; groups that ranks "
        "repeat are not among them",
        source="MB 2064-2078",
        like=("mamba2-in",),
    ),
    PartLayout(
        "mamba2-convs",
        "state-space-convs",
        "the channels of what is scanned, of B and of C",
        (FusedRow("conv1d", "x_conv[inner 1 taps] b_conv[(groups state) 1 taps] c_conv[(groups state) 1 taps]"),),
        models="Mamba-2, Bamba, Nemotron-H",
        source="transformers `mamba2` 541; MB 2250",
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
        source="mlx-lm d78bf58e `models/mamba.py` 214",
    ),
)
