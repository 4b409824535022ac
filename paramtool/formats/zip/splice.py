"""An archive with one stored member replaced by another of the same length, and everything else byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import BinaryIO

from paramtool.errors import FormatError
from paramtool.formats.files import pread
from paramtool.formats.output import Late, Segment
from paramtool.formats.zip.crc import crc32_joined
from paramtool.formats.zip.directory import Member, crc_places
from paramtool.model.plan import Target
from paramtool.model.storage import ByteRange

CRC_NBYTES = 4


def replaced(
    file: BinaryIO, where: str, nbytes: int, member: Member, *, inner: Sequence[bytes | Target | ByteRange]
) -> tuple[Segment, ...]:
    """The segments of an archive of `nbytes` bytes in which `member` is `inner`.

    `inner` holds targets and ranges, as long as the member together.  Its CRC is put wherever the archive states the
    old one.  FormatError if the two statements of the old one differ.
    """
    places = crc_places(file, where, member.name)
    old = (member.crc32 or 0).to_bytes(CRC_NBYTES, "little")
    for place in places:
        if (found := pread(file.fileno(), CRC_NBYTES, place)) != old:
            raise FormatError(
                f"{where}: {member.name!r}: found CRC {found[::-1].hex()} at byte {place}; the directory has "
                f"{old[::-1].hex()}"
            )
    stop = member.byte_start + member.nbytes
    before = sum(place < member.byte_start for place in places)
    late = Late(
        CRC_NBYTES, partial(_crc, before + 1, tuple(part.nbytes for part in inner if not isinstance(part, bytes)))
    )
    segments: list[Segment] = []
    at = 0
    for place in places:
        if at <= member.byte_start < place:
            segments += [ByteRange(where, at, member.byte_start), *inner]
            at = stop
        segments += [ByteRange(where, at, place), late]
        at = place + CRC_NBYTES
    return (*segments, ByteRange(where, at, nbytes))


def _crc(first: int, lengths: Sequence[int], crcs: Sequence[int]) -> bytes:
    """The CRC of the parts of the member, of which `first` other ranges of the file come before."""
    found = 0
    for nbytes, crc32 in zip(lengths, crcs[first:], strict=False):
        found = crc32_joined(found, crc32, nbytes)
    return found.to_bytes(CRC_NBYTES, "little")
