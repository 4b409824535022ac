"""`check`: the configuration as values, how it is read, and what the rules and a lock find in many checkpoints."""
