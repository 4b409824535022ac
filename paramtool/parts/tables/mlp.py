"""Gated MLPs: the gate and the other factor ("up") in one tensor.

Sources: transformers 5.23.0 (`conversion_mapping.py` is "map"), vLLM 0.33.0, Megatron-Bridge 067f987df.
"""

from __future__ import annotations

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout
from paramtool.parts.words import APART

GROUPS = (
    PartGroup(
        "gate-up",
        "gated MLP: gate and up",
        {"gate": "gate_proj", "up": "up_proj"},
        APART["gate-up"][1:],
    ),
)
_SAME = ("gate-up", "up-gate", "gate-up-interleaved", "gate-up-per-chunk")


def _like(name: str) -> tuple[str, ...]:
    return tuple(other for other in _SAME if other != name)


LAYOUTS = (
    PartLayout(
        "gate-up",
        "gate-up",
        "the gate, then up",
        (FusedRow("gate_up_proj", "gate[ffn in] up[ffn in]"),),
        models="Phi-3, GLM, Dia, GraniteMoe, ChatGLM, vLLM in memory",
        source="transformers map 428, 480; `phi3` 58-60; `jetmoe` 254",
        like=_like("gate-up"),
    ),
    PartLayout(
        "up-gate",
        "gate-up",
        "up, then the gate",
        (FusedRow("gate_up_proj", "up[ffn in] gate[ffn in]"),),
        models="Molmo2, gte",
        source="transformers map 985, 1692",
        like=_like("up-gate"),
    ),
    PartLayout(
        "gate-up-interleaved",
        "gate-up",
        "a row of the gate and a row of up in turn",
        (FusedRow("gate_up_proj", "{ffn: gate[1 in] up[1 in]}"),),
        models="gpt-oss, Inkling",
        source="transformers `gpt_oss` 82, map 227-239; llama.cpp `conversion/gpt_oss.py`",
        like=_like("gate-up-interleaved"),
    ),
    PartLayout(
        "gate-up-per-chunk",
        "gate-up",
        "for each chunk its gate, then its up",
        (FusedRow("gate_up_proj", "{chunks: gate[chunk_ffn in] up[chunk_ffn in]}"),),
        models="SwiGLU of Megatron's tensor-parallel ranks that were joined row by row",
        source="Megatron-Bridge 2591; DeepSpeed `checkpoint/ds_to_universal.py`",
        like=_like("gate-up-per-chunk"),
    ),
)
