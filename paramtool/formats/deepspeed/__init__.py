"""Folders that DeepSpeed writes: the checkpoints of ZeRO, stages 1 to 3, and universal checkpoints."""
