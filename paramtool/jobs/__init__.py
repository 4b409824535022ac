"""One function for each thing that people ask for; each joins formats, passes and the engine.

They return plain data and print nothing.  The command line is one call of these, and so is the public library.
Each is imported when it is first asked for: looking at a file needs nothing of what writing one needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramtool.jobs.deduping import Deduped, Options, dedup, default_output
    from paramtool.jobs.exporting import Exported, export
    from paramtool.jobs.inspecting import Inspection, alias_graph, inspect
    from paramtool.jobs.loading import load_file
    from paramtool.jobs.verifying import Verified, verify

PLACES = {
    "inspecting": ("Inspection", "alias_graph", "inspect"),
    "deduping": ("Deduped", "Options", "dedup", "default_output"),
    "exporting": ("Exported", "export"),
    "verifying": ("Verified", "verify"),
    "loading": ("load_file",),
}
__all__ = [
    "Deduped", "Exported", "Inspection", "Options", "Verified", "alias_graph", "dedup", "default_output", "export",
    "inspect", "load_file", "verify",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a job when it is first asked for."""
    for module, names in PLACES.items():
        if name in names:
            return getattr(import_module(f"paramtool.jobs.{module}"), name)
    raise AttributeError(f"module 'paramtool.jobs' has no attribute {name!r}")
