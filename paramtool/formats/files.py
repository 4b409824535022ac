"""Open and read files, with errors that the user can act on."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from io import BufferedReader, FileIO
from threading import Lock
from typing import Any, BinaryIO, overload

from paramtool.errors import FormatError, MissingFileError, OutputError, ParamtoolError, UnreadableError
from paramtool.model.storage import ByteRange, SourceFile


def open_source(path: str) -> tuple[BinaryIO, SourceFile]:
    """Open a regular file and note its size and time; FormatError if that is not possible."""
    if not path:
        raise FormatError("the path is empty; expected a checkpoint file")
    try:
        # Opened first and examined then, so that nobody can replace the file in between; without waiting for the
        # writer of a pipe.
        file = BufferedReader(_Named(path, opener=_at_once))
    except IsADirectoryError:
        raise FormatError(f"{path}: is a folder; expected a checkpoint file") from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise FormatError(f"{path}: is not a regular file; expected a checkpoint file") from None
        raise unreadable(path, error) from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FormatError(f"{path}: is not a regular file; expected a checkpoint file")
    return file, noted(path, status)


class _Named(FileIO):
    """A file whose errors have its name."""

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except OSError as error:
            error.filename = self.name
            raise

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            error.filename = self.name
            raise


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def noted(path: str, status: os.stat_result) -> SourceFile:
    """The state of a file now, so that a later change is noticed."""
    mode = stat.S_IMODE(status.st_mode)
    found = SourceFile(path, status.st_size, status.st_mtime_ns, status.st_ino, mode)
    watched.get({}).setdefault(path, found)
    return found


watched: ContextVar[dict[str, SourceFile]] = ContextVar("watched")
"""{path: its state when it was first noted} of every file that a command reads, for what it writes about them."""


@contextmanager
def watching() -> Iterator[None]:
    """Watch the files that are read in the block."""
    token = watched.set({})
    try:
        yield
    finally:
        watched.reset(token)


def changed(source: SourceFile, status: os.stat_result) -> bool:
    """Whether a file was modified or replaced since it was noted."""
    is_another = source.inode not in (0, status.st_ino)
    return is_another or (status.st_size, status.st_mtime_ns) != (source.nbytes, source.mtime_ns)


def unreadable(path: str, error: OSError) -> UnreadableError:
    """The error for a file that the system cannot read, or may not; MissingFileError where it does not exist."""
    kind = MissingFileError if isinstance(error, FileNotFoundError) else UnreadableError
    return kind(path, f"cannot be read: {error.strerror or error}", _hint(path, error))


FAILS = "the disk or the network share of the file fails; try a copy from elsewhere"


def _hint(path: str, error: OSError) -> str:
    """What to do about it, if that is known.  A shell passes on a pattern that matches no file as it was written."""
    if error.errno == errno.EIO:
        return FAILS
    is_pattern = isinstance(error, FileNotFoundError) and re.search(r"[*?]|\[[^\]]+\]", path)
    return "no file matches the pattern, so the shell passed it on unchanged" if is_pattern else ""


def check_unchanged(file: SourceFile) -> None:
    """FormatError if a file was modified or replaced since it was noted."""
    try:
        if not changed(file, os.stat(file.path)):
            return
    except OSError:
        pass
    raise file_changed(file.path)


def file_changed(path: str) -> UnreadableError:
    """The error for a file that changes while it is read."""
    return UnreadableError(
        path,
        "changed while it was read; expected it to stay the same",
        hint="wait until the program that writes it has finished, and run the command again",
    )


class Contents:
    """The bytes of a file, read on demand; supports indexing, slicing and searching like `bytes`.

    A memory mapping would do that too, but if another program truncates the file, SIGBUS would end the process.
    """

    __slots__ = ("_block", "_file", "_from", "_nbytes", "_start")

    def __init__(self, file: BinaryIO, nbytes: int, byte_start: int = 0) -> None:
        self._file = file
        self._from = byte_start
        self._nbytes = nbytes
        self._start = 0
        self._block = b""
        """The block that was read last, from `_start` on: the next bytes are usually in it."""

    def __len__(self) -> int:
        return self._nbytes

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> bytes: ...
    def __getitem__(self, at: int | slice) -> int | bytes:
        if isinstance(at, int):
            place = at - self._start
            if 0 <= place < len(self._block):
                return self._block[place]
            if not 0 <= at < self._nbytes:
                raise IndexError(at)
            return self._read(at, at + 1)[0]
        start, stop, _ = at.indices(self._nbytes)
        place = start - self._start
        if place >= 0 and stop - self._start <= len(self._block):
            return self._block[place : stop - self._start]
        return self._read(start, stop)

    def _read(self, start: int, stop: int) -> bytes:
        """Read bytes that are not in the block, and replace the block, unless they are more than a block holds."""
        if stop - start > CONTENTS_NBYTES:
            return read_bytes(self._file, self._from + start, stop - start)
        if stop <= start:
            return b""
        goes_on = 0 <= start - self._start <= len(self._block)
        size = min(2 * len(self._block), CONTENTS_NBYTES) if goes_on else 0
        self._block = read_bytes(
            self._file, self._from + start, min(max(size, stop - start, 4096), self._nbytes - start)
        )
        self._start = start
        return self._block[: stop - start]

    def part(self, start: int, stop: int) -> Contents:
        """Some of the bytes, from `start` to `stop` or the end."""
        start, stop, _ = slice(start, stop).indices(self._nbytes)
        return Contents(self._file, max(stop - start, 0), self._from + start)

    def find(self, wanted: bytes, start: int = 0, stop: int | None = None) -> int:
        """The first position of some bytes, as `bytes.find` gives it; little is read after that position."""
        stop = self._nbytes if stop is None else min(stop, self._nbytes)
        while start + len(wanted) <= stop:
            low = start - self._start
            if not 0 <= low <= len(self._block) - len(wanted):
                self._read(start, start + len(wanted))
                low = 0
            place = self._block.find(wanted, low, stop - self._start)
            if place >= 0:
                return self._start + place
            start = self._start + max(len(self._block) - len(wanted) + 1, low + 1)
        return -1


CONTENTS_NBYTES = 64 << 10
"""The largest block of `Contents`."""
Buffer = bytes | Contents


def read_bytes(file: BinaryIO, start: int, nbytes: int) -> bytes:
    """Read `nbytes` bytes from `start` on; FormatError if they cannot be read, or the file ends before."""
    if nbytes > SAME_NBYTES and start + nbytes > (size := os.fstat(file.fileno()).st_size):
        raise FormatError(f"{file.name}: ends at byte {size}; expected {nbytes} bytes from byte {start} on")
    data = bytearray(nbytes)
    read_at(file, start, memoryview(data))
    return bytes(data)


def read_at(file: BinaryIO, start: int, buffer: memoryview) -> None:
    """Fill a buffer with the bytes of a file from a position on; FormatError if they cannot be read."""
    while buffer:
        try:
            count = _READ_INTO(file.fileno(), [buffer], start)
        except OSError as error:
            raise _unread(file, start, error) from None
        if count == len(buffer):
            return
        if not count:
            end = min(start, os.fstat(file.fileno()).st_size)
            raise FormatError(f"{file.name}: ends at byte {end}; expected {start + len(buffer) - end} more bytes")
        buffer = buffer[count:]
        start += count


FEW = 16
"""So many pieces are read one by one."""


class Placed:
    """Reads of a file whose positions count from a byte of it; a call fills a buffer, as `read_at` does."""

    __slots__ = ("base", "file")

    def __init__(self, file: BinaryIO, base: int) -> None:
        self.file, self.base = file, base

    def __call__(self, start: int, buffer: memoryview) -> None:
        read_at(self.file, self.base + start, buffer)

    def rows(self, start: int, step: int, buffer: memoryview, nbytes: int) -> None:
        """Fill a buffer with pieces of `nbytes` bytes that begin `step` bytes apart.

        Many are read in one call: where several threads make one for each piece, Python's lock is what they wait for.
        """
        filled, place = 0, self.base + start
        if len(buffer) > FEW * nbytes and step > nbytes:
            from paramtool.formats.gather import gather

            filled = gather(self.file, place, step, buffer, nbytes)
        for at in range(filled - filled % nbytes, len(buffer), nbytes):
            read_at(self.file, place + at // nbytes * step, buffer[at : at + nbytes])


def _unread(file: BinaryIO, start: int, error: OSError) -> ParamtoolError:
    what = f"cannot be read at byte {start}: {error.strerror}"
    if isinstance(file.name, int):  # a temporary file, which has no name
        import tempfile

        where = f"{tempfile.gettempdir()}: a temporary file"
        return OutputError(f"{where} {what}", hint="TMPDIR=... names another folder")
    return UnreadableError(file.name, what, FAILS)


def pread(descriptor: int, nbytes: int, start: int) -> bytes:
    """Bytes of an open file from a position on, fewer only at its end; OSError if they cannot be read."""
    parts = [_pread(descriptor, nbytes, start)]
    while parts[-1] and (lacking := nbytes - sum(map(len, parts))):
        parts.append(_pread(descriptor, lacking, start + nbytes - lacking))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _pread(descriptor: int, nbytes: int, start: int) -> bytes:
    """The bytes of one read call: at most 2 GiB on Linux.  Windows has no pread."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, nbytes, start)
    with SEEKING:  # threads share the file and its position
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.read(descriptor, nbytes)


def _preadv(descriptor: int, buffers: list[memoryview], start: int) -> int:
    """Read what one call gives."""
    data = _pread(descriptor, len(buffers[0]), start)
    buffers[0][: len(data)] = data
    return len(data)


_READ_INTO: Callable[[int, list[memoryview], int], int] = getattr(os, "preadv", _preadv)
"""macOS before 11 has no preadv."""
SEEKING = Lock()


watchers: list[Callable[[str, int], AbstractContextManager[Callable[[int], None]]]] = []
"""Who shows how many files of a large folder were looked at: the command line."""


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, but a folder that cannot be listed raises OSError instead of being skipped."""

    def fail(error: OSError) -> None:
        raise error

    return os.walk(folder, onerror=fail)


def names_in(folder: str) -> list[str]:
    """The names in a folder, sorted; UnreadableError if it cannot be listed."""
    try:
        return sorted(os.listdir(folder or os.curdir))
    except OSError as error:
        raise unreadable(folder, error) from None


def same_bytes(one: str, other: str, advance: Callable[[int], None] = lambda nbytes: None) -> bool:
    """Whether two files hold the same bytes; UnreadableError names a file that cannot be read."""
    (a, mine), (b, theirs) = open_source(one), open_source(other)
    with a, b:
        if mine.nbytes != theirs.nbytes:
            return False
        for start in range(0, mine.nbytes, SAME_NBYTES):
            count = min(SAME_NBYTES, mine.nbytes - start)
            if read_bytes(a, start, count) != read_bytes(b, start, count):
                return False
            advance(count)
    return True


def sha256_of(path: str) -> tuple[int, str]:
    """The size of a file, and its sha256 in hexadecimal.

    UnreadableError where the system does not let us read it, or where it changed meanwhile.
    """
    from hashlib import sha256

    file, source = open_source(path)
    made = sha256(usedforsecurity=False)
    with file:
        try:
            while data := file.read(SAME_NBYTES):
                made.update(data)
        except OSError as error:
            raise unreadable(path, error) from None
    check_unchanged(source)
    return source.nbytes, made.hexdigest()


def holds(path: str, content: bytes) -> bool:
    """Whether a file has this content; UnreadableError if it cannot be read."""
    file, source = open_source(path)
    with file:
        return source.nbytes == len(content) and read_bytes(file, 0, len(content)) == content


SAME_NBYTES = 1 << 20
"""The number of bytes that are compared at once."""


def same_ranges(one: ByteRange, path: str, start: int) -> bool:
    """Whether a file has the bytes of a range of another from byte `start` on."""
    theirs, _ = open_source(one.file)
    mine, _ = open_source(path)
    with theirs, mine:
        for at in range(0, one.nbytes, COMPARED_NBYTES):
            nbytes = min(COMPARED_NBYTES, one.nbytes - at)
            if read_bytes(theirs, one.start + at, nbytes) != read_bytes(mine, start + at, nbytes):
                return False
    return True


COMPARED_NBYTES = 1 << 20


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder or a link to one; UnreadableError if the system cannot tell."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except ValueError:  # a path that no system can have
        return False
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return False
        raise unreadable(os.fspath(path), error) from None


def inflated(machine: Any, data: Any, most: int) -> bytes:
    """What zlib makes of some bytes, at most so many; ValueError where they are damaged."""
    from zlib import error as damaged

    try:
        made: bytes = machine.decompress(data, most)
    except damaged as error:
        if "Error -4 " in str(error):  # Z_MEM_ERROR of zlib.h
            raise MemoryError from None
        raise ValueError(f"cannot be inflated: {error}") from None
    return made
