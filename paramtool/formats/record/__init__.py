"""The alias record and the record of layouts: read, written, and checked."""
