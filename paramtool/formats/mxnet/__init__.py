"""MXNet: parameters, and the symbol file beside them."""
