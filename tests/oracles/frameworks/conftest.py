"""The scripts here are run by other Pythons, with libraries that pytest's own has not; doctest must not import them."""

collect_ignore_glob = ["run_*.py", "make_*.py", "open_*.py", "read_*.py", "into_*.py", "train_*.py", "_*.py"]
