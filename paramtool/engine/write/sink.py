"""Writes one file: copied by the kernel if possible, sent to the disk now and then, flushed at the end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from struct import Struct
from types import TracebackType
from typing import BinaryIO

from paramtool.engine.read.open_files import CHUNK_NBYTES, read_blocks
from paramtool.engine.read.source import Buffer
from paramtool.engine.write.places import writing
from paramtool.engine.write.staging import Staged

Advance = Callable[[int], None]
FLUSH_NBYTES = 64 << 20
"""After this many bytes the disk is told to begin writing."""
KERNEL_STEP_NBYTES = 16 << 20
COPY: Callable[..., int] = getattr(os, "copy_file_range", lambda *places: 0)
"""Only Linux has it; elsewhere the kernel copies nothing."""
ADVISE: Callable[..., None] = getattr(os, "posix_fadvise", lambda *advice: None)
DONTNEED: int = getattr(os, "POSIX_FADV_DONTNEED", 0)
CANNOT_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.EIO}
"""Errors of kernels and file systems that cannot copy between two files, or that do not tell which file failed: copying
in Python then shows which."""


class Sink:
    """A file that is being written; its errors are OutputErrors of the output."""

    def __init__(self, staged: Staged, inside: str, advance: Advance) -> None:
        """`inside` is the name in the output; empty for an output that is a single file."""
        self.name = staged.path
        self._writing = writing(staged.path)
        self.advance = advance
        self.position = 0
        self.cloned = 0
        """How many bytes share their blocks with another file."""
        self._create, self._flush = partial(staged.create, inside), staged.flush
        self._flushed = 0

    def __enter__(self) -> Sink:
        with self._writing:
            self.file = self._create()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writing:
            if kind is None:
                self._flush(self.file, self.position)
            else:
                self.file.close()

    def write(self, data: Buffer) -> None:
        """Write all of `data` in chunks: Linux caches what is written at once in one page, and huge ones are slow."""
        rest = memoryview(data)
        with self._writing:
            while rest:
                rest = rest[self.file.write(rest[:CHUNK_NBYTES]) :]
        self._wrote(len(data))

    def copy(self, file: BinaryIO, start: int, nbytes: int) -> None:
        """Append bytes of another file: blocks are shared if the file system can, the rest is copied."""
        before, inside = whole_blocks(start, nbytes, self.position, block_nbytes(self.file))
        self._copy(file, start, before)
        cloned = self._clone(file, start + before, inside)
        self._copy(file, start + before + cloned, nbytes - before - cloned)

    def _clone(self, file: BinaryIO, start: int, nbytes: int) -> int:
        """Append whole blocks of another file by sharing them; returns how many bytes are shared."""
        if not nbytes or not clone(file, start, nbytes, self.file, position=self.position):
            return 0
        self.cloned += nbytes
        self._wrote(nbytes)
        self.file.seek(self.position)
        return nbytes

    def _copy(self, file: BinaryIO, start: int, nbytes: int) -> None:
        """Append bytes of another file, copied by the kernel if it can."""
        stop = start + nbytes
        while start < stop:
            wanted = min(stop - start, KERNEL_STEP_NBYTES)
            with self._writing:
                try:
                    count = COPY(file.fileno(), self.file.fileno(), wanted, start, self.position)
                except OSError as error:
                    if error.errno not in CANNOT_COPY:
                        raise
                    count = 0
            if not count:  # another file system, an old kernel, the end of the source, or one file failed
                self.file.seek(self.position)
                for block in read_blocks(file, start, stop):
                    self.write(block)
                return
            start += count
            self._wrote(count)
        self.file.seek(self.position)

    def _wrote(self, nbytes: int) -> None:
        """Count bytes, and tell the disk to begin now and then, so that the last flush is short."""
        self.position += nbytes
        self.advance(nbytes)
        if self.position - self._flushed >= FLUSH_NBYTES:
            with suppress(OSError):  # only advice: dirty pages are sent to the disk without waiting
                ADVISE(self.file.fileno(), self._flushed, self.position - self._flushed, DONTNEED)
            self._flushed = self.position

    def fill(self, data: bytes, start: int) -> None:
        """Write `data` at byte `start`, into room that `extend` made."""
        rest = memoryview(data)
        with self._writing:
            while rest:
                count = os.pwrite(self.file.fileno(), rest, start)
                start, rest = start + count, rest[count:]
        self.advance(len(data))

    def extend(self, nbytes: int) -> None:
        """Make room for `nbytes` bytes, to be filled in any order."""
        self.position += nbytes
        with self._writing:
            os.ftruncate(self.file.fileno(), self.position)  # repeated after a signal, unlike the file's own method
            self.file.seek(self.position)


CLONE_RANGE = 0x4020940D
RANGE = Struct("=qQQQ")


def whole_blocks(start: int, nbytes: int, position: int, block: int) -> tuple[int, int]:
    """(bytes before it, its bytes) for the part of a run that is whole blocks of both files; (0, 0) if there is none.

    >>> whole_blocks(100, 10_000, 4196, 4096)
    (3996, 4096)
    >>> whole_blocks(100, 10_000, 0, 4096)
    (0, 0)
    """
    if (start - position) % block:
        return 0, 0
    before = -start % block
    inside = (nbytes - before) // block * block
    return (before, inside) if inside > 0 else (0, 0)


def block_nbytes(file: BinaryIO) -> int:
    """The block size of the file system that a file is on; the most common size if it is not known."""
    try:
        return os.fstatvfs(file.fileno()).f_bsize
    except (OSError, AttributeError):  # Windows has none
        return 4096


def _ioctl() -> Callable[[int, int, bytes], object]:
    import fcntl

    return fcntl.ioctl


def clone(source: BinaryIO, start: int, nbytes: int, into: BinaryIO, *, position: int) -> bool:
    """Let a file share whole blocks of another; False, and no change, if the file system cannot."""
    try:
        _ioctl()(into.fileno(), CLONE_RANGE, RANGE.pack(source.fileno(), start, nbytes, position))
    except (OSError, ImportError):  # not supported here or between these two files: bytes are copied then
        return False
    return True
