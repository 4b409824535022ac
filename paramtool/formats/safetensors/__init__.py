"""safetensors: one file, and shards with their index."""
