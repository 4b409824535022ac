"""Which variants of a model can load a checkpoint, before anyone loads it."""
