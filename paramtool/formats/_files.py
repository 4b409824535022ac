"""Opening files to describe them, with the errors that a person can act on."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from threading import Lock
from typing import BinaryIO

from paramtool.errors import FormatError
from paramtool.model.storage import SourceFile


def open_source(path: str) -> tuple[BinaryIO, SourceFile]:
    """Open a regular file and note its size and time; FormatError where that is not possible."""
    if not path:
        raise FormatError("the path is empty; expected a checkpoint file")
    try:
        # Opened first and looked at then, so that nobody can put another one in its place between; without waiting for
        # whoever writes to a pipe.
        file = open(path, "rb", opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0)))
    except IsADirectoryError:
        raise FormatError(f"{path}: is a folder; expected a checkpoint file") from None
    except OSError as error:
        raise unreadable(path, error) from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FormatError(f"{path}: is not a regular file; expected a checkpoint file")
    return file, noted(path, status)


def noted(path: str, status: os.stat_result) -> SourceFile:
    """A file as it is now, so that a change is noticed later."""
    return SourceFile(path, status.st_size, status.st_mtime_ns, status.st_ino)


def changed(source: SourceFile, status: os.stat_result) -> bool:
    """Whether a file was written to, or is another one, since it was noted."""
    now = noted(source.path, status)
    return now != source if source.inode else (now.nbytes, now.mtime_ns) != (source.nbytes, source.mtime_ns)


def unreadable(path: str, error: OSError) -> FormatError:
    """The error for a file that the system does not let us read."""
    return FormatError(f"{path}: cannot be read: {error.strerror or error}", _hint(path, error))


def _hint(path: str, error: OSError) -> str:
    """What to do about it, where that is known.  A shell hands on a pattern that matches no file as it was written."""
    if error.errno == errno.EIO:
        return "the disk or the network that it is on fails; try a copy of it from elsewhere"
    is_pattern = isinstance(error, FileNotFoundError) and any(sign in path for sign in "*?[")
    return "the pattern matches no file, so the shell passed it on as it stands" if is_pattern else ""


def check_unchanged(file: SourceFile) -> None:
    """FormatError where a file is no longer the one that was noted, or was written to since."""
    try:
        if not changed(file, os.stat(file.path)):
            return
    except OSError:
        pass
    raise file_changed(file.path)


def file_changed(path: str) -> FormatError:
    """The error for a file that somebody writes to while it is read."""
    return FormatError(
        f"{path}: changed while it was read; expected it to stay as it was",
        hint="wait until whatever writes it is done, and run the command again",
    )


def read_at(file: BinaryIO, start: int, buffer: memoryview) -> None:
    """Fill a buffer with the bytes of a file from a place on; FormatError where they cannot be read."""
    while buffer:
        try:
            count = _read_some(file, start, buffer)
        except OSError as error:
            raise FormatError(
                f"{file.name}: cannot be read at byte {start}: {error.strerror}",
                hint="the disk or the network that it is on fails; try a copy of it from elsewhere",
            ) from None
        if not count:
            raise FormatError(f"{file.name}: ends at byte {start}; expected {len(buffer)} more bytes")
        buffer = buffer[count:]
        start += count


def _read_some(file: BinaryIO, start: int, buffer: memoryview) -> int:
    """As many bytes as come at once.  macOS before 11 has no preadv, and Windows no pread either."""
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [buffer], start)
    if hasattr(os, "pread"):
        data = os.pread(file.fileno(), len(buffer), start)
    else:
        with SEEKING:  # threads share the file, and so its position
            file.seek(start)
            data = file.read(len(buffer))
    buffer[: len(data)] = data
    return len(data)


SEEKING = Lock()


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk`, which leaves out what it cannot look into; here that is an OSError."""

    def fail(error: OSError) -> None:
        raise error

    return os.walk(folder, onerror=fail)
