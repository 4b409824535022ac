"""A script here is run by another Python, with DeepSpeed; doctest must not import it."""

collect_ignore = ["run_deepspeed.py"]
