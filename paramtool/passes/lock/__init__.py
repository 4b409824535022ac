"""A checkpoint compared with what a lock file says of it."""
