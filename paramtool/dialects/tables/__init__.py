"""Tables of names, by program."""
