"""`paramtool report`: what `inspect` and `diff` know of checkpoints, as one page to look at."""
