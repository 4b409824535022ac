"""Sharded checkpoints: an index that says which file holds which name.

    model.safetensors.index.json      {"metadata": {"total_size": ...}, "weight_map": {name: file}}
    model-00001-of-00002.safetensors  ...

An index may only name files that stand beside it.  A shard may be a link to a regular file, as in a hub's cache.
Everything that is wrong with an index and its shards is gathered and reported together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paramtool.errors import Defects, FormatError, ParamtoolError, UnsafeError
from paramtool.formats import _json, _tree, record
from paramtool.formats._files import open_source
from paramtool.formats._index import TOTAL_SIZE, plain_names, read_record
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, Compound, Entry
from paramtool.model.objects import EMPTY, Node
from paramtool.model.storage import Cast, SourceFile, Storage
from paramtool.model.view import View

NAME = "sharded"
MAX_INDEX_NBYTES = 256 << 20


def read(path: str, read_shard: Callable[[str], Checkpoint]) -> Checkpoint:
    """One checkpoint over all the shards that an index names."""
    weight_map, index_metadata, source = _read_index(path)
    recorded = read_record(path, index_metadata)
    if recorded is None:
        return _merge(source, weight_map, index_metadata, _read_shards(path, weight_map, (), read_shard))
    document, files = recorded
    linked = _linked_files(path, document, weight_map)
    shards = _read_shards(path, weight_map, linked, read_shard)
    _check_plain(path, weight_map, shards, linked)
    return _spoken_for(_Said(source, weight_map, index_metadata, document, files), shards, linked)


def _read_shards(
    path: str, weight_map: Mapping[str, str], linked: Iterable[str], read_shard: Callable[[str], Checkpoint]
) -> dict[str, Checkpoint]:
    """{file: what it holds} of every shard; Defects lists all that is wrong with them."""
    folder = os.path.dirname(path)
    defects: list[str] = []
    hints: list[str] = []
    shards: dict[str, Checkpoint] = {}
    for file in dict.fromkeys([*weight_map.values(), *linked]):
        try:
            shards[file] = read_shard(os.path.join(folder, file))
        except UnsafeError as error:
            raise UnsafeError(f"{path}: {error}", error.hint) from None
        except ParamtoolError as error:
            defects.append(str(error))
            hints.append(error.hint)
    defects += _name_defects(weight_map, {file: shard for file, shard in shards.items() if file not in linked})
    if defects:
        raise Defects(path, defects, hint="; ".join(dict.fromkeys(h for h in hints if h)))
    return shards


def _read_index(path: str) -> tuple[dict[str, str], dict[str, Any], SourceFile]:
    file, source = open_source(path)
    with file:
        if source.nbytes > MAX_INDEX_NBYTES:
            raise FormatError(f"{path}: is an index of {source.nbytes} bytes; expected at most {MAX_INDEX_NBYTES}")
        text = file.read(MAX_INDEX_NBYTES)
    try:
        index = _json.strict(text)
    except ValueError as error:
        raise FormatError(f"{path}: is no JSON: {error}") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise FormatError(f"{path}: has no weight_map of names and files; it is no index of a sharded checkpoint")
    plain_names(path, list(weight_map.values()))
    metadata = index.get("metadata")
    return weight_map, metadata if isinstance(metadata, dict) else {}, source


def _name_defects(weight_map: Mapping[str, str], shards: Mapping[str, Checkpoint]) -> list[str]:
    """Names that the index promises and the shard lacks, and names that stand in two shards."""
    absent: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if file in shards and name not in shards[file].entries and not _is_span(shards[file], name):
            absent.setdefault(file, []).append(name)
    places: dict[str, list[str]] = {}
    for file, shard in shards.items():
        for name in shard.entries:
            places.setdefault(name, []).append(file)
    defects = [f"{file}: lacks {_some(names)}, which the index says it holds" for file, names in absent.items()]
    twice = {name: files for name, files in places.items() if len(files) > 1}
    defects += [f"{name!r}: stands in {' and '.join(files)}" for name, files in twice.items()]
    return defects


def _is_span(shard: Checkpoint, name: str) -> bool:
    """Whether a name of the index is a stored span, which is no tensor's name."""
    return name.startswith("paramtool.span/") and shard.producer == "paramtool"


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# --- shards that an index speaks for -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Said:
    """An index that holds the whole record of its shards."""

    source: SourceFile
    weight_map: Mapping[str, str]
    metadata: Mapping[str, Any]
    document: Mapping[str, Any]
    files: tuple[SourceFile, ...]
    """The file that the record stands in, where that is not the index."""


def _linked_files(path: str, document: Mapping[str, Any], weight_map: Mapping[str, str]) -> list[str]:
    """Files that a record looks into and that hold no name of the index."""
    files = plain_names(path, document.get("files", []))
    if clash := set(files) & set(weight_map.values()):
        raise FormatError(f"{path}: its alias record lists {min(clash)!r} as a linked file, and weight_map as a shard")
    return files


def _check_plain(
    path: str, weight_map: Mapping[str, str], shards: Mapping[str, Checkpoint], linked: Iterable[str]
) -> None:
    """Defects where a shard is not plain safetensors, or holds names that the index lacks."""
    defects = []
    for file, shard in shards.items():
        if shard.format != "safetensors":
            defects.append(f"{file}: is {shard.format}; an index with an alias record speaks for safetensors files")
        elif shard.producer or any(entry.link for entry in shard.entries.values()):
            defects.append(f"{file}: says itself which of its names are aliases, and so does the index")
        elif extra := [name for name in shard.entries if file not in linked and name not in weight_map]:
            defects.append(f"{file}: holds {_some(extra)}, which the index lacks")
    if defects:
        raise Defects(path, defects, hint="a file was changed after paramtool wrote the folder")


def _spoken_for(said: _Said, shards: Mapping[str, Checkpoint], linked: Iterable[str]) -> Checkpoint:
    """One checkpoint of plain shards and the record in their index."""
    path = said.source.path
    views: dict[tuple[str, str], View] = {}
    storages: dict[int, Storage] = {}
    for file, shard in shards.items():
        numbers = _Renumber(max(storages, default=-1) + 1)
        storages |= {numbers.first + n: replace(s, id=numbers.first + n) for n, s in shard.storages.items()}
        views |= {(file, name): numbers.view(view) for name, view in shard.views().items()}
    stored = {name: views[file, name] for name, file in said.weight_map.items()}
    document, hidden = _qualified(path, said.document, views, set(linked), stored)
    names = record.decode_document(path, {**stored, **hidden}, document, _texts(path, document))
    metadata, notes = _merge_metadata({file: shard for file, shard in shards.items() if file not in linked})
    used = {int(view.storage) for view in [*stored.values(), *hidden.values()]}
    tree = names.objects if names.objects is not None else EMPTY
    return Checkpoint(
        format=f"{NAME} safetensors",
        files=(said.source, *said.files, *(file for shard in shards.values() for file in shard.files)),
        storages={number: storage for number, storage in storages.items() if number in used},
        entries=_tree.with_roles(names.entries, tree),
        objects=tree,
        sections=_tree.sections(tree),
        metadata={**metadata, **names.leftover},
        index_metadata=_own_metadata(said.metadata, names.entries),
        producer="paramtool",
        notes=tuple(notes),
        modules=record.decode_modules(path, {k: v for k, v in said.metadata.items() if isinstance(v, str)}),
    )


def _qualified(
    path: str,
    document: Mapping[str, Any],
    views: Mapping[tuple[str, str], View],
    linked: set[str],
    stored: Mapping[str, View],
) -> tuple[dict[str, Any], dict[str, View]]:
    """The record with one name for each owner in a linked file, as a span that is no tensor's name; and their windows.

    A linked file belongs to other checkpoints, so its names may be this one's, with other bytes.
    """
    found = dict(document)
    hidden: dict[str, View] = {}
    try:
        aliases = found["aliases"].items()
        found["aliases"] = {}
        for name, item in aliases:
            if "file" in item:
                file, owner = str(item["file"]), str(item["owner"])
                if file not in linked or (file, owner) not in views:
                    what = "is not listed in `files`" if file not in linked else f"does not hold {owner!r}"
                    raise FormatError(f"{path}: {name!r}: is a window on a tensor of {file!r}, which {what}")
                key = f"{file}/{owner}"
                while key in stored or key in document["aliases"]:
                    key += "/"
                hidden[key] = views[file, owner]
                item = {**item, "owner": key}
            found["aliases"][name] = item
        found["spans"] = [*found["spans"], *hidden]
    except record.DAMAGE as error:
        raise record.damaged(path, error) from None
    return found, hidden


def _texts(path: str, document: Mapping[str, Any]) -> Mapping[str, str]:
    """The files' own metadata, as the record has it."""
    texts = document.get("metadata", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise FormatError(f"{path}: the metadata in its alias record must map texts to texts")
    return texts


# --- shards that speak for themselves ------------------------------------------------------------------------------


@dataclass
class _Renumber:
    """Storage numbers of one shard, moved behind those of the shards before it."""

    first: int

    def view(self, view: View) -> View:
        """The same window with the storage's new number."""
        return replace(view, storage=self.first + int(view.storage))

    def storage(self, storage: Storage) -> Storage:
        """The same storage with its new number; what is cast stands on another one."""
        backing = storage.backing
        if isinstance(backing, Cast):
            backing = replace(backing, view=self.view(backing.view))
        return replace(storage, id=self.first + storage.id, backing=backing)

    def entry(self, entry: Entry) -> Entry:
        """The same entry with new numbers."""
        if isinstance(entry.value, View):
            return replace(entry, value=self.view(entry.value))
        if isinstance(entry.value, Compound):
            parts = {label: self.view(view) for label, view in entry.value.parts.items()}
            return replace(entry, value=replace(entry.value, parts=parts))
        return entry


def _merge(
    index: SourceFile,
    weight_map: Mapping[str, str],
    index_metadata: Mapping[str, Any],
    shards: Mapping[str, Checkpoint],
) -> Checkpoint:
    storages: dict[int, Storage] = {}
    entries: dict[str, Entry] = {}
    for shard in shards.values():
        numbers = _Renumber(max(storages, default=-1) + 1)
        storages |= {numbers.first + n: numbers.storage(s) for n, s in shard.storages.items()}
        entries |= {name: numbers.entry(entry) for name, entry in shard.entries.items()}
    trees = [shard.objects for shard in shards.values()]
    metadata, notes = _merge_metadata(shards)
    entries = _declared(entries, index_metadata)
    extra = [n for n, e in entries.items() if n not in weight_map and not e.link]
    if extra:
        notes.append(f"{len(extra)} tensors stand in a shard and not in the index: {_some(extra)}")
    tree = _merge_trees(trees)
    roles = _tree.roles(tree)
    return Checkpoint(
        format=f"{NAME} {next(iter(shards.values())).format}" if shards else NAME,
        files=(index, *(file for shard in shards.values() for file in shard.files)),
        storages=storages,
        entries={n: replace(e, role=roles.get(n, e.role)) for n, e in _order(entries, weight_map).items()},
        objects=tree,
        sections=_tree.sections(tree),
        metadata=metadata,
        index_metadata=_own_metadata(index_metadata, entries),
        producer=next((shard.producer for shard in shards.values() if shard.producer), ""),
        unknown=tuple(unknown for shard in shards.values() for unknown in shard.unknown),
        notes=(*notes, *(note for shard in shards.values() for note in shard.notes)),
        modules=tuple(module for shard in shards.values() for module in shard.modules),
    )


def _order(entries: Mapping[str, Entry], weight_map: Mapping[str, str]) -> dict[str, Entry]:
    """The index's order; names that it lacks behind, recorded aliases at their recorded positions."""
    rank = {name: k for k, name in enumerate(weight_map)}
    placed = [(name, entry) for name, entry in entries.items() if entry.link and entry.link.position >= 0]
    plain = [(name, entry) for name, entry in entries.items() if not (entry.link and entry.link.position >= 0)]
    plain.sort(key=lambda item: rank.get(item[0], len(rank)))
    return record.in_order(plain, placed)


def _declared(entries: Mapping[str, Entry], index_metadata: Mapping[str, Any]) -> dict[str, Entry]:
    """Flat pairs in an index, which huggingface_hub writes there: the alias is its owner, by declaration.

    Where paramtool wrote the index, the shards hold the record, and every name is there already.
    """
    if record.KEY in index_metadata:
        return dict(entries)
    pairs = {
        alias: owner
        for alias, owner in index_metadata.items()
        if alias not in entries and isinstance(owner, str) and owner in entries
    }
    return record.declared(entries, pairs)


_OUR_KEYS = {TOTAL_SIZE, record.KEY, record.LAYOUTS_KEY}


def _own_metadata(index_metadata: Mapping[str, Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """What the user put into an index: all but the total size, the record and flat pairs."""
    return {k: v for k, v in index_metadata.items() if k not in _OUR_KEYS and k not in entries}


def _merge_metadata(shards: Mapping[str, Checkpoint]) -> tuple[dict[str, str], list[str]]:
    """The shards' own texts together; what differs between shards is noted."""
    merged: dict[str, str] = {}
    notes = []
    for file, shard in shards.items():
        for key, text in shard.metadata.items():
            if merged.setdefault(key, text) != text:
                notes.append(f"metadata {key!r} of {file} differs from the shards before it; the first is kept")
    return merged, notes


def _merge_trees(trees: list[Node]) -> Node:
    """The one tree that says more than names, or all such trees by shard."""
    telling = [tree for tree in trees if not (isinstance(tree, objects.Mapping) and _only_tensors(tree))]
    if not telling:
        return EMPTY
    if len(telling) == 1:
        return telling[0]
    return objects.Mapping("dict", tuple((k, tree) for k, tree in enumerate(telling)))


def _only_tensors(tree: objects.Mapping) -> bool:
    return tree.attributes is None and all(isinstance(child, objects.TensorRef) for _, child in tree.items)
