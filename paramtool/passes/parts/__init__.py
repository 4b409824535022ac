"""Attention, gated MLPs and experts in another layout, and models under the names of another family of programs."""
