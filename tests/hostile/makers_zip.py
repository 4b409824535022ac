"""Makers of zip archives that must be refused: each writes one to `path`.

`MAKERS` says which class of error each deserves.  Archives are built by hand (`archive`), since `zipfile`
refuses to write most of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from struct import pack

from paramtool.errors import Defects, FormatError, ParamtoolError, UnsafeError


@dataclass(frozen=True)
class Part:
    """One member, honest unless a field says otherwise; None means: as it should be."""

    name: bytes
    payload: bytes = b"payload"
    method: int = 0
    flags: int = 0x0800
    crc32: int | None = None
    nbytes: int | None = None
    stored_nbytes: int | None = None
    local_name: bytes | None = None
    local_method: int | None = None
    header_start: int | None = None
    extra: bytes = b""
    disk: int = 0


PARTS = (Part(b"archive/data.pkl", b"\x80\x02}."), Part(b"archive/data/0", bytes(16)))


def local(part: Part) -> bytes:
    """A local header and its payload."""
    name = part.name if part.local_name is None else part.local_name
    method = part.method if part.local_method is None else part.local_method
    head = pack("<4sHHHHHIIIHH", b"PK\3\4", 20, part.flags, method, 0, 0, 0, 0, 0, len(name), 0)
    return head + name + part.payload


def central(part: Part, at: int) -> bytes:
    """A line of the directory for a local header at byte `at`."""
    nbytes = len(part.payload) if part.nbytes is None else part.nbytes
    stored = len(part.payload) if part.stored_nbytes is None else part.stored_nbytes
    crc32 = zlib.crc32(part.payload) if part.crc32 is None else part.crc32
    at = at if part.header_start is None else part.header_start
    sizes = (crc32, stored, nbytes, len(part.name), len(part.extra), 0, part.disk, 0, 0, at)
    head = pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, part.flags, part.method, 0, 0, *sizes)
    return head + part.name + part.extra


def end(count: int, nbytes: int, at: int, comment: bytes = b"", disk: int = 0) -> bytes:
    """An end record."""
    return pack("<4sHHHHIIH", b"PK\5\6", disk, disk, count, count, nbytes, at, len(comment)) + comment


def end64(count: int, nbytes: int, at: int, place: int) -> bytes:
    """A zip64 end record that stands at byte `place`, and its locator."""
    record = pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, nbytes, at)
    return record + pack("<4sIQI", b"PK\6\7", 0, place, 1)


def bodies(parts: tuple[Part, ...]) -> tuple[bytes, bytes]:
    """All members, and the directory that fits them."""
    body, directory = b"", b""
    for part in parts:
        directory += central(part, len(body))
        body += local(part)
    return body, directory


def archive(*parts: Part, comment: bytes = b"") -> bytes:
    """A whole archive."""
    body, directory = bodies(parts)
    return body + directory + end(len(parts), len(directory), len(body), comment)


def archive64(*parts: Part, lie: int = 0) -> bytes:
    """A whole archive with a zip64 end record, whose count is wrong by `lie`."""
    body, directory = bodies(parts)
    at, nbytes = len(body), len(directory)
    tail = end64(len(parts) + lie, nbytes, at, at + nbytes) + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    return body + directory + tail


def _changed(**change: object) -> Callable[[Path], None]:
    """An archive whose second member is changed in one field."""

    def make(path: Path) -> None:
        path.write_bytes(archive(PARTS[0], replace(PARTS[1], **change)))  # type: ignore[arg-type]

    return make


def duplicate_name(path: Path) -> None:
    path.write_bytes(archive(*PARTS, replace(PARTS[1], payload=b"other")))


def name_in_other_case(path: Path) -> None:
    path.write_bytes(archive(*PARTS, Part(b"archive/DATA/0", b"other")))


other_local_name = _changed(local_name=b"archive/data/1")
longer_local_name = _changed(local_name=b"archive/data/00")
other_local_method = _changed(local_method=8)
encrypted = _changed(flags=0x0801)
strongly_encrypted = _changed(flags=0x0841)
patched = _changed(flags=0x0820)
bzip2 = _changed(method=12)
stored_with_two_sizes = _changed(nbytes=17)
payload_beyond_the_file = _changed(nbytes=1 << 30, stored_nbytes=1 << 30)
payload_over_the_directory = _changed(nbytes=60, stored_nbytes=60)
header_beyond_the_file = _changed(header_start=1 << 30)
header_in_a_payload = _changed(header_start=3)
absolute_name = _changed(name=b"/archive/data/0")
drive_name = _changed(name=b"C:/archive/data/0")
parent_name = _changed(name=b"archive/../../etc/passwd")
nul_name = _changed(name=b"archive/data/0\0.txt")
backslash_name = _changed(name=b"archive\\data\\0")
not_utf8_name = _changed(name=b"archive/data/\xff")
folder_with_bytes = _changed(name=b"archive/data/")
member_on_another_disk = _changed(disk=3)
zip64_extra_missing = _changed(nbytes=0xFFFFFFFF, stored_nbytes=0xFFFFFFFF)
zip64_extra_too_short = _changed(nbytes=0xFFFFFFFF, stored_nbytes=0xFFFFFFFF, extra=pack("<HHQ", 1, 8, 16))
zip64_extra_twice = _changed(extra=pack("<HHQ", 1, 8, 16) * 2)
zip64_offset_near_2_to_64 = _changed(header_start=0xFFFFFFFF, extra=pack("<HHQ", 1, 8, 2**64 - 1))
zip64_size_near_2_to_64 = _changed(
    nbytes=0xFFFFFFFF, stored_nbytes=0xFFFFFFFF, extra=pack("<HHQQ", 1, 16, 2**64 - 1, 2**64 - 1)
)
extra_cut_short = _changed(extra=pack("<HH", 1, 800))
second_name_in_extra = _changed(extra=pack("<HHBI", 0x7075, 10, 1, 0) + b"other")


def overlapping(path: Path) -> None:
    """Two entries that share one payload, as in bombs that need no compression ratio."""
    body, directory = bodies(PARTS)
    directory += central(replace(PARTS[1], name=b"archive/data/1"), len(local(PARTS[0])))
    path.write_bytes(body + directory + end(3, len(directory), len(body)))


def member_inside_a_member(path: Path) -> None:
    """A payload that holds a whole local header, which the directory also lists."""
    inner = Part(b"archive/data/1", b"inner")
    outer = Part(b"archive/data/0", local(inner))
    body = local(outer)
    directory = central(outer, 0) + central(inner, len(body) - len(local(inner)))
    path.write_bytes(body + directory + end(2, len(directory), len(body)))


def bytes_before(path: Path) -> None:
    """A prefix that offsets do not know of, as in self-extracting archives."""
    path.write_bytes(b"#!/bin/sh\n" + archive(*PARTS))


def bytes_before_that_offsets_count(path: Path) -> None:
    """A prefix that all offsets know of."""
    prefix = b"#!/bin/sh\n"
    body, directory = prefix, b""
    for part in PARTS:
        directory += central(part, len(body))
        body += local(part)
    path.write_bytes(body + directory + end(2, len(directory), len(body)))


def two_archives(path: Path) -> None:
    """One archive after another: the first or the second, as the reader likes."""
    path.write_bytes(archive(*PARTS) + archive(Part(b"archive/data/0", b"other")))


def truncated(path: Path) -> None:
    path.write_bytes(archive(*PARTS)[:-30])


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def directory_beyond_the_end(path: Path) -> None:
    body, directory = bodies(PARTS)
    path.write_bytes(body + directory + end(2, len(directory), 1 << 30))


def directory_cut_short(path: Path) -> None:
    body, directory = bodies(PARTS)
    path.write_bytes(body + directory[:-5] + end(2, len(directory) - 5, len(body)))


def junk_in_the_directory(path: Path) -> None:
    body, directory = bodies(PARTS)
    directory += b"junk" * 20
    path.write_bytes(body + directory + end(2, len(directory), len(body)))


def more_entries_than_counted(path: Path) -> None:
    body, directory = bodies(PARTS)
    path.write_bytes(body + directory + end(1, len(directory), len(body)))


def fewer_entries_than_counted(path: Path) -> None:
    body, directory = bodies(PARTS)
    path.write_bytes(body + directory + end(3, len(directory), len(body)))


def comment_cut_short(path: Path) -> None:
    path.write_bytes(archive(*PARTS, comment=b"a comment")[:-4])


def multi_disk(path: Path) -> None:
    body, directory = bodies(PARTS)
    path.write_bytes(body + directory + end(2, len(directory), len(body), disk=1))


def member_of_another_disk(path: Path) -> None:
    """A number that stands for one in a zip64 field, and none is there."""
    body, directory = bodies(PARTS)
    changed = bytearray(directory)
    changed[34:36] = b"\xff\xff"
    path.write_bytes(body + bytes(changed) + end(2, len(directory), len(body)))


def zip64_count_lies(path: Path) -> None:
    path.write_bytes(archive64(*PARTS, lie=1))


def zip64_disagrees(path: Path) -> None:
    """The old and the new end record name different directories."""
    body, directory = bodies(PARTS)
    at, nbytes = len(body), len(directory)
    path.write_bytes(body + directory + end64(2, nbytes, at, at + nbytes) + end(1, nbytes // 2, at))


def zip64_locator_lies(path: Path) -> None:
    body, directory = bodies(PARTS)
    at, nbytes = len(body), len(directory)
    path.write_bytes(body + directory + end64(2, nbytes, at, 0) + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF))


def zip64_record_missing(path: Path) -> None:
    body, directory = bodies(PARTS)
    at, nbytes = len(body), len(directory)
    tail = end64(2, nbytes, at, at + nbytes).replace(b"PK\6\6", b"PK\0\0")
    path.write_bytes(body + directory + tail + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF))


def too_many_entries(path: Path) -> None:
    """A count that would take gigabytes, in an archive of a few bytes."""
    tail = end64(2_000_001, 0, 0, 0) + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    path.write_bytes(tail)


def too_long_directory(path: Path) -> None:
    tail = end64(1, 1 << 60, 0, 0) + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    path.write_bytes(tail)


def many_defects(path: Path) -> None:
    """A defect in each of fifty members."""
    path.write_bytes(archive(*(Part(b"archive/../%d" % i) for i in range(50))))


MAKERS: dict[str, tuple[Callable[[Path], None], type[ParamtoolError]]] = {
    "duplicate_name": (duplicate_name, FormatError),
    "name_in_other_case": (name_in_other_case, FormatError),
    "other_local_name": (other_local_name, FormatError),
    "longer_local_name": (longer_local_name, FormatError),
    "other_local_method": (other_local_method, FormatError),
    "encrypted": (encrypted, Defects),  # the local header says so too
    "strongly_encrypted": (strongly_encrypted, Defects),
    "patched": (patched, Defects),
    "bzip2": (bzip2, FormatError),
    "stored_with_two_sizes": (stored_with_two_sizes, FormatError),
    "payload_beyond_the_file": (payload_beyond_the_file, FormatError),
    "payload_over_the_directory": (payload_over_the_directory, FormatError),
    "header_beyond_the_file": (header_beyond_the_file, FormatError),
    "header_in_a_payload": (header_in_a_payload, Defects),
    "absolute_name": (absolute_name, FormatError),
    "drive_name": (drive_name, FormatError),
    "parent_name": (parent_name, FormatError),
    "nul_name": (nul_name, FormatError),
    "backslash_name": (backslash_name, FormatError),
    "not_utf8_name": (not_utf8_name, FormatError),
    "folder_with_bytes": (folder_with_bytes, FormatError),
    "member_on_another_disk": (member_on_another_disk, FormatError),
    "zip64_extra_missing": (zip64_extra_missing, Defects),
    "zip64_extra_too_short": (zip64_extra_too_short, Defects),
    "zip64_extra_twice": (zip64_extra_twice, FormatError),
    "zip64_offset_near_2_to_64": (zip64_offset_near_2_to_64, FormatError),
    "zip64_size_near_2_to_64": (zip64_size_near_2_to_64, FormatError),
    "extra_cut_short": (extra_cut_short, FormatError),
    "second_name_in_extra": (second_name_in_extra, FormatError),
    "overlapping": (overlapping, Defects),
    "member_inside_a_member": (member_inside_a_member, FormatError),
    "bytes_before": (bytes_before, FormatError),
    "bytes_before_that_offsets_count": (bytes_before_that_offsets_count, FormatError),
    "two_archives": (two_archives, FormatError),
    "truncated": (truncated, FormatError),
    "nothing": (nothing, FormatError),
    "directory_beyond_the_end": (directory_beyond_the_end, FormatError),
    "directory_cut_short": (directory_cut_short, FormatError),
    "junk_in_the_directory": (junk_in_the_directory, FormatError),
    "more_entries_than_counted": (more_entries_than_counted, FormatError),
    "fewer_entries_than_counted": (fewer_entries_than_counted, FormatError),
    "comment_cut_short": (comment_cut_short, FormatError),
    "multi_disk": (multi_disk, FormatError),
    "member_of_another_disk": (member_of_another_disk, FormatError),
    "zip64_count_lies": (zip64_count_lies, FormatError),
    "zip64_disagrees": (zip64_disagrees, FormatError),
    "zip64_locator_lies": (zip64_locator_lies, FormatError),
    "zip64_record_missing": (zip64_record_missing, FormatError),
    "too_many_entries": (too_many_entries, UnsafeError),
    "too_long_directory": (too_long_directory, UnsafeError),
    "many_defects": (many_defects, Defects),
}
