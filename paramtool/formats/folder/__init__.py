"""Folders: which files are weights, which are copies of others, and the names of outputs."""
