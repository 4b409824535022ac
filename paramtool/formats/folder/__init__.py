"""Folders: which files in one are weights, which are copies of others, and what an output there is called."""
