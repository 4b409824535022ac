"""Experts of a layer: as a list of modules, or stacked, in two orientations.

A part is one expert's tensor: gate and up [width, inputs], down [outputs, width].
Sources: transformers 5.23.0 (`conversion_mapping.py` is "map"), llama.cpp `conversion/`, mlx-lm d78bf58e, torchtitan
b5bcd76c6.
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout
from paramtool.parts.words import APART

GROUPS = (
    PartGroup(
        "experts",
        "experts, each a gated MLP",
        {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
        APART["experts"][1:],
        inside="{experts}.",
    ),
    PartGroup(
        "shared-experts",
        "shared experts, each a gated MLP",
        {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
        inside="{experts}.",
    ),
)
_DOWN = FusedRow("down_proj", "down[experts out ffn]", along=1, is_bare=True)
_DOWN_TURNED = FusedRow("down_proj", "down[experts ffn out]", along=2, is_bare=True)
_SAME = ("experts", "experts-interleaved", "experts-transposed", "experts-transposed-interleaved")
"""Of one shape: two of them always, all where inputs are as many as the rows of a gate and an up."""


def _like(name: str) -> tuple[str, ...]:
    return tuple(other for other in _SAME if other != name)


LAYOUTS = (
    PartLayout(
        "experts",
        "experts",
        "stacks [experts, outputs, inputs]: the gate, then up",
        (FusedRow("gate_up_proj", "gate[experts ffn in] up[experts ffn in]", along=1, is_bare=True), _DOWN),
        models="about 60 families of transformers 5 in memory, files of Qwen3.5",
        source="transformers map 1272, 1298; `afmoe` 166-167",
        like=_like("experts"),
    ),
    PartLayout(
        "experts-interleaved",
        "experts",
        "stacks [experts, outputs, inputs]: rows of the gate and of up in turn",
        (FusedRow("gate_up_proj", "{ffn: gate[experts 1 in] up[experts 1 in]}", along=1, is_bare=True), _DOWN),
        models="files of Inkling (w13_weight)",
        source="transformers map 227-239",
        like=_like("experts-interleaved"),
    ),
    PartLayout(
        "experts-transposed",
        "experts",
        "stacks [experts, inputs, outputs]: the gate, then up",
        (FusedRow("gate_up_proj", "gate[experts in ffn] up[experts in ffn]", along=2, is_bare=True), _DOWN_TURNED),
        models="Llama 4, files of Qwen3-VL-MoE",
        source="transformers `llama4` 61, map 1362, 2472",
        like=_like("experts-transposed"),
    ),
    PartLayout(
        "experts-transposed-interleaved",
        "experts",
        "stacks [experts, inputs, outputs]: columns of the gate and of up in turn",
        (FusedRow("gate_up_proj", "{ffn: gate[experts in 1] up[experts in 1]}", along=2, is_bare=True), _DOWN_TURNED),
        models="gpt-oss",
        source="transformers `gpt_oss` 74, 82",
        like=_like("experts-transposed-interleaved"),
    ),
    PartLayout(
        "experts-apart",
        "experts",
        "stacks [experts, outputs, inputs] of gate, of up and of down",
        (
            FusedRow("gate_proj", "gate[experts ffn in]", along=1, is_bare=True),
            FusedRow("up_proj", "up[experts ffn in]", along=1, is_bare=True),
            _DOWN,
        ),
        models="Step-3.7, GGUF, MLX, torchtitan",
        source="transformers map 1149; llama.cpp `qwen.py`; mlx-lm `deepseek_v3.py` 427",
    ),
    PartLayout(
        "experts-flat",
        "experts",
        "rows of one expert below those of another; down is transposed",
        (
            FusedRow("w1", "gate[(experts ffn) in]", is_bare=True),
            FusedRow("v1", "up[(experts ffn) in]", is_bare=True),
            FusedRow("w2", "down[(experts ffn) out]", is_bare=True),
        ),
        models="DBRX",
        source="transformers `dbrx` 253-301; llama.cpp `conversion/dbrx.py`",
    ),
    PartLayout(
        "shared-experts-interleaved",
        "shared-experts",
        "stacks [experts, outputs, inputs]: rows of the gate and of up in turn",
        (
            FusedRow("shared_w13_weight", "{ffn: gate[experts 1 in] up[experts 1 in]}", along=1, is_bare=True),
            FusedRow("shared_w2_weight", "down[experts out ffn]", along=1, is_bare=True),
        ),
        models="files of Inkling",
        source="transformers map 227",
    ),
)
