"""The proof of a layout on a GPU: torch asked, and networks run."""
