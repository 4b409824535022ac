"""A checkpoint as a lock file describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from paramtool.commands import config_ties
from paramtool.commands._differences import alias_sets
from paramtool.commands._parts_source import config_beside
from paramtool.commands.opening import Allowed, opened
from paramtool.commands.progress import MEMORY_NBYTES, Path, Progress, silent
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
    LockedView,
)
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Compound, NoData, Unreadable, pending
from paramtool.model.storage import SourceFile
from paramtool.model.view import View
from paramtool.passes import objects_text
from paramtool.passes.lock import places


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

    UsageError where a folder holds several sets of weights, FormatError and UnsafeError as of `read`; FormatError, too,
    where a config.json beside it is damaged.
    """
    found = opened(path, None, progress, Allowed(reading.allow_class, reading.allow_unknown))
    made = described(found.checkpoint, os.fspath(path), name, reading, progress=progress)
    copies = [os.path.basename(copy.path) for copy in found.copies]
    return replace(made, unlocked=tuple(copies))


def described(
    checkpoint: Checkpoint, path: str, name: str, reading: LockReading, *, progress: Progress = silent
) -> LockedModel:
    """The same for a checkpoint that was read; `path` is the file or folder that it was read from."""
    places = _files(checkpoint, path)
    hashed = [file.path for file in places.values()] if reading.hash_files and not reading.headers else []
    with _hashing(hashed, sum(file.nbytes for file in places.values())) as sha256:
        tensors = {one.name: one for one in sorted(_tensors(checkpoint, reading.headers, progress))}
        known = sha256()
    files = (LockedFile(inside, file.nbytes, known.get(file.path, "")) for inside, file in sorted(places.items()))
    graph = alias.build(checkpoint, parts=False, counts_unused=False)
    ties, views = _shared(checkpoint, graph)
    ties += _of_config(checkpoint, path, graph)
    return LockedModel(
        name, tuple(files), digests.content(tensors.values()), digests.unnamed(tensors.values()), tensors,
        tuple(sorted(ties)), {one.key: one for one in _objects(checkpoint)}, _dialect(checkpoint), views,
    )  # fmt: skip


def weights_of(checkpoint: Checkpoint, name: str, *, progress: Progress = silent) -> LockedModel:
    """The tensors of a checkpoint with their digests, and which of them share memory, as a lock file has them."""
    tensors = {one.name: one for one in sorted(_tensors(checkpoint, False, progress))}
    graph = alias.build(checkpoint, parts=False, counts_unused=False)
    ties, views = _shared(checkpoint, graph)
    whole = digests.content(tensors.values()), digests.unnamed(tensors.values())
    return LockedModel(name, (), *whole, tensors, tuple(sorted(ties)), views=views)


@contextmanager
def _hashing(paths: list[str], nbytes: int) -> Iterator[Callable[[], dict[str, str]]]:
    """Read files for their sha256 in a thread, while tensors are read; what is given waits for the result."""
    from paramtool.engine.read.digests import THREADS_NBYTES, sha256_of_files
    from paramtool.engine.read.threads import begun

    if nbytes < THREADS_NBYTES:
        yield lambda: sha256_of_files(paths)
        return
    stopped = False

    def advance(nbytes: int) -> None:
        if stopped:
            raise InterruptedError

    with begun(lambda: sha256_of_files(paths, advance)) as result:
        try:
            yield result
        finally:
            stopped = True


def _tensors(checkpoint: Checkpoint, headers: bool, progress: Progress) -> Iterator[LockedTensor]:
    """Every window by its name, pending signs carried out; then what has no windows, and facts that windows lack."""
    windows = {label: (view, "") for label, view in checkpoint.windows()}
    for name, entry in checkpoint.entries.items():
        if isinstance(entry.value, Compound):
            if sign := pending(entry.value):
                windows.pop(f"{name}/data", None)
                windows[name] = sign[1], sign[0]
            else:
                facts = json.dumps([entry.value.kind, entry.value.facts], sort_keys=True, default=str)
                yield LockedTensor(name, "compound", (), digests.blake3_of(facts))
        elif isinstance(entry.value, NoData):
            yield LockedTensor(name, entry.value.dtype.name, entry.value.shape, NO_DATA)
        elif isinstance(entry.value, Unreadable):
            yield LockedTensor(name, "unreadable", (), NO_DATA)
    made = {} if headers else _digests(checkpoint, list(windows.values()), progress)
    for label, window in windows.items():
        yield LockedTensor(label, window[0].dtype.name, window[0].shape, made.get(window, UNREAD))


def _digests(
    checkpoint: Checkpoint, windows: list[tuple[View, str]], progress: Progress
) -> Mapping[tuple[View, str], str]:
    """blake3 of every window; names of one window are read once."""
    from paramtool.engine.read import digests as reading

    with progress("lock", reading.distinct_nbytes(windows)) as advance:
        return reading.digests(checkpoint, windows, MEMORY_NBYTES, advance)


def _files(checkpoint: Checkpoint, path: str) -> dict[str, SourceFile]:
    """The files of a checkpoint, by their paths from its folder, with `/`."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    return {os.path.relpath(file.path, folder or ".").replace(os.sep, "/"): file for file in checkpoint.files}


def _shared(checkpoint: Checkpoint, graph: alias.AliasGraph) -> tuple[list[LockedTie], dict[str, LockedView]]:
    """The alias sets of several names, and the places of names in their sets."""
    sets: dict[str, list[str]] = {}
    for name, head in alias_sets(checkpoint).items():
        sets.setdefault(head, []).append(name)
    ties, found = [], {}
    for names in sets.values():
        if len(names) > 1:
            is_declared = any(graph.names[name].set_evidence == "declared" for name in names if name in graph.names)
            ties.append(LockedTie(tuple(sorted(names)), DECLARED if is_declared else STORAGE))
            sources = {name: graph.names[name].source for name in names if name in graph.names}
            found.update(places.places(sources) if len(sources) == len(names) else {})
    return ties, {name: LockedView(name, *found[name]) for name in sorted(found)}


def _of_config(checkpoint: Checkpoint, path: str, graph: alias.AliasGraph) -> Iterator[LockedTie]:
    """What a config.json says of ties."""
    config = config_ties.config_beside(path)
    if config is not None:
        from paramtool.passes.config_ties import declared

        for row in declared.table(config, checkpoint, graph):
            if row.says is not None:
                yield LockedTie(tuple(sorted(row.tie.names)), CONFIG if row.says else UNTIED)


def _objects(checkpoint: Checkpoint) -> Iterator[LockedObject]:
    """A row for each key at the top that holds more than tensors."""
    for key, text, words in objects_text.rows(checkpoint.objects):
        yield LockedObject(key, digests.blake3_of(text), words)


def _dialect(checkpoint: Checkpoint) -> str:
    """The dialect of the names; empty where none, or several, are recognised."""
    from paramtool.commands._parts_source import dialects_of, parts_source
    from paramtool.parts.known_model import KnownModel

    config = config_beside(checkpoint.files[0].path)
    if not config:
        return ""
    source = parts_source(checkpoint)
    found = dialects_of(source, KnownModel(config))
    return found[0] if len(found) == 1 else ""
