"""Recurrent networks in a checkpoint: found, and rewritten in another layout."""
