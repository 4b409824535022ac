"""The tables of part layouts: attention, gated MLPs, experts, state spaces, and what is beside them.

Known, and not in them yet:
  value heads in turn (GGUF of Qwen3.5), which also moves vectors and columns: llama.cpp `_reorder_v_heads`
  joint inputs of KDA and BailingHybrid: vLLM `alice_ai.py` 587, `bailing_moe_v3.py` 1423
  groups of B and C that ranks repeat: vLLM `mamba_mixer2.py` 202
  pointwise and patch convolutions as Linears: transformers `core_model_loading.py` 399
Experts that are split between two towers (ERNIE-4.5-VL) are in the dialects of transformers and in no layout here:
they are two groups, and a layout describes one.
"""

from __future__ import annotations

from paramtool.parts.layout import PartGroup, PartLayout
from paramtool.parts.tables import attention, experts, latent_attention, linear_attention, mlp, modulation, state_space

_TABLES = (attention, mlp, experts, linear_attention, latent_attention, state_space, modulation)
GROUPS: tuple[PartGroup, ...] = tuple(one for table in _TABLES for one in table.GROUPS)
LAYOUTS: tuple[PartLayout, ...] = tuple(one for table in _TABLES for one in table.LAYOUTS)
