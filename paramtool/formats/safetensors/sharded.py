"""Sharded checkpoints: an index that says which file holds which name.

    model.safetensors.index.json      {"metadata": {"total_size": ...}, "weight_map": {name: file}}
    model-00001-of-00002.safetensors  ...

An index may only name files in its own folder.  A shard may be a link to a regular file, as in a hub's cache.
All defects of an index and its shards are reported together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from operator import add
from typing import Any

from paramtool.errors import Defects, FormatError, MissingFileError, ParamtoolError, UnsafeError, plural, some
from paramtool.formats import object_tree, strict_json
from paramtool.formats.joined import on_storages
from paramtool.formats.record import codec as record
from paramtool.formats.record import layouts
from paramtool.formats.record.codec import in_order
from paramtool.formats.record.damage import DAMAGE
from paramtool.formats.safetensors.index import TOTAL_SIZE, plain_names, read_record
from paramtool.grouping import grouped, omit
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, Entries, Entry
from paramtool.model.objects import EMPTY, Node
from paramtool.model.storage import Cast, Ranges, Storage
from paramtool.model.view import View

Shards = Mapping[str, Checkpoint]
"""{file: what is in it}"""
WeightMap = Mapping[str, str]
"""{name: the file that has it}"""
Place = tuple[str, str]
"""A file, and a name in it."""


def read(path: str, read_shard: Callable[[str], Checkpoint]) -> Checkpoint:
    """One checkpoint over all the shards that an index names, with the record in the index or those in the shards.

    A record in the index (docs/alias-record.md) may refer to files that hold no name of the weight_map: shards of
    other checkpoints, linked into the folder.
    """
    index, source = strict_json.strict_file(path, "an index", strict_json.MAX_INDEX_NBYTES)
    weight_map: Any = index.get("weight_map") if isinstance(index, dict) else None
    if not strict_json.are_texts(weight_map, dict):
        raise FormatError(f"{path}: has no weight_map of names to files; it is not the index of a sharded checkpoint")
    plain_names(path, [*weight_map.values()])
    said = index.get("metadata")
    said = said if isinstance(said, dict) else {}
    recorded = read_record(path, said)
    document, files = recorded or ({}, ())
    linked = plain_names(path, document.get("files", []))
    if clash := {*linked} & {*weight_map.values()}:
        raise FormatError(f"{path}: its alias record lists {min(clash)!r} as a linked file, and weight_map as a shard")
    shards = _read_shards(path, weight_map, linked, read_shard)
    held, storages = _numbered(shards)
    metadata, notes = _merge_metadata(omit(shards, linked))
    if recorded is None:
        entries: Entries = {name: entry for those in held.values() for name, entry in those.items()}
        _check_records(path, said, shards, entries)
        entries = _declared(entries, said)
        extra = [n for n, e in entries.items() if n not in weight_map and not e.link]
        if extra:
            notes.append(f"{plural(len(extra), 'tensor')} in a shard but not in the index: {some(extra, 3)}")
        notes += (note for shard in shards.values() for note in shard.notes)
        tree = _merge_trees([shard.objects for shard in shards.values()])
        roles = object_tree.roles(tree)
        entries = {n: object_tree.with_role(e, roles.get(n)) for n, e in _order(entries, weight_map).items()}
        form = next((shard.format for shard in shards.values()), "")
        producer = next((shard.producer for shard in shards.values() if shard.producer), "")
        modules = tuple(module for shard in shards.values() for module in shard.modules)
    else:
        _check_plain(path, weight_map, shards, linked)
        views = {
            (file, n): e.value for file, those in held.items() for n, e in those.items() if isinstance(e.value, View)
        }
        names, used = _by_record(path, document, {n: (file, n) for n, file in weight_map.items()}, views, linked)
        storages = {n: storage for n, storage in storages.items() if n in used} | dict(names.storages)
        metadata |= names.leftover
        form, producer = "safetensors", "paramtool"
        tree = names.objects if names.objects is not None else EMPTY
        entries = object_tree.with_roles(names.entries, tree)
        modules = layouts.decode(path, {k: v for k, v in said.items() if isinstance(v, str)})
    return Checkpoint(
        format=f"sharded {form}".rstrip(),
        files=(source, *files, *(file for shard in shards.values() for file in shard.files)),
        storages=storages,
        entries=entries,
        objects=tree,
        sections=object_tree.sections(tree),
        metadata=metadata,
        index_metadata={
            k: v for k, v in said.items() if k not in (TOTAL_SIZE, record.KEY, layouts.KEY) and k not in entries
        },
        producer=producer,
        unknown=tuple(unknown for shard in shards.values() for unknown in shard.unknown),
        notes=tuple(notes),
        modules=modules,
    )


def _numbered(shards: Shards) -> tuple[dict[str, dict[str, Entry]], Mapping[int, Storage]]:
    """{file: its entries} on the storages of all shards, which are numbered shard after shard, and these storages."""
    plain = Ranges.together([shard.storages for shard in shards.values()])
    entries: dict[str, dict[str, Entry]] = {}
    storages: dict[int, Storage] = {}
    first = 0
    for file, shard in shards.items():
        number = partial(add, first)
        entries[file] = {n: e._replace(value=on_storages(e.value, number)) for n, e in shard.entries.items()}
        for n, storage in shard.storages.items() if plain is None else ():
            backing = storage.backing
            if isinstance(backing, Cast):  # it refers to another storage
                backing = replace(backing, view=on_storages(backing.view, number))
            storages[first + n] = storage._replace(id=first + n, backing=backing)
        first += max(shard.storages, default=-1) + 1
    return entries, storages if plain is None else plain


def _check_records(path: str, index_metadata: Mapping[str, Any], shards: Shards, entries: Entries) -> None:
    """Defects if the records of shards contradict each other or that of the index, or refer to what no shard has."""
    text = index_metadata.get(record.KEY)
    document = record.document(path, text) if isinstance(text, str) else {}
    record.form(path, document, ())
    placed = {n: e.link.position for n, e in entries.items() if e.link and e.link.position >= 0}
    what = "the objects in its alias record refer to a tensor"
    defects = [*record.shards(document, placed)] or [
        f"{file}: {what} {name!r:.200}, which no shard has"
        for file, shard in shards.items()
        if shard.producer == "paramtool"
        for name in objects.tensor_names(shard.objects)
        if name not in entries
    ]
    if defects:
        raise Defects(path, defects, record.CHANGED)


def _read_shards(
    path: str, weight_map: WeightMap, linked: Collection[str], read_shard: Callable[[str], Checkpoint]
) -> dict[str, Checkpoint]:
    """{file: checkpoint} of every shard; Defects lists all their defects."""
    folder = os.path.dirname(path)
    defects: list[str] = []
    hints: list[str] = []
    asked: list[Any] = []
    shards: dict[str, Checkpoint] = {}
    for file in dict.fromkeys([*weight_map.values(), *linked]):
        try:
            shards[file] = read_shard(os.path.join(folder, file))
        except UnsafeError as error:
            raise error.located(path) from None
        except ParamtoolError as error:
            here = f"{os.path.join(folder, file)}: "
            defects += [here + one for one in error.defects] if isinstance(error, Defects) else [error.message]
            hints.append(_missing(path, weight_map) if isinstance(error, MissingFileError) else error.hint)
            asked += error.asked
    defects += _name_defects(weight_map, omit(shards, linked))
    if defects:
        found = Defects(path, defects, hint="; ".join(dict.fromkeys(h for h in hints if h)))
        found.asked = (*asked, *(unknown for shard in shards.values() for unknown in shard.unknown))
        raise found
    return shards


def _missing(path: str, weight_map: WeightMap) -> str:
    """What to do about shards that are not there, and which are."""
    names = sorted({*weight_map.values()})
    there = [name for name in names if os.path.exists(os.path.join(os.path.dirname(path), name))]
    found = f"{len(there)} of {plural(len(names), 'file')} of the index are here{': ' if there else ''}{some(there, 4)}"
    return f"copy or download the folder again: {found}"


def _name_defects(weight_map: WeightMap, shards: Shards) -> list[str]:
    """Names of the index that its shard lacks, and names that are in two shards."""
    absent = grouped(
        (file, name)
        for name, file in weight_map.items()
        if file in shards
        and name not in shards[file].entries
        and not (name.startswith("paramtool.span/") and shards[file].producer == "paramtool")
    )
    places = grouped((name, file) for file, shard in shards.items() for name in shard.entries)
    defects = [f"{file}: lacks {some(names, 3)}, which the index says is in it" for file, names in absent.items()]
    twice = {name: files for name, files in places.items() if len(files) > 1}
    defects += [f"{name!r}: is in {' and '.join(files)}; expected one file" for name, files in twice.items()]
    return defects


def _order(entries: Entries, weight_map: WeightMap) -> Entries:
    """The index's order, then names that it lacks; recorded aliases are at their recorded positions."""
    rank = {name: k for k, name in enumerate(weight_map)}
    placed = [(name, entry) for name, entry in entries.items() if entry.link and entry.link.position >= 0]
    plain = [(name, entry) for name, entry in entries.items() if not (entry.link and entry.link.position >= 0)]
    plain.sort(key=lambda item: rank.get(item[0], len(rank)))
    return in_order(plain, placed)


def _declared(entries: Entries, index_metadata: Mapping[str, Any]) -> Entries:
    """Add the aliases of flat pairs in an index, which huggingface_hub writes, as declared ties.

    If paramtool wrote the index, the shards hold the record, and every name is there already.
    """
    if record.KEY in index_metadata:
        return dict(entries)
    pairs = {
        alias: owner
        for alias, owner in index_metadata.items()
        if alias not in entries and isinstance(owner, str) and owner in entries
    }
    return record.declared(entries, pairs)


def _merge_trees(trees: list[Node]) -> Node:
    """The only tree that holds more than tensors, or all such trees by shard."""
    richer = [
        tree
        for tree in trees
        if not isinstance(tree, objects.Mapping)
        or tree.attributes is not None
        or not all(isinstance(child, objects.TensorRef) for _, child in tree.items)
    ]
    if not richer:
        return EMPTY
    if len(richer) == 1:
        return richer[0]
    return objects.Mapping("dict", tuple((k, tree) for k, tree in enumerate(richer)))


def _check_plain(path: str, weight_map: WeightMap, shards: Shards, linked: Collection[str]) -> None:
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


def _by_record(
    path: str, document: dict[str, Any], places: Mapping[str, Place], views: Mapping[Place, View], linked: list[str]
) -> tuple[record.Names, set[int]]:
    """The names that the record in an index defines, and the storages that they use.

    `places` and `views` are the names of plain shards.  A linked file belongs to other checkpoints, so it may have a
    name of this one, with other bytes: each owner in it gets a name of its own, as an anonymous span.
    """
    stored = {name: views[place] for name, place in places.items()}
    hidden: dict[str, View] = {}
    record.form(path, document)
    try:
        aliases = {}
        for name, item in document["aliases"].items():
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
            aliases[name] = item
        document = {**document, "aliases": aliases, "spans": [*document["spans"], *hidden]}
    except DAMAGE as error:
        raise record.damaged(path, error) from None
    # The files' own metadata, from the record
    texts = document.get("metadata", {})
    if not strict_json.are_texts(texts, dict):
        raise FormatError(f"{path}: the metadata in its alias record must map strings to strings")
    stored |= hidden
    names = record.decode_document(path, stored, document, texts, whole=True)
    return names, {int(view.storage) for view in stored.values()}


def _merge_metadata(shards: Shards) -> tuple[dict[str, str], list[str]]:
    """The metadata of all shards together; a note for each key whose values differ."""
    merged: dict[str, str] = {}
    notes = []
    for file, shard in shards.items():
        for key, text in shard.metadata.items():
            if merged.setdefault(key, text) != text:
                notes.append(f"metadata {key!r} of {file} differs from the shards before it; the first is kept")
    return merged, notes
