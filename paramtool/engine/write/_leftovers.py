"""Temporary names beside an output, and the leftovers of killed runs under these names.

    .NAME.1f2e3d4c.tmp        an unfinished output, or what it has replaced; locked by the run that writes it
    .NAME.1f2e3d4c.tmp.old    what is being replaced, if the file system cannot exchange two names in one step
    .NAME.1f2e3d4c.tmp.kept   what was replaced and could not be put back; no run touches it

A lock (flock) shows whether the run that made a name is still alive: the kernel releases it when a process ends, in
whatever way.  On a file system without locks, nothing is ever removed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from contextlib import suppress
from zlib import crc32

from paramtool.engine.write._modes import LOOKING, PRIVATE_FILE, PRIVATE_FOLDER, private
from paramtool.formats.files import walk

OLD, KEPT = ".old", ".kept"
MAX_STEM_BYTES = 150
"""A temporary name has at most this many bytes of the output's name; most file systems allow 255 bytes in all."""


def temporary_name(path: str) -> str:
    """A new temporary name beside an output that no other run has."""
    return os.path.join(os.path.dirname(path) or ".", f".{_stem(path)}.{secrets.token_hex(4)}.tmp")


def kept_name(temporary: str) -> str:
    """The name for a replaced output that could not be put back."""
    return f"{temporary}{KEPT}"


def _stem(path: str) -> str:
    """The output's name; a long name is shortened to its beginning and a digest of the whole name."""
    whole = name = os.path.basename(path)
    while len(os.fsencode(name)) > MAX_STEM_BYTES:
        name = name[:-1]
    return name if name == whole else f"{name}~{crc32(os.fsencode(whole)):08x}"


def create(path: str, is_folder: bool) -> tuple[str, int | None]:
    """Make an empty file or folder for an output, readable by its owner only: (its name, an open file of it).

    The open file is its lock, if the file system has locks; it is None if the system cannot open folders.

    OSError if that is not possible.
    """
    while True:
        name = temporary_name(path)
        if is_folder:
            os.mkdir(name, PRIVATE_FOLDER)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
        file = None
        try:
            private(name, PRIVATE_FOLDER if is_folder else PRIVATE_FILE)
            file = os.open(name, LOOKING) if hasattr(os, "O_NOFOLLOW") else opened(name)
            if file is None or (_locked(file) is not False and is_still(name, file)):
                return name, file
        except OSError:
            if file is not None:
                os.close(file)
            remove(name)
            raise
        os.close(file)  # another run removed it before it was locked


def opened(name: str) -> int | None:
    """A file or folder, opened without following a link or waiting; None if that is not possible."""
    try:
        return os.open(name, LOOKING)
    except OSError:
        return None


def _locked(file: int) -> bool | None:
    """Lock an open file; returns whether that was possible, or None if the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, or a file system without locks
        return None
    return True


def lock_of(name: str) -> int | None:
    """A lock on a file or folder, as an open file; None if a live run holds it, or there are no locks."""
    file = opened(name)
    if file is None or _locked(file):
        return file
    os.close(file)
    return None


def is_still(name: str, file: int) -> bool:
    """Whether a name still refers to an open file."""
    try:
        return os.path.samestat(os.lstat(name), os.fstat(file))
    except FileNotFoundError:
        return False


def remove(path: str) -> bool:
    """Remove a file, or a folder with everything in it, if it exists; returns whether nothing is left."""
    if not os.path.isdir(path) or os.path.islink(path):
        with suppress(OSError):
            os.unlink(path)
        return not os.path.lexists(path)
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):  # a folder that may not be written to keeps what is in it
        with suppress(OSError, AttributeError):  # Windows has no fwalk
            for _, _, _, place in os.fwalk(path):  # does not follow a link that was put in its place
                os.chmod(place, PRIVATE_FOLDER)
        shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def clear(path: str) -> list[str]:
    """Remove what killed runs left of an output, and put back an output that one had moved away.

    Returns notes on what was done.
    """
    folder = os.path.dirname(path) or "."
    ours = re.compile(rf"\.{re.escape(_stem(path))}\.[0-9a-f]{{8}}\.tmp")
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in entries if ours.fullmatch(entry.name.removesuffix(OLD))]
    except OSError:
        return []
    notes = []
    for name in sorted(found, reverse=True):  # `.tmp.old` before its `.tmp`
        notes += _clear(path, os.path.join(folder, name))
    return notes


def _clear(path: str, name: str) -> list[str]:
    """Handle one temporary name; returns notes on what was done."""
    made = name.removesuffix(OLD)
    if made != name:
        if os.path.lexists(made):
            if (alive := lock_of(made)) is None:
                return []  # a live run is about to put its output there
            os.close(alive)
        if not os.path.lexists(path):
            os.rename(name, path)
            return [f"{path}: put back from {name}, where a killed run had moved it"]
    if (lock := lock_of(name)) is None:
        return []
    nbytes = _nbytes(name)
    gone = remove(name)
    os.close(lock)
    what = "removed; it was" if gone else "cannot be removed; it was"
    return [f"{name} ({nbytes} bytes): {what} left by a killed run"]


def _nbytes(path: str) -> int:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    files = (os.path.join(place, name) for place, _, names in walk(path) for name in names)
    return sum(os.lstat(file).st_size for file in files)
