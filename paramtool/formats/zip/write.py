"""Lay out a zip archive in which every member is stored and all sizes are known beforehand: as torch does, or plainly.

    local header, name, extra (zip64 where it is needed, then `FB`, a length and Z's up to the alignment)
    payload
    data descriptor: the CRC and the sizes once more; not behind an empty member
    ...
    the central directory, and its end in the form of zip64 and in the old one

A plain archive has no padding and no data descriptors: the CRC and the sizes are in the local header, which is filled
in when the payload is written, as Python's zipfile does it.

Everything but the CRCs of tensors is known before a byte is written, so an archive is a row of literal bytes, targets
and `Late` bytes.  Zip64 fields appear where torch writes them, at 2^32 - 1: torch computes the places of storages
from that (`calculate_storage_offsets`).

Sources: caffe2/serialize/inline_container.cc (`getPadding`), miniz.c (`mz_zip_writer_add_mem_ex_v2`,
`mz_zip_writer_finalize_archive`) of torch 2.13; APPNOTE.TXT 4.3.7 to 4.3.16.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import partial
from struct import Struct
from typing import NamedTuple

from paramtool.formats.output import Late, Segment
from paramtool.formats.zip.crc import crc32_joined
from paramtool.formats.zip.directory import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    END,
    END64,
    END64_SIGNATURE,
    END_SIGNATURE,
    FULL16,
    FULL32,
    LOCAL,
    LOCAL_SIGNATURE,
    LOCATOR,
    LOCATOR_SIGNATURE,
    STORED,
    ZIP64_EXTRA,
)
from paramtool.model.plan import Target
from paramtool.model.storage import ByteRange

ALIGNMENT = 64
EXTRA = Struct("<HH")
"""id, length of what follows"""
DESCRIPTOR, DESCRIPTOR64 = Struct("<4sIII"), Struct("<4sIQQ")
"""signature, crc-32, compressed size, uncompressed size"""
DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
UTF8, HAS_DESCRIPTOR = 0x0800, 0x0008
MADE_BY, NEEDED = 0x031E, 45
"""In the zip64 end record, as miniz has them: version 3.0 on Unix, and 4.5, the first version with zip64."""
PLAIN_NEEDED, DAY = 20, 0x21
"""Of plain members: version 2.0, and 1980-01-01, the first day that a zip file can name."""


class _Placed(NamedTuple):
    """A member with its place."""

    name: bytes
    nbytes: int
    header_start: int
    pieces: tuple[tuple[int, int | None], ...]
    """(length, CRC) of what it is made of; no CRC for targets and ranges, of which the first has the number `first`."""
    first: int
    is_torch: bool

    @property
    def is_large(self) -> bool:
        """Whether 32 bits do not hold its size or its place."""
        return self.nbytes >= FULL32 or self.header_start >= FULL32

    @property
    def flags(self) -> int:
        """General purpose bits: names are UTF-8, and CRC and sizes follow the payload."""
        return UTF8 | (HAS_DESCRIPTOR if self.nbytes and self.is_torch else 0)

    @property
    def version(self) -> int:
        """What a reader needs to know; torch says nothing."""
        return 0 if self.is_torch else NEEDED if self.is_large else PLAIN_NEEDED

    @property
    def day(self) -> int:
        """The date of every member; torch says none."""
        return 0 if self.is_torch else DAY

    def crc(self, crcs: Sequence[int]) -> int:
        """The CRC of the payload."""
        found, unknown = 0, iter(crcs[self.first :])
        for nbytes, crc32 in self.pieces:
            found = crc32_joined(found, next(unknown) if crc32 is None else crc32, nbytes)
        return found


Content = bytes | Target | ByteRange
Member = tuple[str, Content | Sequence[Content]]
"""The name of a member, and what it is made of, in order."""


def archive(members: Iterable[Member], is_torch: bool = True) -> tuple[Segment, ...]:
    """The segments of an archive with these members, in order; as torch has them, or plainly."""
    segments: list[Segment] = []
    placed: list[_Placed] = []
    cursor = unknown = 0
    for name, content in members:
        parts = [content] if isinstance(content, (bytes, Target, ByteRange)) else list(content)
        pieces = tuple((len(p), zlib.crc32(p)) if isinstance(p, bytes) else (p.nbytes, None) for p in parts)
        nbytes = sum(length for length, _ in pieces)
        member = _Placed(name.encode(), nbytes, cursor, pieces, unknown, is_torch)
        unknown += sum(crc32 is None for _, crc32 in pieces)
        header = (
            _local(member)
            if is_torch
            else Late(
                (LOCAL.size + len(member.name) + (EXTRA.size + 16 if member.nbytes >= FULL32 else 0)),
                partial(_plain_local, member),
            )
        )
        placed.append(member)
        segments += [header, *parts]
        cursor += (len(header) if isinstance(header, bytes) else header.nbytes) + nbytes
        if nbytes and is_torch:
            nbytes_of_it = (DESCRIPTOR64 if member.is_large else DESCRIPTOR).size
            segments.append(Late(nbytes_of_it, partial(_descriptor, member)))
            cursor += nbytes_of_it
    directory_nbytes = sum(CENTRAL.size + len(m.name) + len(_zip64(m)) for m in placed)
    directory = Late(directory_nbytes, partial(_directory, tuple(placed)))
    return (*segments, directory, _end(len(placed), directory_nbytes, cursor, is_torch))


def _zip64(member: _Placed) -> bytes:
    """The extra field for what 32 bits do not hold: both sizes, then the place; empty for most members."""
    numbers = [member.nbytes] * 2 if member.nbytes >= FULL32 else []
    numbers += [member.header_start] if member.header_start >= FULL32 else []
    if not numbers:
        return b""
    return EXTRA.pack(ZIP64_EXTRA, 8 * len(numbers)) + Struct(f"<{len(numbers)}Q").pack(*numbers)


def _plain_local(member: _Placed, crcs: Sequence[int]) -> bytes:
    """Local header, name and extra field of a member of a plain archive, with its CRC and its sizes."""
    nbytes = min(member.nbytes, FULL32)
    extra = EXTRA.pack(ZIP64_EXTRA, 16) + Struct("<QQ").pack(member.nbytes, member.nbytes) if nbytes == FULL32 else b""
    return (
        LOCAL.pack(
            LOCAL_SIGNATURE, member.version, member.flags, STORED, 0, DAY, member.crc(crcs), nbytes, nbytes,
            len(member.name), len(extra),
        )
        + member.name
        + extra
    )  # fmt: skip


def _local(member: _Placed) -> bytes:
    """Local header, name and extra fields, up to where the payload begins.  CRC and sizes are left zero."""
    zip64 = _zip64(member)
    begin = member.header_start + LOCAL.size + len(member.name) + len(zip64) + EXTRA.size
    padding = -begin % ALIGNMENT
    extra = zip64 + b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    lengths = len(member.name), len(extra)
    return LOCAL.pack(LOCAL_SIGNATURE, 0, member.flags, STORED, 0, 0, 0, 0, 0, *lengths) + member.name + extra


def _descriptor(member: _Placed, crcs: Sequence[int]) -> bytes:
    form = DESCRIPTOR64 if member.is_large else DESCRIPTOR
    return form.pack(DESCRIPTOR_SIGNATURE, member.crc(crcs), member.nbytes, member.nbytes)


def _directory(placed: Iterable[_Placed], crcs: Sequence[int]) -> bytes:
    rows = bytearray()
    for member in placed:
        nbytes = min(member.nbytes, FULL32)
        zip64 = _zip64(member)
        rows += CENTRAL.pack(
            CENTRAL_SIGNATURE, member.version, member.version, member.flags, STORED, 0, member.day, member.crc(crcs),
            nbytes, nbytes, len(member.name), len(zip64), 0, 0, 0, 0, min(member.header_start, FULL32),
        )  # fmt: skip
        rows += member.name + zip64
    return bytes(rows)


def _end(count: int, nbytes: int, byte_start: int, is_torch: bool) -> bytes:
    """The end of the archive: torch always writes the form of zip64, too; others where 32 bits do not hold it."""
    many, few = (count, count, nbytes, byte_start), min(count, FULL16)
    end = END.pack(END_SIGNATURE, 0, 0, few, few, min(nbytes, FULL32), min(byte_start, FULL32), 0)
    if not is_torch and count < FULL16 and byte_start + nbytes < FULL32:
        return end
    return (
        END64.pack(END64_SIGNATURE, END64.size - 12, MADE_BY, NEEDED, 0, 0, *many)
        + LOCATOR.pack(LOCATOR_SIGNATURE, 0, byte_start + nbytes, 1)
        + end
    )
