"""The state of optimizers: what a file has of it, which parameter each entry belongs to, and how it follows them."""
