"""Dialects: which names, and which pieces of which tensors, a family of files has for the same model."""
