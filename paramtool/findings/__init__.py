"""Findings as other programs read them: one module for each format, and nothing that reads a checkpoint."""
