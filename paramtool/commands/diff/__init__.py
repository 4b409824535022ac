"""`paramtool diff`: the steps that settle tensors of two checkpoints, and the base of a fine-tune."""
