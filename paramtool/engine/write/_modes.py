"""Who may read an output: the same as with cp(1), so that no output can be read by more people than its source.

| | mode |
|---|---|
| a file | that of the input, minus the umask; of several inputs what all of them allow |
| a folder | that of the input folder, minus the umask; else that of the files, with `x` wherever there is `r` |
| a sidecar file | that of the file that it is a copy of, minus the umask |
| a replacement | that of what it replaces, with its owner and group if the system allows that |

Until it is complete, only its owner can read an output.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from operator import and_
from typing import TypeVar

from paramtool.formats.files import walk

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
PERMISSIONS = 0o777
LOOKING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""The flags to open a file or folder for inspection: without following a link, and without waiting."""


def umask() -> int:
    """The umask of the process.  It can only be read by setting it; for that moment it is set to deny everything."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def allowed_by_all(modes: Iterable[int], otherwise: int = 0o666) -> int:
    """The permissions that all of some modes give, minus the umask; `otherwise` if there are no modes.

    >>> old = os.umask(0o022)
    >>> oct(allowed_by_all([0o664, 0o640])), oct(allowed_by_all([]))
    ('0o640', '0o644')
    >>> _ = os.umask(old)
    """
    given = list(modes)
    return reduce(and_, given, PERMISSIONS if given else otherwise) & ~umask()


def of_place(path: str) -> int:
    """The permissions of a file or a folder; if it cannot be inspected, permissions for its owner only."""
    try:
        return os.stat(path).st_mode & PERMISSIONS
    except OSError:
        return PRIVATE_FOLDER


def of_folder(mode: int) -> int:
    """The permissions of a folder whose files have the permissions `mode`: whoever may read may enter it.

    >>> oct(of_folder(0o640))
    '0o750'
    """
    return mode | (mode & 0o444) >> 2


Place = TypeVar("Place", int, str)
"""An open file, or a path."""


def private(place: Place, mode: int = PRIVATE_FILE) -> Place:
    """Give a new file or folder its owner's permissions, whatever the umask removed; returns it."""
    now = (os.lstat(place) if isinstance(place, str) else os.fstat(place)).st_mode
    if now & mode != mode:
        with suppress(OSError):  # FAT and the like have no permissions
            os.chmod(place, mode | now & stat.S_ISGID)
    return place


def settle(path: str, mode: int, replaced: str, folder: int | None = None) -> None:
    """Give a file or a folder its permissions: those of what it replaces if that exists, else `mode`.

    `replaced` may be empty.  `folder` is the open folder in which `path` is looked up.  A link at `path` is not
    followed.  OSError if the system refuses.
    """
    file = os.open(path, LOOKING, dir_fd=folder)
    try:
        now, old = os.fstat(file), _status(replaced) if replaced else None
        kept = stat.S_ISGID if stat.S_ISDIR(now.st_mode) else 0  # what is made in a setgid folder gets its group
        group = now.st_mode & kept
        if old is not None and stat.S_IFMT(old.st_mode) == stat.S_IFMT(now.st_mode):
            mode, group = old.st_mode & PERMISSIONS, old.st_mode & kept
            if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
                try:
                    os.fchown(file, old.st_uid, old.st_gid)
                except OSError:  # owned by another user or group: our group gets no more than others
                    mode &= ~0o070 | (mode & 0o007) << 3
        try:
            os.chmod(file if os.chmod in os.supports_fd else path, mode | group)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # FAT and the like have no permissions
                raise
    finally:
        os.close(file)


def _status(path: str) -> os.stat_result | None:
    """The status of a path; None if nothing is there."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def settle_folder(
    folder: str,
    held: int | None,
    mode: int,
    files: int,
    *,
    side: Mapping[str, int],
    source: Callable[[str], str],
    replaced: str,
) -> None:
    """Give a folder and everything in it their permissions: `files` to its files, those in `side` to sidecar files.

    `held` is the open folder: anything that was put in its place meanwhile is not touched.  `side` maps the names of
    sidecar files to the modes of their sources; `source` gives the input folder for a folder inside, or an empty
    string.
    """
    masked = umask()

    def there(inside: str) -> str:
        return replaced and os.path.join(replaced, *inside.split("/"))

    for prefix, folders, names, place in _inside(folder, held):
        for name in names:
            own = side[prefix + name] & ~masked if prefix + name in side else files
            settle(name if place is not None else os.path.join(folder, prefix, name), own, there(prefix + name), place)
        for name in folders:
            own = mode & of_place(found) if (found := source(prefix + name)) else mode
            settle(name if place is not None else os.path.join(folder, prefix, name), own, there(prefix + name), place)
    settle(os.curdir if held is not None else folder, mode, replaced, held)


def _inside(folder: str, held: int | None) -> Iterator[tuple[str, list[str], list[str], int | None]]:
    """For each folder of an output: its relative path with a final `/`, its folders, its files, and an open folder."""

    def fail(error: OSError) -> None:
        raise error

    walked: Iterator[tuple[str, list[str], list[str], int | None]]
    if held is None:  # Windows
        walked = ((place, folders, names, None) for place, folders, names in walk(folder))
    else:
        walked = os.fwalk(os.curdir, onerror=fail, dir_fd=held)
    for place, folders, names, descriptor in walked:
        here = os.path.relpath(place, folder if held is None else os.curdir).replace(os.sep, "/")
        yield "" if here == os.curdir else f"{here}/", folders, names, descriptor
