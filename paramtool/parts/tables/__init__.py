"""The tables of part layouts: attention, gated MLPs, experts, and what is beside them."""

from __future__ import annotations

from paramtool.parts.tables import attention, experts, latent, linear_attention, mlp, modulation, state_space

GROUPS = (
    *attention.GROUPS,
    *mlp.GROUPS,
    *experts.GROUPS,
    *latent.GROUPS,
    *linear_attention.GROUPS,
    *state_space.GROUPS,
    *modulation.GROUPS,
)
LAYOUTS = (
    *attention.LAYOUTS,
    *mlp.LAYOUTS,
    *experts.LAYOUTS,
    *latent.LAYOUTS,
    *linear_attention.LAYOUTS,
    *state_space.LAYOUTS,
    *modulation.LAYOUTS,
)
