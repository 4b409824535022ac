"""One archive of torch.save inside a `.distcp` file: a shard of a tensor, a whole tensor, or an object.

A file of a rank is a row of such archives, and a checkpoint has as many as shards: 64 ranks and 1,000 tensors make
64,000.  Most differ in their numbers alone, as shards of one shape do.  So an archive whose bytes before and after the
numbers are those of one that was read before is not read again; only the CRC of its numbers is taken from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import BinaryIO, NamedTuple

from paramtool.formats.files import pread, unreadable
from paramtool.formats.torch.archive import read_archive
from paramtool.formats.zip import directory as zip_directory
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import TensorRef
from paramtool.model.storage import ByteRange, SourceFile, Storage

KEY_NBYTES = 512
"""How many first bytes of archives are compared first; the pickle of a tensor is in them."""
SMALL_NBYTES = 4096
"""The largest archive of an object, in bytes, that is compared whole with earlier ones before it is parsed."""
ID = "archive/.data/serialization_id"
"""The member with a hash of all others."""
ID_NBYTES = 40
CRC_NBYTES = 4
MAX_KNOWN = 10_000
"""The most archives that are remembered."""


class _KnownSlice(NamedTuple):
    """An archive with one tensor that was read before."""

    found: Checkpoint
    head: bytes
    """The bytes before the numbers."""
    tail: bytes
    """The bytes behind them, without those that differ from archive to archive."""
    differ: tuple[tuple[int, int], ...]
    """Where those are in the tail: (start, stop)."""
    crc_at: int
    """Where the directory, in the tail, has the CRC of the numbers."""


class SliceReader:
    """Reads the archives of one folder."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, bytes], _KnownSlice] = {}
        self._objects: dict[bytes, Checkpoint] = {}

    def read(self, file: BinaryIO, source: SourceFile, start: int, nbytes: int) -> Checkpoint:
        """Describe the archive of `nbytes` bytes at `start`; FormatError or UnsafeError if that is not possible.

        A tensor is the only entry, with `objects` a reference to it.
        """
        place = ByteRange(source.path, start, start + nbytes)
        head = _bytes(file, source, start, min(nbytes, SMALL_NBYTES))
        if nbytes <= SMALL_NBYTES and head in self._objects:
            return self._objects[head]
        key = nbytes, head[:KEY_NBYTES]
        known = self._tensors.get(key)
        again = _again(known, file, source, place) if known and head.startswith(known.head) else None
        if again is not None:
            return again
        found = read_archive(file, source, start, place.stop)
        if not found.entries and nbytes <= SMALL_NBYTES and len(self._objects) < MAX_KNOWN:
            self._objects[head] = found
        elif len(self._tensors) < MAX_KNOWN and (known := _known(found, file, source, place)):
            self._tensors[key] = known
        return found


def _bytes(file: BinaryIO, source: SourceFile, start: int, nbytes: int) -> bytes:
    """Bytes of a file from a position on, fewer at its end."""
    try:
        return pread(file.fileno(), nbytes, start)
    except OSError as error:
        raise unreadable(source.path, error) from None


def _again(known: _KnownSlice, file: BinaryIO, source: SourceFile, place: ByteRange) -> Checkpoint | None:
    """The archive with the head of a known one, if the rest is like it, too, apart from the numbers."""
    stop = place.stop - _tail_nbytes(known)
    tail = _bytes(file, source, stop, place.stop - stop)
    if _without(tail, known.differ) != known.tail:
        return None
    crc32 = int.from_bytes(tail[known.crc_at : known.crc_at + CRC_NBYTES], "little")
    if not crc32:  # "not computed" is told from other archives' bytes
        return None
    backing = ByteRange(source.path, place.start + len(known.head), stop, crc32)
    return replace(known.found, files=(source,), storages={0: Storage(0, backing.nbytes, backing)})


def _known(found: Checkpoint, file: BinaryIO, source: SourceFile, place: ByteRange) -> _KnownSlice | None:
    """What is remembered of an archive with one tensor; None for any other."""
    if not isinstance(found.objects, TensorRef) or len(found.storages) != 1 or found.unknown:
        return None
    backing = found.storages[0].backing
    start, stop = place.start, place.stop
    if not isinstance(backing, ByteRange) or not backing.crc32 or backing.start - start > SMALL_NBYTES:
        return None
    low, high = backing.start - start, backing.stop - start
    members = {one.name: one for one in zip_directory.read_directory(file, source.path, start=start, stop=stop)}
    names = [name for name, one in members.items() if one.byte_start == backing.start and one.nbytes]
    if len(names) != 1:
        return None
    places = {
        name: zip_directory.crc_places(file, source.path, name, start=start, stop=stop)
        for name in [*names, *_id(members)]
    }
    differ = [(at, at + CRC_NBYTES) for found_at in places.values() for at in found_at]
    differ += [(members[ID].byte_start - start, members[ID].byte_start - start + ID_NBYTES) for _ in _id(members)]
    if any(at < high for at, _ in differ):
        return None
    shifted = tuple(sorted((at - high, end - high) for at, end in differ))
    head, tail = _bytes(file, source, start, low), _bytes(file, source, backing.stop, stop - backing.stop)
    return _KnownSlice(found, head, _without(tail, shifted), shifted, places[names[0]][-1] - high)


def _id(members: dict[str, zip_directory.Member]) -> list[str]:
    """The name of the member with the hash, if it is as torch writes it."""
    return [ID] if ID in members and members[ID].nbytes == ID_NBYTES else []


def _without(tail: bytes, differ: tuple[tuple[int, int], ...]) -> bytes:
    """The bytes without some ranges."""
    kept = bytearray(tail)
    for start, stop in reversed(differ):
        del kept[start:stop]
    return bytes(kept)


def _tail_nbytes(known: _KnownSlice) -> int:
    """How many bytes are behind the numbers."""
    return len(known.tail) + sum(stop - start for start, stop in known.differ)
