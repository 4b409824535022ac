"""Helpers for reading shards, whether the index or the shards hold the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paramtool.formats.record import codec as record
from paramtool.formats.record import layouts
from paramtool.formats.safetensors.index import TOTAL_SIZE
from paramtool.model.checkpoint import Checkpoint, Compound, Entry
from paramtool.model.storage import Cast, Storage
from paramtool.model.view import View

NAME = "sharded"
"""The beginning of the format name of a sharded checkpoint."""


@dataclass
class Renumber:
    """Renumbers the storages of one shard, after those of the shards before it."""

    first: int

    def view(self, view: View) -> View:
        """The same view with the storage's new number."""
        return View(self.first + int(view.storage), view.dtype, view.offset, view.shape, view.strides)

    def storage(self, storage: Storage) -> Storage:
        """The same storage with its new number; a cast refers to another storage, which is renumbered too."""
        backing = storage.backing
        if isinstance(backing, Cast):
            backing = replace(backing, view=self.view(backing.view))
        return storage._replace(id=self.first + storage.id, backing=backing)

    def entry(self, entry: Entry) -> Entry:
        """The same entry with new numbers."""
        if isinstance(entry.value, View):
            return entry._replace(value=self.view(entry.value))
        if isinstance(entry.value, Compound):
            parts = {label: self.view(view) for label, view in entry.value.parts.items()}
            return entry._replace(value=replace(entry.value, parts=parts))
        return entry


_OUR_KEYS = {TOTAL_SIZE, record.KEY, layouts.KEY}


def own_metadata(index_metadata: Mapping[str, Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The user's own metadata in an index: all but the total size, the record and flat pairs."""
    return {k: v for k, v in index_metadata.items() if k not in _OUR_KEYS and k not in entries}


def merge_metadata(shards: Mapping[str, Checkpoint]) -> tuple[dict[str, str], list[str]]:
    """The metadata of all shards together; a note for each key whose values differ."""
    merged: dict[str, str] = {}
    notes = []
    for file, shard in shards.items():
        for key, text in shard.metadata.items():
            if merged.setdefault(key, text) != text:
                notes.append(f"metadata {key!r} of {file} differs from the shards before it; the first is kept")
    return merged, notes
