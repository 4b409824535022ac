"""The tables of part layouts: attention, gated MLPs, experts, and what is beside them."""

from __future__ import annotations

from paramtool.parts.tables import attention, experts, linear_attention, mlp

GROUPS = (*attention.GROUPS, *mlp.GROUPS, *experts.GROUPS, *linear_attention.GROUPS)
LAYOUTS = (*attention.LAYOUTS, *mlp.LAYOUTS, *experts.LAYOUTS, *linear_attention.LAYOUTS)
