"""Compares the ties that a config declares with the ties that a file stores."""
