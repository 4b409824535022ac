"""Flax's msgpack files: read in place (`read.py`), written (`write.py`); neither flax nor msgpack is needed."""
