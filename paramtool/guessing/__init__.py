"""What unnamed tensors could be: networks of exactly that length or shape, each with its reasons."""
