"""CRCs of an output, computed while it is written.

A container such as a zip states the CRC of each member, but the kernel may copy a member without this process seeing
its bytes.  So a thread reads each target back from the output while the next target is written; its pages are still in
memory.  If the source's container states the CRC of a storage, it is not computed again: `Source` checks it before the
output is kept.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from paramtool.engine.read.crcs import THREAD_NBYTES, crc32_of
from paramtool.engine.read.source import Source
from paramtool.errors import FormatError, OutputError
from paramtool.model.plan import Target
from paramtool.model.storage import ByteRange

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class Checksums:
    """The CRC-32 of each target and each copied range of one file, in order.

    A context manager, in which the file stays open.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._found: list[int | Future[int]] = []
        self._worker: ThreadPoolExecutor | None = None

    def __enter__(self) -> Checksums:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def add(self, target: Target, source: Source, start: int) -> None:
        """Add a target that was written as a whole from byte `start` of the file."""
        known = proved_crc32(target, source)
        if known is not None:
            self._found.append(known)
        else:
            self.add_range(start, target.nbytes)

    def add_range(self, start: int, nbytes: int) -> None:
        """Add what was written from byte `start` of the file."""
        if nbytes < THREAD_NBYTES:
            self._found.append(self._crc32(start, start + nbytes))
            return
        if self._worker is None:
            from concurrent.futures import ThreadPoolExecutor

            self._worker = ThreadPoolExecutor(1)
        self._found.append(self._worker.submit(self._crc32, start, start + nbytes))

    def _crc32(self, start: int, stop: int) -> int:
        try:
            return crc32_of(self._file, start, stop)
        except FormatError as error:
            raise OutputError(f"{self._name}: cannot be read back: {error.message}") from None

    def all(self) -> list[int]:
        """The CRC of every target and range so far; waits until all are known."""
        return [found if isinstance(found, int) else found.result() for found in self._found]


def proved_crc32(target: Target, source: Source) -> int | None:
    """The CRC of a target that is one whole storage of a container that states its CRC; else None."""
    if len(target.copies) != 1 or not target.copies[0].is_plain or not target.copies[0].destination.is_contiguous:
        return None
    view = target.copies[0].terms[0][1]
    backing = source.checkpoint.storages[int(view.storage)].backing
    whole = view.is_contiguous and (view.byte_start, view.nbytes) == (0, target.nbytes)
    return backing.crc32 if whole and isinstance(backing, ByteRange) and backing.nbytes == target.nbytes else None
