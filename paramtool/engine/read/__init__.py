"""Windows of a described checkpoint, read block by block, as streams, as arrays, or as samples."""
