"""Lock files: what a checkpoint held when it was locked, as text for git."""
