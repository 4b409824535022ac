"""A checkpoint as a lock file describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping

from paramtool.commands import config_ties
from paramtool.commands._differences import alias_sets
from paramtool.commands._parts_source import config_beside
from paramtool.commands.opening import Allowed, opened
from paramtool.commands.progress import Path, Progress, silent
from paramtool.errors import FormatError, plural
from paramtool.formats import object_tree
from paramtool.lazy_dataclass import dataclass
from paramtool.lockfile import digests
from paramtool.lockfile.lock import (
    CONFIG,
    DECLARED,
    NO_DATA,
    STORAGE,
    UNREAD,
    UNTIED,
    LockedFile,
    LockedModel,
    LockedObject,
    LockedTensor,
    LockedTie,
)
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, NoData, Unreadable
from paramtool.model.objects import Leaf, Node, Sequence, tensor_names, word
from paramtool.model.objects import Mapping as Tree

MAX_WORDS = 60
"""Characters of an object's value in short."""


@dataclass(frozen=True, slots=True)
class LockReading:
    """What is read of a checkpoint for a lock."""

    headers: bool = False
    """Read no tensor."""
    hash_files: bool = True
    """Read every file for its sha256."""
    allow_class: tuple[str, ...] = ()
    allow_unknown: bool = False


def locked_model(path: Path, name: str, reading: LockReading, progress: Progress = silent) -> LockedModel:
    """The checkpoint at a path, under the name that it has in a lock file.

    UsageError where a folder holds several sets of weights, FormatError and UnsafeError as of `read`.
    """
    checkpoint = opened(path, None, progress, Allowed(reading.allow_class, reading.allow_unknown)).checkpoint
    return described(checkpoint, os.fspath(path), name, reading, progress=progress)


def described(
    checkpoint: Checkpoint, path: str, name: str, reading: LockReading, *, progress: Progress = silent
) -> LockedModel:
    """The same for a checkpoint that was read; `path` is the file or folder that it was read from."""
    tensors = {one.name: one for one in sorted(_tensors(checkpoint, reading.headers, progress))}
    files = tuple(_files(checkpoint, path, reading.hash_files and not reading.headers, progress))
    return LockedModel(
        name, files, digests.content(tensors.values()), digests.unnamed(tensors.values()), tensors,
        tuple(sorted(_ties(checkpoint, path))), {one.key: one for one in sorted(_objects(checkpoint))},
        _dialect(checkpoint),
    )  # fmt: skip


def _tensors(checkpoint: Checkpoint, headers: bool, progress: Progress) -> Iterator[LockedTensor]:
    windows = dict(checkpoint.windows())
    made = dict.fromkeys(windows, UNREAD) if headers else _digests(checkpoint, progress)
    for name, view in windows.items():
        yield LockedTensor(name, view.dtype.name, view.shape, made[name])
    for name, entry in checkpoint.entries.items():
        if isinstance(entry.value, NoData):
            yield LockedTensor(name, entry.value.dtype.name, entry.value.shape, NO_DATA)
        elif isinstance(entry.value, Unreadable):
            yield LockedTensor(name, "unreadable", (), NO_DATA)


def _digests(checkpoint: Checkpoint, progress: Progress) -> Mapping[str, str]:
    """blake3 of every window; names of one window are read once."""
    from paramtool.engine.compare.difference import digest
    from paramtool.engine.read.source import Source

    windows = dict(checkpoint.windows())
    views = set(windows.values())
    known = {}
    with Source(checkpoint) as source, progress("lock", sum(view.nbytes for view in views)) as advance:
        for view in sorted(views, key=lambda one: (int(one.storage), one.byte_start)):
            known[view] = digest(source, view, advance)
    return {name: known[view] for name, view in windows.items()}


def _files(checkpoint: Checkpoint, path: str, hashed: bool, progress: Progress) -> Iterator[LockedFile]:
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    names = {os.path.relpath(file.path, folder or ".").replace(os.sep, "/"): file for file in checkpoint.files}
    total = sum(file.nbytes for file in names.values()) if hashed else 0
    with progress("sha256", total) as advance:
        for name, file in sorted(names.items()):
            yield LockedFile(name, file.nbytes, _sha256(file.path, advance) if hashed else "")


def _sha256(path: str, advance: object) -> str:
    import hashlib

    made = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 22):
            made.update(data)
            advance(len(data))  # type: ignore[operator]
    return made.hexdigest()


def _ties(checkpoint: Checkpoint, path: str) -> Iterator[LockedTie]:
    """The alias sets of several names, and what a config.json says of ties."""
    graph = alias.build(checkpoint, parts=False, counts_unused=False)
    sets: dict[str, list[str]] = {}
    for name, head in alias_sets(checkpoint).items():
        sets.setdefault(head, []).append(name)
    for names in sets.values():
        if len(names) > 1:
            is_declared = any(graph.names[name].set_evidence == "declared" for name in names if name in graph.names)
            yield LockedTie(tuple(sorted(names)), DECLARED if is_declared else STORAGE)
    try:
        config = config_ties.config_beside(path)
    except FormatError:
        config = None
    if config is not None:
        from paramtool.passes.config_ties import declared

        for row in declared.table(config, checkpoint, graph):
            if row.says is not None:
                yield LockedTie(tuple(sorted(row.tie.names)), CONFIG if row.says else UNTIED)


def _objects(checkpoint: Checkpoint) -> Iterator[LockedObject]:
    """A row for each top-level key that is not a tensor, and one for a root that has no keys."""
    order = tuple(checkpoint.entries)
    if object_tree.is_flat(checkpoint.objects, order):
        return
    rows: Iterable[tuple[str, Node]] = [("", checkpoint.objects)]
    if isinstance(checkpoint.objects, Tree):
        rows = [(word(key), child) for key, child in checkpoint.objects.items]
    for key, child in rows:
        if any(tensor_names(child)) and isinstance(child, Tree) and not key:
            continue
        data = object_tree.encode(child, order, runs=False)
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        yield LockedObject(key, digests.blake3_of(text), _words(child))


def _words(node: Node) -> str:
    match node:
        case Leaf(value):
            text = repr(value)
            return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]}..."
        case Tree(_, items):
            return plural(len(items), "key")
        case Sequence(_, items):
            return plural(len(items), "item")
    return type(node).__name__.lower()


def _dialect(checkpoint: Checkpoint) -> str:
    """The dialect of the names; empty where none, or several, are recognised."""
    from paramtool.commands._parts_source import dialects_of, parts_source
    from paramtool.parts.known_model import KnownModel

    try:
        config = config_beside(checkpoint.files[0].path)
    except FormatError:
        return ""
    if not config:
        return ""
    source = parts_source(checkpoint)
    found = dialects_of(source, KnownModel(config))
    return found[0] if len(found) == 1 else ""
