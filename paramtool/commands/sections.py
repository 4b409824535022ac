"""A section of a checkpoint with what the file's records say of it."""

from __future__ import annotations

from dataclasses import replace

from paramtool.formats.record.moved import carried_metadata
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes import select


def section_of(whole: Checkpoint, name: str) -> Checkpoint:
    """Only one section, with its prefix stripped from every name; errors as of `select.section`."""
    found = select.section(whole, name)
    prefix = next(section.prefix for section in whole.sections if section.name == name)
    renamed = {f"{prefix}{name}": name for name in found.entries}
    return replace(found, metadata=carried_metadata(whole.files[0].path, whole.metadata, renamed))
