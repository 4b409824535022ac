"""Which layouts are at home in a format: those that the library of its files writes."""

from __future__ import annotations

from collections.abc import Sequence

HOMES = (
    ("mxnet", ("mxnet",), "MXNet"),
    ("torch", ("torch", "cudnn"), "PyTorch"),
    ("keras", ("keras",), "Keras"),
    ("onnx", ("onnx", "torch"), "ONNX"),
    ("jld2", ("flux",), "Flux"),
)
"""(what the name of a format begins with, the layouts that its library writes, the library).  ONNX files of PyTorch's
exporter also hold its own tensors.  What other formats hold (safetensors, npz, HDF5) may be of any library."""
FLAT = {"mxnet": "mxnet.flat"}
"""The layout of flat vectors under names of their own, of libraries that have another one than cuDNN's."""


def homes(format: str) -> tuple[str, ...]:
    """The layouts that the library of a format writes, with their schemes; empty where it may be any library's.

    >>> homes("mxnet V2"), homes("npz")
    (('mxnet',), ())
    """
    return next((names for begin, names, _ in HOMES if format.startswith(begin)), ())


def flat_layout(format: str) -> str:
    """The layout of a vector in a file of that format whose name is of no layout.

    >>> flat_layout("mxnet V2"), flat_layout("torch zip")
    ('mxnet.flat', 'cudnn')
    """
    return next((layout for begin, layout in FLAT.items() if format.startswith(begin)), "cudnn")


def is_at_home(layout: str, homes: Sequence[str]) -> bool:
    """Whether a layout, with options or without, is one of these or a scheme of one.

    >>> is_at_home("mxnet.flat", ["mxnet"]), is_at_home("miopen", ["torch", "cudnn"]), is_at_home("miopen", [])
    (True, False, True)
    """
    name = layout.partition(":")[0]
    return not homes or any(name == home or name.startswith(f"{home}.") for home in homes)
