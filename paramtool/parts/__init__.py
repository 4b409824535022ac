"""Where the parts of fused parameters are: of attention, gated MLPs, experts and joined projections."""
