"""The proof of a layout on a GPU: asks torch, and runs networks."""
