"""Temporary names beside an output, and what runs that were killed have left under them.

    .NAME.1f2e3d4c.tmp        an output in the making, or what it has replaced; locked by the run that writes it
    .NAME.1f2e3d4c.tmp.old    what is being replaced, where the file system cannot exchange two names in one step
    .NAME.1f2e3d4c.tmp.kept   what was replaced and could not be put back; no run touches it

A lock (flock) says whether the run that made a name still lives: the kernel gives it up when a process ends, however it
ends.  Where a file system has no locks, nothing is ever removed.
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
    """A new name beside an output, that no other run has."""
    return os.path.join(os.path.dirname(path) or ".", f".{_stem(path)}.{secrets.token_hex(4)}.tmp")


def kept_name(temporary: str) -> str:
    """The name for what could not be put back."""
    return f"{temporary}{KEPT}"


def _stem(path: str) -> str:
    """The output's name; of a long one its beginning, and what tells it from others that begin so."""
    whole = name = os.path.basename(path)
    while len(os.fsencode(name)) > MAX_STEM_BYTES:
        name = name[:-1]
    return name if name == whole else f"{name}~{crc32(os.fsencode(whole)):08x}"


def create(path: str, is_folder: bool) -> tuple[str, int | None]:
    """Make an empty file or folder for an output, which nobody else may look into: its name, and it as an open file.

    That is its lock, where there are locks, and None where the system opens no folders.

    OSError where that is not possible.
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
        os.close(file)  # another run took it for a dead one's before it was locked


def opened(name: str) -> int | None:
    """A file or folder, opened without following a link or waiting; None where that is not possible."""
    try:
        return os.open(name, LOOKING)
    except OSError:
        return None


def _locked(file: int) -> bool | None:
    """Lock an open file: whether that was possible, or None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, or a file system without locks
        return None
    return True


def lock_of(name: str) -> int | None:
    """A lock on a file or folder, as an open file; None where a run that lives has it, or nobody can say."""
    file = opened(name)
    if file is None or _locked(file):
        return file
    os.close(file)
    return None


def is_still(name: str, file: int) -> bool:
    """Whether a name still leads to an open file."""
    try:
        return os.path.samestat(os.lstat(name), os.fstat(file))
    except FileNotFoundError:
        return False


def remove(path: str) -> bool:
    """Remove a file or a folder with all in it, if it is there; whether nothing is left."""
    if not os.path.isdir(path) or os.path.islink(path):
        with suppress(OSError):
            os.unlink(path)
        return not os.path.lexists(path)
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):  # a folder that may not be written to keeps what is in it
        with suppress(OSError, AttributeError):  # Windows has no fwalk
            for _, _, _, place in os.fwalk(path):  # never through a link that was put in its place
                os.chmod(place, PRIVATE_FOLDER)
        shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def clear(path: str) -> list[str]:
    """Remove what dead runs have left of an output, and put back what one had taken away; says what was done."""
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
    """What is done with one name."""
    made = name.removesuffix(OLD)
    if made != name:
        if os.path.lexists(made):
            if (alive := lock_of(made)) is None:
                return []  # a run that lives is about to put its output there
            os.close(alive)
        if not os.path.lexists(path):
            os.rename(name, path)
            return [f"{path}: was put back; a run that was killed while it replaced it had left it as {name}"]
    if (lock := lock_of(name)) is None:
        return []
    nbytes = _nbytes(name)
    gone = remove(name)
    os.close(lock)
    what = "removed; a run" if gone else "cannot be removed; a run"
    return [f"{name} ({nbytes} bytes): {what} that was killed had left it"]


def _nbytes(path: str) -> int:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    files = (os.path.join(place, name) for place, _, names in walk(path) for name in names)
    return sum(os.lstat(file).st_size for file in files)
