"""MXNet is in an environment of its own, and imports only there."""

collect_ignore = ["run_mxnet.py"]
