"""One function for each thing that people ask for; each joins formats, passes and the engine.

They return plain data and print nothing.  The command line is one call of these, and so is the public library.
Each is imported when it is first asked for: looking at a file needs nothing of what writing one needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramtool.jobs._sets import Each
    from paramtool.jobs._writing import default_output
    from paramtool.jobs.deduping import Deduped, Options, dedup, dedup_each
    from paramtool.jobs.exporting import Exported, ExportOptions, export, export_each
    from paramtool.jobs.family import Family, dedup_family
    from paramtool.jobs.guessing import Guessed, guess
    from paramtool.jobs.inspecting import Inspection, alias_graph, inspect
    from paramtool.jobs.layouting import layouts
    from paramtool.jobs.loading import load_file
    from paramtool.jobs.options import Given
    from paramtool.jobs.relayouting import Relayouted, RelayoutOptions, convert, fuse, relayout, relayout_each, unfuse
    from paramtool.jobs.varianting import Variant, variants
    from paramtool.jobs.verifying import Verified, verify, verify_each
    from paramtool.jobs.verifying_layouts import ask_library, check_record_place, to_verify, write_record

PLACES = {
    "inspecting": ("Inspection", "alias_graph", "inspect"),
    "_writing": ("default_output",),
    "deduping": ("Deduped", "Options", "dedup", "dedup_each"),
    "_sets": ("Each",),
    "family": ("Family", "dedup_family"),
    "exporting": ("ExportOptions", "Exported", "export", "export_each"),
    "verifying": ("Verified", "verify", "verify_each"),
    "verifying_layouts": ("ask_library", "check_record_place", "to_verify", "write_record"),
    "varianting": ("Variant", "variants"),
    "guessing": ("Guessed", "guess"),
    "layouting": ("layouts",),
    "options": ("Given",),
    "loading": ("load_file",),
    "relayouting": ("RelayoutOptions", "Relayouted", "convert", "fuse", "relayout", "relayout_each", "unfuse"),
}
__all__ = [
    "Deduped", "Each", "ExportOptions", "Exported", "Family", "Given", "Guessed", "Inspection", "Options",
    "RelayoutOptions", "Relayouted", "Variant", "Verified", "alias_graph", "ask_library", "check_record_place",
    "convert", "dedup", "dedup_each", "dedup_family", "default_output", "export", "export_each", "fuse", "guess",
    "inspect", "layouts", "load_file", "relayout", "relayout_each", "to_verify", "unfuse", "variants", "verify",
    "verify_each", "write_record",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a job when it is first asked for."""
    for module, names in PLACES.items():
        if name in names:
            return getattr(import_module(f"paramtool.jobs.{module}"), name)
    raise AttributeError(f"module 'paramtool.jobs' has no attribute {name!r}")
