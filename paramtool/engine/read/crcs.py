"""The CRCs that the files of a checkpoint state, compared with their bytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from paramtool.engine.read.elements import Read
from paramtool.engine.read.open_files import read_blocks
from paramtool.engine.read.threads import Promise, Threads
from paramtool.errors import FormatError, some
from paramtool.formats.zip.crc import crc32_joined
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.storage import Assembled, Backing, ByteRange, Encoded

THREAD_NBYTES = 4 << 20
"""A CRC of more bytes is computed in a thread of its own."""


class Crcs:
    """The CRCs of ranges of files, each of which is compared at most once."""

    def __init__(self, checkpoint: Checkpoint, is_asked: bool = True) -> None:
        """Without `is_asked` none is compared, but for those of bytes that are decoded."""
        self._checkpoint = checkpoint
        self._is_asked = is_asked
        self._proved: set[ByteRange] = set()
        self._pending: dict[ByteRange, Promise[int]] = {}
        self._threads = Threads()

    def is_unproved(self, part: ByteRange) -> bool:
        """Whether a range has a CRC that was not compared yet."""
        return self._is_asked and part.crc32 is not None and part not in self._proved

    def around(self, part: ByteRange) -> ByteRange | None:
        """The range with a CRC that contains a part of a file, or None."""
        return next((one for one in self._checkpoint.sealed if _is_within(part, one)), None)

    def begin(self, sealed: ByteRange | None, opened: Callable[[str], BinaryIO]) -> None:
        """Begin to compare a range with its CRC, unless that was done before; `opened` gives its file."""
        if sealed is None or not self.is_unproved(sealed):
            return
        self._proved.add(sealed)
        file = opened(sealed.file)
        if sealed.nbytes < THREAD_NBYTES:
            self.compare(sealed, crc32_of(file, sealed.start, sealed.stop))
            return
        self._pending[sealed] = self._threads.submit(partial(crc32_of, file, sealed.start, sealed.stop))

    def settle(self) -> None:
        """Wait for the comparisons that were begun; FormatError if a CRC is wrong."""
        while self._pending:
            sealed = next(iter(self._pending))
            self.compare(sealed, self._pending.pop(sealed).result())

    def compare(self, sealed: ByteRange, found: int) -> None:
        """FormatError if a range has another CRC than its container states."""
        self._proved.add(sealed)
        if found != sealed.crc32:
            raise self.damaged(sealed, found)

    def damaged(self, sealed: ByteRange, found: int) -> FormatError:
        """The error for a range whose bytes do not have its CRC; it names the range and its tensors."""
        storages = self._checkpoint.storages
        inside = {key for key, storage in storages.items() if _is_within(storage.backing, sealed)}
        around = {key for key, storage in storages.items() if _has_part(storage.backing, inside)}
        names = [name for name, view in self._checkpoint.windows() if view.storage in inside | around]
        what = f"storage {min(inside)}" if len(inside) == 1 else f"bytes {sealed.start}-{sealed.stop}"
        of = f" (with {some(names, 3)})" if names else ""
        return FormatError(
            f"{sealed.file}: {what}{of} has CRC {found:08x}; the archive says {sealed.crc32:08x}: the file is damaged",
            hint="fetch the file again",
        )

    def close(self) -> None:
        """Wait for the threads, and forget what they have not begun."""
        self._threads.close()


class Sums:
    """The CRCs of runs that are read in any order, by any thread; together they are that of all bytes."""

    def __init__(self) -> None:
        self._runs: dict[int, tuple[int, int]] = {}

    def reader(self, opened: Callable[[], Read]) -> Read:
        """What reads, and notes the CRC of what was read."""
        read = opened()

        def summing(start: int, buffer: memoryview) -> None:
            read(start, buffer)
            self._runs[start] = len(buffer), zlib.crc32(buffer)

        return summing

    def joined(self, nbytes: int) -> int | None:
        """The CRC of `nbytes` bytes; None unless each of them was read once."""
        found = at = 0
        for start, (count, crc) in sorted(self._runs.items()):
            if start != at:
                return None
            found, at = crc32_joined(found, crc, count), at + count
        return found if at == nbytes else None


def _is_within(backing: Backing, around: ByteRange) -> bool:
    """Whether a storage is read from inside a range of a file."""
    part = backing.source if isinstance(backing, Encoded) else backing
    return (
        isinstance(part, ByteRange)
        and part.file == around.file
        and around.start <= part.start
        and part.stop <= around.stop
    )


def _has_part(backing: Backing, storages: set[int]) -> bool:
    """Whether a tensor is assembled from any of these storages."""
    return isinstance(backing, Assembled) and any(part.there.storage in storages for part in backing.parts)


def crc32_of(file: BinaryIO, start: int, stop: int) -> int:
    """The CRC of bytes of a file."""
    found = 0
    for block in read_blocks(file, start, stop):
        found = zlib.crc32(block, found)
    return found
