"""MXNet: parameters, and their symbol file."""
