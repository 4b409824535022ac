"""Zip archives: the byte ranges of members, strictly, and a writer."""
