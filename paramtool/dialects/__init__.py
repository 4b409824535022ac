"""The names and forms that families of programs give to the tensors of one model."""
