"""paramtool reads model checkpoints, shows which parameters are shared, and writes each byte once under every name.

    import paramtool
    arrays = paramtool.load_file("model.dedup.safetensors")     # {name: numpy array}, aliases share memory
    checkpoint = paramtool.read("model.pt")                     # what is in the file, without its tensor bytes
    graph = paramtool.alias_graph(checkpoint)                   # which names share which bytes

The public functions are resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramtool.formats import read
    from paramtool.jobs import (
        alias_graph,
        convert,
        dedup,
        dedup_family,
        export,
        fuse,
        guess,
        inspect,
        load_file,
        unfuse,
        verify,
    )
    from paramtool.layouts.own import register_layout

__version__ = "0.1.0"
__all__ = [
    "__version__", "alias_graph", "convert", "dedup", "dedup_family", "export", "fuse", "guess", "inspect", "load_file",
    "read", "register_layout", "unfuse", "verify",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public function when it is first asked for."""
    if name == "read":
        from paramtool.formats import read

        return read
    if name == "register_layout":
        from paramtool.layouts.own import register_layout

        return register_layout
    if name in __all__:
        from paramtool import jobs

        return getattr(jobs, name)
    raise AttributeError(f"module 'paramtool' has no attribute {name!r}")
