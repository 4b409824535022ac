"""Which layouts each file format usually holds: those that the format's own library writes."""

from __future__ import annotations

from collections.abc import Sequence

HOMES = (
    ("mxnet", ("mxnet",), "MXNet"),
    ("torch", ("torch", "cudnn"), "PyTorch"),
    ("keras", ("keras",), "Keras"),
    ("onnx", ("onnx", "torch"), "ONNX"),
    ("jld2", ("flux",), "Flux"),
    ("bson", ("flux",), "Flux"),
    ("tensorflow", ("keras", "tf1"), "TensorFlow"),
    ("paddle", ("paddle", "torch"), "Paddle"),
)
"""(prefix of the format's name, layouts that its library writes, library).  ONNX files of PyTorch's exporter also hold
PyTorch's own tensors.  Other formats (safetensors, npz, HDF5) may hold tensors of any library."""
FLAT = {"mxnet": "mxnet.flat"}
"""The layout of flat vectors with unknown names, for libraries whose order differs from cuDNN's."""


def homes(format: str) -> tuple[str, ...]:
    """The layouts that the library of a format writes, with their schemes; empty if any library may have written it.

    >>> homes("mxnet V2"), homes("npz")
    (('mxnet',), ())
    """
    return next((names for begin, names, _ in HOMES if format.startswith(begin)), ())


def foreign_names(layout: str, format: str) -> str:
    """The doubt about a layout that is not of the library that wrote the file; else an empty string.

    >>> foreign_names("keras", "torch zip")
    "the names are those of keras in a file of PyTorch: only the network's code says what they mean"
    """
    if is_at_home(layout, homes(format)):
        return ""
    library = next(title for begin, _, title in HOMES if format.startswith(begin))
    return f"the names are those of {layout} in a file of {library}: only the network's code says what they mean"


def flat_layout(format: str) -> str:
    """The layout to assume for a flat vector in a file of that format whose name matches no layout.

    >>> flat_layout("mxnet V2"), flat_layout("torch zip")
    ('mxnet.flat', 'cudnn')
    """
    return next((layout for begin, layout in FLAT.items() if format.startswith(begin)), "cudnn")


def is_at_home(layout: str, homes: Sequence[str]) -> bool:
    """Whether a layout, with or without options, is one of `homes` or a scheme of one; always true if `homes` is empty.

    >>> is_at_home("mxnet.flat", ["mxnet"]), is_at_home("miopen", ["torch", "cudnn"]), is_at_home("miopen", [])
    (True, False, True)
    """
    name = layout.partition(":")[0]
    return not homes or any(name == home or name.startswith(f"{home}.") for home in homes)
