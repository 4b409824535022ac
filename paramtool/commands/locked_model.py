"""A checkpoint as a lock file describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from paramtool import formats
from paramtool.commands import _value_facts, config_ties
from paramtool.commands._differences import alias_sets
from paramtool.commands.opening import refuse_different
from paramtool.commands.progress import MEMORY_NBYTES, Path, Progress, silent
from paramtool.commands.rearrangement import config_beside, dialects_of, parts_source
from paramtool.commands.sections import training_state
from paramtool.engine.read.digests import Signed
from paramtool.engine.read.one_pass import Hashes, HashPlan
from paramtool.errors import plural
from paramtool.formats.object_tree import is_flat
from paramtool.formats.table import holds
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.lockfile import digests
from paramtool.lockfile.lock import (
    COMPOUND,
    CONFIG,
    DECLARED,
    EPSILONS,
    FACTS,
    NESTING,
    NESTING_DCP,
    NO_DATA,
    STORAGE,
    UNREAD,
    UNREADABLE,
    UNTIED,
    VERSIONS,
    LockedFile,
    LockedModel,
    LockedObject,
    LockedTensor,
    LockedTie,
    LockedView,
)
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Compound, NoData, Unreadable, pending
from paramtool.model.objects import EMPTY
from paramtool.model.view import View
from paramtool.passes import module_versions, nesting, objects_text
from paramtool.passes.config_ties import declared
from paramtool.passes.lock import places


@frozen
class LockReading:
    """What is read of a checkpoint for a lock."""

    headers: bool = False
    """Read no tensor."""
    hash_files: bool = True
    """Read every file for its sha256."""
    counts: bool = False
    """Count what of the numbers is not finite, where they are read."""
    allow_class: tuple[str, ...] = ()
    allow_unknown: bool = False


def locked_model(path: Path, name: str, reading: LockReading, progress: Progress = silent) -> LockedModel:
    """The checkpoint at a path, under the name that it has in a lock file.

    UsageError where a folder holds several sets of weights, FormatError and UnsafeError as of `read`; FormatError, too,
    where a config.json beside it is damaged.
    """
    found = formats.opened(path, allow_class=reading.allow_class, allow_unknown=reading.allow_unknown)
    known = hashes(found.checkpoint, reading, progress)
    refuse_different(path, found, progress, known)
    made = described(found.checkpoint, os.fspath(path), name, known)
    copies = [os.path.basename(copy.path) for copy in found.copies if copy.pairs]
    state = training_state(path, found.checkpoint)
    notes = (*found.checkpoint.left_out, *found.told, *([f"not locked: {state}"] if state else ()))
    return replace(made, unlocked=tuple(copies), forms=found.forms, left_out=notes)


def hashes(checkpoint: Checkpoint, reading: LockReading, progress: Progress) -> Hashes:
    """What is read of a checkpoint's files and tensors for a lock."""
    if reading.headers:
        return Hashes({}, {})
    paths = [file.path for file in checkpoint.files] if reading.hash_files or reading.counts else []
    checkpoint = config_ties.as_stored(checkpoint)
    return _hashes(checkpoint, _windows(checkpoint).values(), paths, progress, counts=reading.counts)


def described(checkpoint: Checkpoint, path: str, name: str, found: Hashes) -> LockedModel:
    """The same for a checkpoint that was read; `path` is the file or folder that it was read from."""
    named, checkpoint = checkpoint, config_ties.as_stored(checkpoint)
    # The files of a checkpoint, by their paths from its folder, with `/`.
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    within = {os.path.relpath(file.path, folder or ".").replace(os.sep, "/"): file for file in checkpoint.files}
    windows = _windows(checkpoint)
    tensors = _tensors(checkpoint, windows, found.tensors)
    files = (LockedFile(inside, file.nbytes, found.files.get(file.path, "")) for inside, file in sorted(within.items()))
    graph = alias.build(checkpoint, parts=False, counts_unused=False)
    ties, views = _shared(checkpoint, graph)
    ties += _of_config(named, path)
    return LockedModel(
        name, tuple(files), digests.content(tensors.values()), digests.unnamed(tensors.values()), tensors,
        tuple(sorted(ties)), {one.key: one for one in _objects(checkpoint)}, _dialect(checkpoint), views,
    )  # fmt: skip


def weights_of(checkpoint: Checkpoint, name: str, *, progress: Progress = silent) -> LockedModel:
    """The tensors of a checkpoint with their digests, and which of them share memory, as a lock file has them."""
    checkpoint = config_ties.as_stored(checkpoint)
    windows = _windows(checkpoint)
    tensors = _tensors(checkpoint, windows, _hashes(checkpoint, windows.values(), (), progress).tensors)
    graph = alias.build(checkpoint, parts=False, counts_unused=False)
    ties, views = _shared(checkpoint, graph)
    whole = digests.content(tensors.values()), digests.unnamed(tensors.values())
    return LockedModel(name, (), *whole, tensors, tuple(sorted(ties)), views=views)


def _windows(checkpoint: Checkpoint) -> dict[str, tuple[View, str]]:
    """Every window by its name, and the sign that is pending for it."""
    windows = {label: (view, "") for label, view in checkpoint.windows()}
    for name, entry in checkpoint.entries.items():
        if sign := pending(entry.value):
            windows.pop(f"{name}/data", None)
            windows[name] = sign[1], sign[0]
    return windows


def _hashes(
    checkpoint: Checkpoint, windows: Iterable[Signed], paths: Sequence[str], progress: Progress, *, counts: bool = False
) -> Hashes:
    """blake3 of every window, pending signs carried out, and the sha256 of files."""
    plan = HashPlan(checkpoint, windows, paths, counts=counts)
    with progress("lock", plan.nbytes) as advance:
        return plan.carried_out(MEMORY_NBYTES, advance)


def _tensors(
    checkpoint: Checkpoint, windows: Mapping[str, Signed], digest_of: Mapping[Signed, str]
) -> dict[str, LockedTensor]:
    """Every window by its name; then what has no windows, and facts that windows lack."""
    made = [
        LockedTensor(label, window[0].dtype.name, window[0].shape, digest_of.get(window, UNREAD))
        for label, window in windows.items()
    ]
    for name, entry in checkpoint.entries.items():
        if isinstance(entry.value, Compound) and name not in windows:
            facts = json.dumps([entry.value.kind, entry.value.facts], sort_keys=True, default=str)
            made.append(LockedTensor(name, COMPOUND, (), digests.blake3_of(facts)))
            if entry.value.state != EMPTY:
                state = digests.blake3_of(_value_facts.text(_value_facts.of_state(entry.value)))
                made.append(LockedTensor(_label(f"{name} (state)", windows), FACTS, (), state))
        elif isinstance(entry.value, NoData):
            made.append(LockedTensor(name, entry.value.dtype.name, entry.value.shape, NO_DATA))
        elif isinstance(entry.value, Unreadable):
            made.append(LockedTensor(name, UNREADABLE, (), NO_DATA))
    for key, said in _value_facts.of_file(checkpoint).items():
        made.append(LockedTensor(_label(key, windows), FACTS, (), digests.blake3_of(_value_facts.text(said))))
    return {one.name: one for one in sorted(made)}


def _label(name: str, taken: Container[str]) -> str:
    """The name of a line that no tensor has."""
    while name in taken:
        name += "/"
    return name


def _shared(checkpoint: Checkpoint, graph: alias.AliasGraph) -> tuple[list[LockedTie], dict[str, LockedView]]:
    """The alias sets of several names, and the places of names in their sets."""
    sets = grouped((head, name) for name, head in alias_sets(checkpoint).items())
    ties, found = [], {}
    for names in sets.values():
        if len(names) > 1:
            is_declared = any(graph.names[name].set_evidence == "declared" for name in names if name in graph.names)
            ties.append(LockedTie(tuple(sorted(names)), DECLARED if is_declared else STORAGE))
            sources = {name: graph.names[name].source for name in names if name in graph.names}
            found.update(places.places(sources) if len(sources) == len(names) else {})
    return ties, {name: LockedView(name, *found[name]) for name in sorted(found)}


def _of_config(checkpoint: Checkpoint, path: str) -> Iterator[LockedTie]:
    """What a config.json says of ties."""
    config = config_ties.config_beside(path)
    if config is not None:
        for row in declared.table(config, checkpoint, alias.build(checkpoint, parts=False, counts_unused=False)):
            if row.says is not None:
                yield LockedTie(tuple(sorted(row.tie.names)), CONFIG if row.says else UNTIED)


def _objects(checkpoint: Checkpoint) -> Iterator[LockedObject]:
    """A row for each key at the top that holds more than tensors."""
    for key, text, words in objects_text.rows(checkpoint.objects):
        yield LockedObject(key, digests.blake3_of(text), words)
    if (versions := module_versions.by_module(checkpoint.objects)).items:
        text = objects_text.canonical(versions)
        yield LockedObject(VERSIONS, digests.blake3_of(text), f"versions of {plural(len(versions.items), 'module')}")
    if (is_torch := checkpoint.format.startswith("torch")) or not is_flat(checkpoint.objects, (*checkpoint.entries,)):
        key = NESTING_DCP if checkpoint.format == "dcp" else NESTING
        if is_torch or key == NESTING_DCP or holds(checkpoint.format).record:
            yield LockedObject(key, digests.blake3_of(nesting.text(checkpoint.objects)), "places of tensors")
    if said := _value_facts.of_norms(checkpoint):
        yield LockedObject(EPSILONS, digests.blake3_of(_value_facts.text(said)), "epsilons of norms")


def _dialect(checkpoint: Checkpoint) -> str:
    """The dialect of the names; empty where none, or several, are recognised."""
    from paramtool.parts.config_facts import KnownModel

    config = config_beside(checkpoint.path)
    if not config:
        return ""
    source = parts_source(checkpoint)
    found = dialects_of(source, KnownModel(config))
    return found[0] if len(found) == 1 else ""
