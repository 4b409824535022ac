"""Which tensors of two checkpoints belong together, before and after their bytes are compared."""
