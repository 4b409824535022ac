"""What unnamed tensors could be: networks of just that length or shape, each with its reasons."""
