"""A checkpoint against a lock: which model of the lock it is, and what differs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paramtool.commands.check.report import OtherModelError
from paramtool.commands.lock import name_in
from paramtool.commands.locked_model import LockReading, described, hashes
from paramtool.commands.progress import Path, Progress
from paramtool.engine.read.one_pass import Hashes
from paramtool.errors import UsageError, plural, some
from paramtool.formats.files import is_folder, open_source, sha256_of, unreadable
from paramtool.formats.folder.weight_names import of_file
from paramtool.lockfile import pointer
from paramtool.lockfile.lock import Lock, LockedFile, LockedModel
from paramtool.lockfile.pointer import Pointer
from paramtool.model.finding import Finding
from paramtool.passes.lock import compare
from paramtool.passes.lock.compare import Seen

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection

MANY = 6
"""How many models of a lock a message names."""

FIRST = 3
"""How many names of each of two models a message has."""


def place_of(lock: Lock, name: str) -> str:
    """Where a model of a lock is: paths in it are relative to its folder."""
    return os.path.normpath(os.path.join(os.path.dirname(lock.path), name.replace("/", os.sep)))


OTHERWISE = "`lock` with its path names it; `changed = false` in [[paths]] compares it with none"


def model_for(lock: Lock, path: str, name: str | None = None, *, hint: str = OTHERWISE) -> LockedModel:
    """The model of a name in the lock; without one, that of a path, else the only one.

    UsageError where there is none of that name, or where there are several.
    """
    if found := lock.models.get(name_in(lock.path, path) if name is None else name):
        return found
    real = os.path.realpath(path)
    for one, model in lock.models.items() if name is None else ():
        if os.path.realpath(place_of(lock, one)) == real:
            return model
    if len(lock.models) == 1 and name is None:
        return next(iter(lock.models.values()))
    models = f"{plural(len(lock.models), 'model')}: {some(list(lock.models), MANY)}"
    if name is not None:
        raise UsageError(f"{lock.path}: has no model {name!r:.200}; it has {models}")
    raise UsageError(f"{path}: {lock.path} does not name it, and has {models}", hint)


def pointers(path: str, locked: LockedModel, lock: Lock) -> tuple[str, Iterator[Finding]] | None:
    """How many of the files at a path are pointers, and what they say against a lock; None where none is one."""
    seen = pointed(path, locked)
    if seen is None:
        return None
    count = sum(isinstance(one, Pointer) for one in seen.values())
    which = f"{count} of its {plural(len(seen), 'file')} {'is a pointer' if count == 1 else 'are pointers'}"
    which = which if count < len(seen) else "only pointers to its files are here"
    note = f"{which}: {'all' if count < len(seen) else 'they'} were compared with the lock, by no rule"
    return note, compare.of_pointers(locked, seen, lock.path, path)


def hashed(found: Inspection, locked: LockedModel, *, content_only: bool, counts: bool, progress: Progress) -> Hashes:
    """What is read for `differences`; a lock that was made of headers reads no tensor."""
    has_hashes = not content_only and all(file.sha256 for file in locked.files)
    return hashes(found.checkpoint, LockReading(locked.is_headers_only, has_hashes, counts), progress)


def differences(
    found: Inspection, locked: LockedModel, lock: Lock, known: Hashes, *, content_only: bool
) -> Iterator[Finding]:
    """What differs from the lock; OtherModelError where that would be everything."""
    now = described(found.checkpoint, found.path, locked.path, known)
    _refuse_other(locked, now, lock, found.path)
    yield from compare.findings(locked, now, lock.path, content_only=content_only)


def _refuse_other(locked: LockedModel, now: LockedModel, lock: Lock, path: str) -> None:
    """OtherModelError where a checkpoint and its model in the lock have no name and not all numbers in common."""
    if not locked.tensors or not now.tensors or now.unnamed == locked.unnamed:
        return
    if locked.tensors.keys().isdisjoint(now.tensors):
        here, there = (
            f"{plural(len(one), 'tensor')} ({some(list(one), FIRST)})" for one in (now.tensors, locked.tensors)
        )
        raise OtherModelError(
            f"{path}: {lock.path} has another model: none of the names here, {here}, is one of {locked.path!r:.200}, "
            f"{there}, and the digests without names differ, too",
            hint="--lock FILE compares with its own lock; if the model was replaced on purpose, `lock` with "
            "its path, -o and --force locks it anew",
        )


# --- The pointers of git-LFS and Xet that stand for the files of a locked model --------------------------------------


def pointed(path: Path, locked: LockedModel) -> Seen | None:
    """What is at the path of a locked model in place of its files; None where no pointer is.

    Files that are there themselves, beside pointers, are read for their sha256.  FormatError for a damaged pointer,
    UnreadableError where the system does not let us read a file.
    """
    path = os.fspath(path)
    places = _in_folder(path, locked) if is_folder(path) else _beside(path, locked)
    found = {name: pointer_at(place) for name, place in places.items() if os.path.lexists(place)}
    pointers: dict[str, Pointer | LockedFile] = {name: one for name, one in found.items() if one is not None}
    if not pointers:
        return None
    return pointers | {name: _file(name, places[name]) for name in found.keys() - pointers.keys()}


def pointer_at(path: str) -> Pointer | None:
    """The pointer that a file is; None for any other file."""
    file, source = open_source(path)
    with file:
        try:
            head = file.read(pointer.MAX_NBYTES)
        except OSError as error:
            raise unreadable(path, error) from None
    return pointer.parse(head, path) if source.nbytes else None


def _beside(path: str, locked: LockedModel) -> dict[str, str]:
    """The file at a path; where it is an index, its shards, too."""
    name = os.path.basename(path)
    if len(locked.files) > 1 and any(file.name == name for file in locked.files):
        return _in_folder(os.path.dirname(path), locked)
    return {name: path}


def _in_folder(folder: str, locked: LockedModel) -> dict[str, str]:
    """The files of the lock in a folder, and other shards with the same stem."""
    names = [file.name for file in locked.files]
    return {name: os.path.join(folder, *name.split("/")) for name in (*names, *_more(folder, names))}


def _more(folder: str, names: list[str]) -> Iterator[str]:
    """Files of a folder that are named like shards of the same weights, and are pointers."""
    stems = {_stem(name) for name in names if "/" not in name}
    try:
        with os.scandir(folder or os.curdir) as found:
            others = [one.name for one in found if one.is_file() and one.name not in names and _stem(one.name) in stems]
    except OSError as error:
        raise unreadable(folder, error) from None
    yield from (name for name in others if pointer_at(os.path.join(folder, name)) is not None)


def _stem(name: str) -> tuple[str, str]:
    return of_file(name).stem, os.path.splitext(name)[1]


def _file(name: str, path: str) -> LockedFile:
    nbytes, digest = sha256_of(path)
    return LockedFile(name, nbytes, digest)
