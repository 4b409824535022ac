"""The proof of layouts by the libraries that define them.

proof.verify_layout("cudnn")    the proof of a layout on a GPU, as a record
proof.cudnn                     asks cuDNN where it keeps weights; needs no torch and no GPU
proof.gpu                       asks torch, and runs networks on a GPU
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proof.gpu.verify import verify_layout

__all__ = ["verify_layout"]


def __getattr__(name: str) -> object:
    """Import torch only when `verify_layout` is used."""
    if name == "verify_layout":
        from proof.gpu.verify import verify_layout

        return verify_layout
    raise AttributeError(f"module 'proof' has no attribute {name!r}")
