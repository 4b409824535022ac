"""BSON as Julia's BSON.jl writes it: the models that Flux saves."""
