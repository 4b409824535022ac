"""Which bytes are stored once, and under which name."""
