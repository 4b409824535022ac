"""Pickles: a closed machine that runs them without calling what they name, and a writer."""
