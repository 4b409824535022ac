"""The proof of layouts by the libraries that define them.

paramtool.proof.verify_layout("cudnn")    the proof of a layout on a GPU, as a record
paramtool.proof.cudnn                     asks cuDNN where it keeps weights; needs no torch and no GPU
paramtool.proof.gpu                       asks torch, and runs networks on a GPU
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramtool.proof.gpu.verify import verify_layout

__all__ = ["verify_layout"]


def __getattr__(name: str) -> object:
    """Import torch only when `verify_layout` is used."""
    if name == "verify_layout":
        from paramtool.proof.gpu.verify import verify_layout

        return verify_layout
    raise AttributeError(f"module 'paramtool.proof' has no attribute {name!r}")
