"""Weights of one checkpoint put into the tensors of another: the plan of `convert --into`."""
