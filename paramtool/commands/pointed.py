"""The pointers of git-LFS and Xet that stand for the files of a locked model."""

from __future__ import annotations

import os
from collections.abc import Iterator

from paramtool.commands.progress import Path
from paramtool.formats.files import is_folder, open_source, unreadable
from paramtool.formats.folder.weight_names import of_file
from paramtool.lockfile import pointer
from paramtool.lockfile.lock import LockedFile, LockedModel
from paramtool.lockfile.pointer import Pointer
from paramtool.model.paths import named_beside
from paramtool.passes.lock.pointers import Seen


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
    """The files of the lock in a folder, and other shards with the same stem; UnsafeError for one elsewhere."""
    names = [named_beside(folder, file.name, folders=True, portable=False) for file in locked.files]
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
    from paramtool.engine.read.whole_file import sha256_of

    nbytes, digest = sha256_of(path)
    return LockedFile(name, nbytes, digest)
