"""Writing outputs: under a temporary name, by copying or calculating, then verified and moved to their place."""
