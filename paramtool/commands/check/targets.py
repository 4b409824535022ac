"""Which checkpoints are checked: paths, and patterns that the shell did not expand."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from paramtool.errors import MissingFileError, NoSuchFileError, ParamtoolError, UnsafeError, UsageError, printable, some
from paramtool.formats.folder.weight_names import is_index_name
from paramtool.lazy_dataclass import frozen

if TYPE_CHECKING:
    from paramtool.formats.folder.weight_names import Weights
    from paramtool.model.checkpoint import Checkpoint
    from paramtool.model.storage import SourceFile

MANY = 3
"""How many files a note names."""
ANY = {"", "bin", "data", "index", "json", "pickle", "pkl", "zip"}
"""Suffixes of all kinds of files, some of which are checkpoints."""
ARRAYS = (".npy", ".npz")
"""The ends of names of arrays, which are weights of few libraries, and measurements of many."""


@frozen
class CheckTarget:
    """A path, or why there is none."""

    path: str
    error: ParamtoolError | None = None
    given: tuple[str, ...] = ()
    """Files of a locked model that were given in place of it."""

    @property
    def notes(self) -> list[str]:
        """For which files the whole model was checked."""
        files = some([printable(path) for path in self.given], MANY)
        return [f"checked as one model, whose files were given: {files}"] if files else []


class InFolder(NamedTuple):
    """What else is in a folder that is one model."""

    checked: list[str]
    """Checkpoints that are checked in its place: its own model is an array, which is no model for most libraries."""
    left: list[str]
    """Files that could be checkpoints, and that no library looks for."""


class Targets(NamedTuple):
    """What is checked."""

    targets: list[CheckTarget]
    notes: list[str]
    """What matches a pattern and is not checked."""


def targets(paths: Iterable[str], is_named: Callable[[str], bool], folder: str = "") -> Targets:
    """Every path once, in the order of the arguments; a pattern becomes the checkpoints that match, sorted by name.

    Paths and patterns are relative to `folder`; `is_named` says whether the lock has a model of a path.  A path that is
    not there, and a pattern that matches nothing, is an error of its own.
    """
    found: dict[str, CheckTarget] = {}
    skipped: dict[str, None] = {}
    for path in paths:
        for one in _expanded(os.path.join(folder, path), is_named, skipped):
            found.setdefault(os.path.normpath(one.path) if one.path else "", one)
    names = [printable(path) for path in skipped if os.path.normpath(path) not in found]
    notes = [f"not checked, since they are no checkpoints: {some(names, MANY)}"] if names else []
    return Targets(list(found.values()), notes)


def _expanded(path: str, is_named: Callable[[str], bool], skipped: dict[str, None]) -> Iterator[CheckTarget]:
    """The targets of one path or pattern; what of it is no checkpoint is added to `skipped`."""
    if not path or os.path.lexists(path):
        yield CheckTarget(path, None if path else UsageError("an empty path; expected a file or a folder"))
    elif not re.search(r"[*?\[]", path):
        yield CheckTarget(path, MissingFileError(path, "no such file or folder"))
    elif (found := matching(path, is_named)).paths:
        skipped |= dict.fromkeys(found.skipped)
        yield from map(CheckTarget, found.paths)
    else:
        yield CheckTarget(path, NoSuchFileError(path, "no file matches this pattern"))


def inside(folder: str) -> list[str]:
    """The checkpoints of a folder that is not one itself: sets of weights there and in subfolders, with their copies.

    Files that could be one are among them, also those that cannot be read, and those whose names no library looks for.
    Empty where nothing can be read.  A set that is damaged hides no other.
    """
    from paramtool import formats
    from paramtool.formats.folder import weight_sets

    seen: list[str] = []

    def read(path: str) -> Checkpoint:
        seen.append(path)
        return formats.read_file(path)

    try:
        found = weight_sets.every(folder, read)
    except ParamtoolError:
        found = {}
    paths = [path for place, sets in found.items() for path in _of_place(folder, place, sets)]
    known = {*paths, *(path for sets in found.values() for one in sets for path in belongs(one))}
    left = [path for path in seen if path not in known and os.path.dirname(path) not in paths]
    places = [os.path.join(folder, *place.split("/")) for place in weight_sets.inner(folder)]
    for inner in (*places, *_distributed(folder)):  # `every` leaves sets out beside those that libraries look for
        if not any(path == inner or path.startswith(inner + os.sep) for path in (*paths, *left)):
            left.append(inner)
    known |= {*seen, *left}
    open_folders = [folder, *(place for place in places if place not in paths)]
    others = [path for place in open_folders for path in _likely(place) if path not in known]
    every = list(dict.fromkeys([*paths, *left, *others]))
    return every if found or places or not seen else []


def beside(folder: str) -> InFolder:
    """What else is in a folder that is one model; nothing that belongs to it."""
    from paramtool.commands.output.sidecars import of_file

    one = only_model(folder)
    if one is None:
        return InFolder([], [])
    if all(file.path.endswith(ARRAYS) for file in one.checkpoint.files) and len(every := inside(folder)) > 1:
        return InFolder(every, [])
    states = of_file(folder, (file.path for file in one.checkpoint.files)).states
    known = {os.path.normpath(path) for path in (*belongs(one), *(os.path.join(folder, name) for name in states))}
    return InFolder([], [path for path in _likely(folder) if os.path.normpath(path) not in known])


def _likely(folder: str) -> list[str]:
    """The files directly in a folder that could be checkpoints, sorted by name.

    Those that cannot be read are among them if their names say that they are ones: `best.pth.tar`, and no `data.zip`.
    """
    from paramtool.formats import may_be_checkpoint, table

    try:
        every = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    except OSError:
        return []
    likely = [path for path in every if os.path.isfile(path) and may_be_checkpoint(path)]
    words = {word for suffix in table.suffixes() for word in suffix.split(".")} - ANY
    return [
        path for path in likely if words.intersection(os.path.basename(path).lower().split(".")[1:]) or _is_read(path)
    ]


def _is_read(path: str) -> bool:
    """Whether a file is a checkpoint, and not damaged."""
    from paramtool import formats

    try:
        formats.read_file(path)
    except UnsafeError:
        return True
    except ParamtoolError:
        return False
    return True


def _distributed(folder: str) -> list[str]:
    """Subfolders that torch.distributed.checkpoint wrote."""
    from glob import escape, glob

    return sorted(map(os.path.dirname, glob(os.path.join(escape(folder), "*", ".metadata"))))


def _of_place(folder: str, place: str, sets: Sequence[Weights]) -> list[str]:
    """The paths of the sets of one folder: the subfolder itself, if it has one set and no copies."""
    if place and len(sets) == 1 and not sets[0].copies:
        return [os.path.join(folder, *place.split("/"))]
    return [path for one in sets for path in (one.path, *(copy.path for copy in one.copies))]


# --- What a pattern gives: each checkpoint once, whether as a folder or as a file, and not what else is in its folder
#
#     m/shards                        the folder, without its shards, its index and its config.json
#     m/model.safetensors.index.json  the index, without its shards, if the pattern gives no folder
#     m/one.safetensors               the file, without its folder
#     m/docs, m/docs/README.md        nothing, if the pattern names no suffix
#
# Whatever could be a checkpoint and cannot be read is given, too: its error is one of the run.


class Matching(NamedTuple):
    """What matches a pattern."""

    paths: list[str]
    """What is checked."""
    skipped: list[str]
    """What is no checkpoint, and no part of one that is checked."""


def matching(pattern: str, is_named: Callable[[str], bool]) -> Matching:
    """The checkpoints that match a pattern, sorted by name; empty where nothing does.

    A folder that holds one model in several files stands for them, and so does an index for its shards.  Any other
    folder whose contents match, too, is left to them, and so is one of whose files the lock has a model: `is_named`
    says which paths those are.  Where the pattern names no suffix, what can be no checkpoint is passed over, unless it
    is all.
    """
    found = _globbed(pattern)
    left, whole = _each_once(found, is_named)
    if not _is_open(pattern):
        return Matching(left, [])
    kept = {path for path in left if path in whole or _is_likely(path)}
    return Matching([path for path in left if path in kept or not kept], [p for p in left if kept and p not in kept])


def _globbed(pattern: str) -> list[str]:
    from glob import glob

    try:
        return sorted(glob(pattern, recursive=True))
    except ValueError:  # a NUL in it
        return []


def _is_open(pattern: str) -> bool:
    """Whether a pattern says nothing of suffixes: `**/*`, and not `*.json`."""
    return re.search(r"\.[^*?\[\].]+$", os.path.basename(pattern)) is None


def _each_once(found: Sequence[str], is_named: Callable[[str], bool]) -> tuple[list[str], set[str]]:
    """Paths without the files of folders and indexes among them, and without folders that their contents stand for.

    Then the folders that are models of several files.
    """
    real = {path: os.path.normpath(path) for path in found}
    names, around = set(real.values()), {os.path.dirname(name) or os.curdir for name in real.values()}
    named = {real[path] for path in found if is_named(path)}
    left: set[str] = set()
    whole: set[str] = set()
    files_of: set[str] = set()
    for path in sorted((path for path in found if real[path] in around and os.path.isdir(path)), key=real.__getitem__):
        model = only_model(path)
        own = {os.path.normpath(file.path) for file in model.checkpoint.files} if model else set()
        is_one = len(own) == 1 and own <= names
        if real[path] not in named and (model is None or own <= files_of or is_one or own & named):
            left.add(path)
        elif model is not None:
            whole.add(path)
            files_of |= own | set(map(os.path.normpath, belongs(model)))
    for path in found:
        if is_index_name(path) and real[path] not in files_of:
            files_of |= {os.path.normpath(file.path) for file in _read_files(path)} - {real[path]}
    files_of -= named
    return [path for path in found if path not in left and real[path] not in files_of], whole


def _read_files(index: str) -> Sequence[SourceFile]:
    """The files of an index; none where it cannot be read."""
    from paramtool import formats

    try:
        return formats.read_file(index).files
    except ParamtoolError:
        return ()


def only_model(folder: str) -> Weights | None:
    """The only set of weights of a folder; None where it has none, or several, or cannot be read."""
    from paramtool import formats
    from paramtool.formats.folder import weight_sets

    try:
        return weight_sets.only(folder, formats.read_file)
    except ParamtoolError:
        return None


def belongs(one: Weights) -> Iterator[str]:
    """The files that are read with a set of weights, or hold nothing that is a model."""
    yield from (one.path, *one.more, *one.others, *(copy.path for copy in one.copies))
    yield from (file.path for file in one.checkpoint.files)


def _is_likely(path: str) -> bool:
    """Whether a file, or one in a folder, can be a checkpoint."""
    from paramtool.formats import may_be_checkpoint

    return any(map(may_be_checkpoint, _files(path)))


def _files(path: str) -> Iterable[str]:
    if not os.path.isdir(path):
        return [path]
    return (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
