"""Which windows hold equal bytes, or are slices, transposes or casts of others, and how far two are apart."""
