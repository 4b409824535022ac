"""Plain shards, which several checkpoints may share, and the index with their alias record.

The index holds the whole alias record (docs/alias-record.md).  The record may refer to files that hold no name of the
weight_map: shards of other checkpoints, linked into the folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paramtool.errors import Defects, FormatError, some
from paramtool.formats import object_tree
from paramtool.formats.record import checks as record_checks
from paramtool.formats.record import codec as record
from paramtool.formats.record import layouts
from paramtool.formats.record.damage import DAMAGE
from paramtool.formats.safetensors._shards import NAME, Renumber, merge_metadata, own_metadata
from paramtool.formats.safetensors.index import plain_names
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import EMPTY
from paramtool.model.storage import SourceFile, Storage
from paramtool.model.view import View


@dataclass(frozen=True, slots=True)
class Said:
    """An index that holds the whole record of its shards."""

    source: SourceFile
    weight_map: Mapping[str, str]
    metadata: Mapping[str, Any]
    document: Mapping[str, Any]
    files: tuple[SourceFile, ...]
    """The file of the record, if it is not in the index itself."""


def linked_files(path: str, document: Mapping[str, Any], weight_map: Mapping[str, str]) -> list[str]:
    """The files to which a record refers and that hold no name of the index."""
    files = plain_names(path, document.get("files", []))
    if clash := set(files) & set(weight_map.values()):
        raise FormatError(f"{path}: its alias record lists {min(clash)!r} as a linked file, and weight_map as a shard")
    return files


def check_plain(
    path: str, weight_map: Mapping[str, str], shards: Mapping[str, Checkpoint], linked: Iterable[str]
) -> None:
    """Defects if a shard is not plain safetensors, or holds names that the index lacks."""
    defects = []
    for file, shard in shards.items():
        if shard.format != "safetensors":
            defects.append(f"{file}: is {shard.format}; an index with an alias record needs safetensors files")
        elif shard.producer or any(entry.link for entry in shard.entries.values()):
            defects.append(f"{file}: has an alias record, and the index has one too; expected one of them")
        elif extra := [name for name in shard.entries if file not in linked and name not in weight_map]:
            defects.append(f"{file}: holds {some(extra, 3)}, which the index lacks")
    if defects:
        raise Defects(path, defects, hint="a file was changed after paramtool wrote the folder")


def spoken_for(said: Said, shards: Mapping[str, Checkpoint], linked: Iterable[str]) -> Checkpoint:
    """One checkpoint from plain shards and the record in their index."""
    path = said.source.path
    views: dict[tuple[str, str], View] = {}
    storages: dict[int, Storage] = {}
    first = 0
    for file, shard in shards.items():
        numbers = Renumber(first)
        first += max(shard.storages, default=-1) + 1
        storages |= {numbers.first + n: numbers.storage(s) for n, s in shard.storages.items()}
        views |= {(file, name): numbers.view(view) for name, view in shard.views().items()}
    stored = {name: views[file, name] for name, file in said.weight_map.items()}
    document, hidden = _qualified(path, said.document, views, set(linked), stored=stored)
    names = record.decode_document(path, {**stored, **hidden}, document, _texts(path, document), whole=True)
    metadata, notes = merge_metadata({file: shard for file, shard in shards.items() if file not in linked})
    used = {int(view.storage) for view in [*stored.values(), *hidden.values()]}
    tree = names.objects if names.objects is not None else EMPTY
    return Checkpoint(
        format=f"{NAME} safetensors",
        files=(said.source, *said.files, *(file for shard in shards.values() for file in shard.files)),
        storages={n: storage for n, storage in storages.items() if n in used} | dict(names.storages),
        entries=object_tree.with_roles(names.entries, tree),
        objects=tree,
        sections=object_tree.sections(tree),
        metadata={**metadata, **names.leftover},
        index_metadata=own_metadata(said.metadata, names.entries),
        producer="paramtool",
        notes=tuple(notes),
        modules=layouts.decode(path, {k: v for k, v in said.metadata.items() if isinstance(v, str)}),
    )


def _qualified(
    path: str,
    document: Mapping[str, Any],
    views: Mapping[tuple[str, str], View],
    linked: set[str],
    *,
    stored: Mapping[str, View],
) -> tuple[dict[str, Any], dict[str, View]]:
    """The record with a unique name for each owner in a linked file, as an anonymous span; and the views of these.

    A linked file belongs to other checkpoints, so it may have a name of this checkpoint, with other bytes.
    """
    found = dict(document)
    hidden: dict[str, View] = {}
    record_checks.form(path, document)
    try:
        aliases = found["aliases"].items()
        found["aliases"] = {}
        for name, item in aliases:
            if "file" in item:
                file, owner = str(item["file"]), str(item["owner"])
                if file not in linked or (file, owner) not in views:
                    what = "is not listed in `files`" if file not in linked else f"does not hold {owner!r}"
                    raise FormatError(f"{path}: {name!r}: is a view of a tensor in {file!r}, which {what}")
                key = f"{file}/{owner}"
                while key in stored or key in document["aliases"]:
                    key += "/"
                hidden[key] = views[file, owner]
                item = {**item, "owner": key}
            found["aliases"][name] = item
        found["spans"] = [*found["spans"], *hidden]
    except DAMAGE as error:
        raise record.damaged(path, error) from None
    return found, hidden


def _texts(path: str, document: Mapping[str, Any]) -> Mapping[str, str]:
    """The files' own metadata, from the record."""
    texts = document.get("metadata", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise FormatError(f"{path}: the metadata in its alias record must map strings to strings")
    return texts
