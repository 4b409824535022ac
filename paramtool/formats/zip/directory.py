"""Byte ranges of the members of a zip archive.

A stored member is a window on the file: where its payload starts and how many bytes it has.  So a directory
is read once, nothing is extracted, and a tensor in a torch file is read straight from the archive.

The reader is strict.  Wherever torch (miniz) and Python's `zipfile` would disagree on what an archive holds,
the archive is refused: one file must mean one thing.  Two freedoms remain, because real files use them: bytes
after the archive, and CRC 0 on every member, which is how torch writes "not computed".

Sizes come from the central directory only: torch writes zeros into local headers (flag 0x08, data
descriptors).  Positions need the local headers: their longer extra field holds the padding to 64 bytes.

All numbers are little-endian.  Source of the structures: PKWARE APPNOTE.TXT 6.3, 4.3.7 to 4.3.16 and 4.5.3.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from paramtool.errors import MAX_LISTED, Defects, FormatError, UnsafeError
from paramtool.formats.files import inflated, pread
from paramtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14

MAX_ENTRIES = 2_000_000
MAX_DIRECTORY_NBYTES = 512 << 20

LOCAL_SIGNATURE = b"PK\x03\x04"
CENTRAL_SIGNATURE = b"PK\x01\x02"
END_SIGNATURE = b"PK\x05\x06"
END64_SIGNATURE = b"PK\x06\x06"
LOCATOR_SIGNATURE = b"PK\x06\x07"

LOCAL = Struct("<4sHHHHHIIIHH")
"""signature, version, flags, method, time, date, crc-32, two sizes, name length, extra length"""
CENTRAL = Struct("<4sHHHHHHIIIHHHHHII")
"""signature, two versions, flags, method, time, date, crc-32, compressed size, uncompressed size, name
length, extra length, comment length, disk number, internal and external attributes, offset of local header"""
END = Struct("<4sHHHHIIH")
"""signature, this disk, directory's disk, entries on this disk, entries, directory size, its offset, comment
length"""
LOCATOR = Struct("<4sIQI")
"""signature, disk of the zip64 end record, its offset, number of disks"""
END64 = Struct("<4sQHHIIQQQQ")
"""signature, size of the rest, two versions, this disk, directory's disk, entries on this disk, entries,
directory size, its offset"""

FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
"""A field with this value says: look into the zip64 record."""
MAX_TAIL = END.size + FULL16
"""The end record is in this many last bytes: a comment has at most 65,535."""
USUAL_TAIL = 1024
"""It is in these, unless there is a long comment."""
REFUSED_FLAGS = 0x2061
"""Bits 0, 6 and 13 mean encryption; bit 5 means patch data (APPNOTE 4.4.4)."""
DESCRIPTOR_FLAG = 0x8
"""Bit 3: CRC and sizes follow the payload (APPNOTE 4.3.9)."""
DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
LOCAL_CRC, CENTRAL_CRC = 14, 16
"""Where a local header, and a line of the directory, have the CRC."""
ZIP64_EXTRA, UNICODE_PATH_EXTRA = 0x0001, 0x7075
INFLATE_STEP = 1 << 20
MIN_INFLATED_NBYTES = 8 << 20
INFLATED_PER_STORED_BYTE = 64
"""The largest ratio to which a member that is read whole may inflate: pickles, JSON and text of real checkpoints
compress to a third or a sixth, and only endless repetition compresses to less than a sixty-fourth."""


class Member(NamedTuple):
    """One file of the archive: a name and the byte range of its payload."""

    name: str
    """As in the directory, first folder included: `archive/data/0`."""
    method: int
    """0 stored, 8 deflated."""
    crc32: int | None
    """None: not computed (all members carry CRC 0, as after torch's `set_crc32_options(False)`)."""
    byte_start: int
    """Where the payload starts in the file."""
    stored_nbytes: int
    """The payload's bytes in the file."""
    nbytes: int
    """The payload's bytes once inflated; equal to `stored_nbytes` for method 0."""


def is_zip(head: bytes) -> bool:
    """Whether a file that starts with `head` (4 bytes or more) is a zip archive; an empty one counts.

    >>> is_zip(b"PK\\x03\\x04..."), is_zip(b"PK\\x05\\x06..."), is_zip(b"\\x80\\x02}.")
    (True, True, False)
    """
    return head[:4] in (LOCAL_SIGNATURE, END_SIGNATURE, END64_SIGNATURE)


def read_directory(
    file: BinaryIO, where: str, *, case_matters: bool = False, start: int = 0, stop: int | None = None
) -> tuple[Member, ...]:
    """The members in the order of the central directory, folders left out.

    `file` needs a real file descriptor; its position stays.  The archive is the bytes `start` to `stop` of it, whose
    positions count from `start` in messages.  `where` names the file in messages.  Names that differ in case alone are
    refused, as torch takes them for one, unless `case_matters`.
    Raises FormatError for one defect, Defects for several, UnsafeError for a directory beyond the limits.
    """
    archive = _Archive(file.fileno(), start, (os.fstat(file.fileno()).st_size if stop is None else stop) - start)
    directory = _locate(archive, where)
    report = _ArchiveDefects(where)
    entries = list(_entries(directory, report))
    for close in _close_together(entries):
        _read_locals(archive, close, report)
    # Names must be relative paths, and differ by more than the case of ASCII letters (miniz ignores it)
    seen: dict[bytes, bytes] = {}
    for entry in entries:
        raw = entry.raw
        if leaves_folder(raw):
            report.add(entry.name, "found a name that leaves its folder; expected a relative path with '/'")
        other = seen.setdefault(raw if case_matters else raw.lower(), raw)
        if other is raw:
            continue
        if other == raw:
            report.add(entry.name, "found this name twice; expected each name once")
        else:
            twin = other.decode("utf-8", "backslashreplace")
            report.add(entry.name, f"found also {twin!r}; expected names that differ in more than case")
    _check_places(entries, directory, report)
    report.finish()
    # The entries that are files; CRCs are None if every file that has bytes carries CRC 0
    files = [e for e in entries if e.name[-1:] not in ("", "/")]
    computed = any(e.crc32 for e in files) or not any(e.nbytes for e in files)
    return tuple(
        Member(e.name, e.method, e.crc32 if computed else None, start + e.byte_start, e.stored_nbytes, e.nbytes)
        for e in files
    )


def crc_places(file: BinaryIO, where: str, name: str, *, start: int = 0, stop: int | None = None) -> list[int]:
    """The bytes at which an archive that was read before states the CRC of a member, in ascending order.

    They are in its local header or in the descriptor behind it, and in the directory, counted from `start`.
    """
    archive = _Archive(file.fileno(), start, (os.fstat(file.fileno()).st_size if stop is None else stop) - start)
    directory = _locate(archive, where)
    at = 0
    for entry in _entries(directory, _ArchiveDefects(where)):
        line = directory.byte_start + at
        fields = CENTRAL.unpack_from(directory.content, at)
        at += CENTRAL.size + fields[10] + fields[11] + fields[12]
        if entry.name != name:
            continue
        local = LOCAL.unpack(archive.bytes(entry.header_start, LOCAL.size, where))
        end = entry.header_start + LOCAL.size + local[9] + local[10] + entry.stored_nbytes
        if not entry.flags & DESCRIPTOR_FLAG:
            return [entry.header_start + LOCAL_CRC, line + CENTRAL_CRC]
        is_signed = archive.some(end, 4) == DESCRIPTOR_SIGNATURE
        stated = [entry.header_start + LOCAL_CRC] if local[6] else []
        return [*stated, end + 4 * is_signed, line + CENTRAL_CRC]
    raise FormatError(f"{where}: found no member {name!r}")


def read_member(file: BinaryIO, member: Member, where: str, limit: int, *, most: int | None = None) -> bytes:
    """The whole payload of `member`, inflated if need be, its CRC checked unless it was not computed.

    Raises UnsafeError if it has more than `limit` bytes, inflates to more than it declares or than `most`, which is
    very many times the bytes it has in the file unless it is given, FormatError if it is damaged.
    """
    spot = f"{where}: {member.name!r:.200}"
    if most is None:
        most = inflatable(member.stored_nbytes)
    if member.nbytes > limit:
        raise UnsafeError(f"{spot}: found {member.nbytes:,} bytes; expected at most {limit:,}")
    if member.nbytes > most:
        packed = f"{member.stored_nbytes:,} bytes that inflate to {member.nbytes:,}"
        hint = "if the file is valid, unpack it and pack it again without compression, as torch.save does"
        raise UnsafeError(f"{spot}: found {packed}; expected at most {most:,}: it is a decompression bomb", hint)
    if member.method == STORED:
        payload = _pread(file.fileno(), member.byte_start, member.nbytes, spot)
    else:
        payload = _inflate(file.fileno(), member, spot)
    if member.crc32 is not None and (found := zlib.crc32(payload)) != member.crc32:
        message = f"found CRC-32 {found:08x}; expected {member.crc32:08x} as in the directory"
        raise FormatError(f"{spot}: {message}", "the file is damaged: download it again")
    return payload


def inflatable(stored_nbytes: int) -> int:
    """The most bytes to which this many bytes of a file may inflate, if all of them are read at once."""
    return max(MIN_INFLATED_NBYTES, INFLATED_PER_STORED_BYTE * stored_nbytes)


class _Archive(NamedTuple):
    """The bytes of a file that an archive is: all of them, or a part.  Positions count from the archive's start."""

    descriptor: int
    start: int
    nbytes: int

    def some(self, at: int, nbytes: int) -> bytes:
        """Bytes from a position on, fewer only at the end."""
        nbytes = min(nbytes, self.nbytes - at)
        return pread(self.descriptor, nbytes, self.start + at) if nbytes > 0 else b""

    def bytes(self, at: int, nbytes: int, where: str) -> bytes:
        """The bytes of a range; FormatError if the archive ends inside it."""
        if nbytes > self.nbytes - at:
            raise FormatError(
                f"{where}: found the end of the archive at byte {self.nbytes:,}; expected {at + nbytes:,}"
            )
        return _pread(self.descriptor, self.start + at, nbytes, where)


@dataclass(slots=True)
class _DirectoryEntry:
    """A line of the central directory, checked by itself only."""

    raw: bytes
    name: str
    flags: int
    method: int
    crc32: int
    stored_nbytes: int
    nbytes: int
    header_start: int
    byte_start: int = 0
    """Of the payload; set by `_check_local`, which knows the local header's length."""


class _Directory(NamedTuple):
    """The central directory's bytes and what the end record says about them."""

    content: bytes
    entries: int
    byte_start: int


def claims(data: Buffer, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Where the directories of an archive say that members are, whatever else is wrong: (header, method, bytes).

    The archive is the bytes `start` to `stop`, or only ends there.  Python's zipfile takes a directory to reach up to
    its end record and counts from there; miniz takes positions as they are said.
    """
    low = max(start, stop - MAX_TAIL)
    last = stop - END.size
    for at in {last, low + data[low:stop].rfind(END_SIGNATURE)}:
        if not low <= at <= last or data[at : at + 4] != END_SIGNATURE:
            continue
        places = {(at, *END.unpack(data[at : at + END.size])[5:7])}
        if at - LOCATOR.size >= start and data[at - LOCATOR.size : at - LOCATOR.size + 4] == LOCATOR_SIGNATURE:
            said = LOCATOR.unpack(data[at - LOCATOR.size : at])[2]
            for wide in {at - LOCATOR.size - END64.size, start + said}:
                if start <= wide <= at - END64.size and data[wide : wide + 4] == END64_SIGNATURE:
                    places.add((wide, *END64.unpack(data[wide : wide + END64.size])[8:10]))
        for end, nbytes, offset in places:
            for first in {end - nbytes, start + offset}:
                if start <= first < end and nbytes <= MAX_DIRECTORY_NBYTES:
                    content = data[first : min(first + nbytes, end)]
                    for entry in _entries(_Directory(content, MAX_ENTRIES, first), _ArchiveDefects("")):
                        yield entry.header_start + first - offset, entry.method, entry.stored_nbytes


class _ArchiveDefects:
    """Gathers the defects of one archive; keeps the first few and counts the rest."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.shown: list[str] = []
        self.count = 0

    def add(self, name: str, text: str) -> None:
        self.count += 1
        if self.count <= MAX_LISTED:
            self.shown.append(f"{name!r}: {text}" if name else text)

    def finish(self) -> None:
        """Raise what was gathered, if anything."""
        if self.count > 1:
            raise Defects(self.where, self.shown, more=self.count - len(self.shown))
        if self.count:
            raise FormatError(f"{self.where}: {self.shown[0]}")


def _locate(archive: _Archive, where: str) -> _Directory:
    """Find and read the central directory; it must end where the end record starts."""
    at, tail = _find_end(archive, where)
    _, disk, first_disk, here, count, nbytes, byte_start, comment = END.unpack_from(tail)
    if at + END.size + comment > archive.nbytes:
        raise FormatError(f"{where}: found a comment truncated by the end of the file; expected {comment} bytes")
    end: tuple[int, ...] = (disk, first_disk, here, count, nbytes, byte_start)
    at, end = _apply_zip64(archive, at, end, where)
    disk, first_disk, here, count, nbytes, byte_start = end
    if disk or first_disk or here != count:
        raise FormatError(f"{where}: found a part of a multi-disk archive; expected one whole file")
    if count > MAX_ENTRIES or nbytes > MAX_DIRECTORY_NBYTES:
        found = f"found a directory of {count:,} {'entry' if count == 1 else 'entries'} and {nbytes:,} bytes"
        raise UnsafeError(f"{where}: {found}; expected at most {MAX_ENTRIES:,} and {MAX_DIRECTORY_NBYTES:,}")
    # The directory must reach from its offset exactly to the end record
    before = at - nbytes - byte_start
    if before < 0:
        found = f"a directory at byte {byte_start:,} of {nbytes:,} bytes"
        raise FormatError(f"{where}: found {found}; expected it to end at byte {at:,}")
    if before > 0:
        found = f"{before:,} bytes before the archive, or between its directory and its end record"
        raise FormatError(f"{where}: found {found}; expected none")
    return _Directory(archive.bytes(byte_start, nbytes, where), count, byte_start)


def _find_end(archive: _Archive, where: str) -> tuple[int, bytes]:
    """Position and bytes of the last end record.  As in miniz, the last signature decides, right or wrong."""
    for most in (USUAL_TAIL, MAX_TAIL):
        byte_start = max(0, archive.nbytes - most)
        tail = archive.bytes(byte_start, archive.nbytes - byte_start, where)
        at = tail.rfind(END_SIGNATURE, 0, max(0, len(tail) - END.size + len(END_SIGNATURE)))
        if at >= 0:
            return byte_start + at, tail[at : at + END.size]
    message = f"found no end record in the last {len(tail):,} bytes; expected a zip archive"
    raise FormatError(f"{where}: {message}", "the file may be truncated: compare its size with the source's")


def _apply_zip64(archive: _Archive, at: int, end: tuple[int, ...], where: str) -> tuple[int, tuple[int, ...]]:
    """The end of the directory and the end record's numbers, from the zip64 record where there is one.

    A number that the old record does hold must agree with the zip64 one.
    """
    if at < LOCATOR.size or archive.some(at - LOCATOR.size, 4) != LOCATOR_SIGNATURE:
        return at, end
    at -= LOCATOR.size
    _, disk, place, disks = LOCATOR.unpack(archive.bytes(at, LOCATOR.size, where))
    if disk or disks > 1:
        raise FormatError(f"{where}: found a part of a multi-disk archive; expected one whole file")
    if place != at - END64.size:
        expected = f"expected {at - END64.size}, right before its locator"
        raise FormatError(f"{where}: found the zip64 end record announced at byte {place}; {expected}")
    signature, rest, _, _, *wide = END64.unpack(archive.bytes(place, END64.size, where))
    if signature != END64_SIGNATURE or rest != END64.size - 12:
        raise FormatError(f"{where}: found no zip64 end record of {END64.size} bytes; expected one at byte {place}")
    fulls = (FULL16, FULL16, FULL16, FULL16, FULL32, FULL32)
    for narrow, value, full in zip(end, wide, fulls, strict=True):
        if narrow not in (value, full):
            raise FormatError(f"{where}: found {narrow} in the end record; expected {value} as in zip64's")
    return place, tuple(wide)


def _entries(directory: _Directory, report: _ArchiveDefects) -> Iterator[_DirectoryEntry]:
    """Each line of the directory; stops at the first that cannot be parsed, as nothing after it can be."""
    content, at, found = directory.content, 0, 0
    while at < len(content):
        if len(content) - at < CENTRAL.size or content[at : at + 4] != CENTRAL_SIGNATURE:
            place = directory.byte_start + at
            report.add("", f"found no directory entry at byte {place:,}; expected entry {found + 1}")
            return
        fields = CENTRAL.unpack_from(content, at)
        name_stop = at + CENTRAL.size + fields[10]
        extra_stop = name_stop + fields[11]
        if extra_stop + fields[12] > len(content):
            report.add("", f"found directory entry {found + 1} truncated; expected its name and extra field")
            return
        # One line of the directory, zip64 applied, with the checks that need no other line
        raw = content[at + CENTRAL.size : name_stop]
        extra = content[name_stop:extra_stop]
        flags, method, crc32, stored_nbytes, nbytes = fields[3], fields[4], fields[7], fields[8], fields[9]
        disk, header_start = fields[13], fields[16]
        name = _decode(raw, report)
        if extra or FULL32 in (stored_nbytes, nbytes, header_start):
            narrow = (nbytes, stored_nbytes, header_start)
            nbytes, stored_nbytes, header_start = _widen(narrow, extra, name, report)
        if disk:
            report.add(name, f"found on disk {disk}; expected one whole file")
        if flags & REFUSED_FLAGS:
            report.add(name, f"found flags {flags:#06x}, encrypted or patched; expected a plain member")
        if method not in (STORED, DEFLATED):
            report.add(name, f"found compression method {method}; expected 0 (stored) or 8 (deflated)")
        if method == STORED and stored_nbytes != nbytes:
            report.add(name, f"found {stored_nbytes:,} bytes stored as {nbytes:,}; expected equal sizes")
        if nbytes and name[-1:] in ("", "/"):
            report.add(name or "(empty name)", f"found {nbytes:,} bytes in a folder; expected none")
        yield _DirectoryEntry(raw, name, flags, method, crc32, stored_nbytes, nbytes, header_start)
        at = extra_stop + fields[12]
        found += 1
        if found > directory.entries:
            break
    if found != directory.entries:
        more = "more than " if found > directory.entries else ""
        counted = directory.entries if more else found
        expected = f"expected {directory.entries:,} as in the end record"
        report.add("", f"found {more}{counted:,} directory entries; {expected}")


def _decode(raw: bytes, report: _ArchiveDefects) -> str:
    """The name as text: UTF-8 whether or not flag 0x0800 says so, since torch compares bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        name = raw.decode("utf-8", "backslashreplace")
        report.add(name, "found a name that is not UTF-8; expected UTF-8")
        return name


def _widen(narrow: tuple[int, int, int], extra: bytes, name: str, report: _ArchiveDefects) -> tuple[int, ...]:
    """Sizes and offset with those that are 0xFFFFFFFF taken from the zip64 extra field, in its order."""
    records = dict(_extra_records(extra, name, report))
    if UNICODE_PATH_EXTRA in records:
        report.add(name, "found a second name in the extra field (0x7075); expected one name")
    wide = records.get(ZIP64_EXTRA, b"")
    values, at = [], 0
    for value in narrow:
        if value == FULL32 and len(wide) < at + 8:
            report.add(name, "found a size or offset of 0xffffffff; expected a zip64 extra field with it")
            return narrow
        if value == FULL32:
            value = int.from_bytes(wide[at : at + 8], "little")
            at += 8
        values.append(value)
    return tuple(values)


def _extra_records(extra: bytes, name: str, report: _ArchiveDefects) -> Iterator[tuple[int, bytes]]:
    """(id, data) of each record of an extra field; no id that is used may appear twice."""
    at, seen = 0, False
    while at + 4 <= len(extra):
        kind = int.from_bytes(extra[at : at + 2], "little")
        stop = at + 4 + int.from_bytes(extra[at + 2 : at + 4], "little")
        if stop > len(extra) or (kind == ZIP64_EXTRA and seen):
            report.add(name, "found a damaged extra field; expected records that fit in it, zip64 once")
            return
        seen = seen or kind == ZIP64_EXTRA
        yield kind, extra[at + 4 : stop]
        at = stop


CLOSE_NBYTES = 4 << 10
"""Local headers within this distance are read at once; of small members, that is one read for thousands."""
TOGETHER_NBYTES = 1 << 20
"""Of one such read."""


def _close_together(entries: list[_DirectoryEntry]) -> Iterator[list[_DirectoryEntry]]:
    """Entries whose local headers follow each other closely, in the order of the directory."""
    close: list[_DirectoryEntry] = []
    first = last = 0
    for entry in entries:
        start = entry.header_start
        if close and not (last <= start <= last + CLOSE_NBYTES and start < first + TOGETHER_NBYTES):
            yield close
            close = []
        if not close:
            first = start
        close.append(entry)
        last = start
    if close:
        yield close


def _read_locals(archive: _Archive, close: list[_DirectoryEntry], report: _ArchiveDefects) -> None:
    """Read the local headers of entries that are close together."""
    first, last = close[0].header_start, close[-1]
    data = _read_head(archive, last.header_start + LOCAL.size + len(last.raw) - first, first)
    for entry in close:
        start = entry.header_start - first
        _check_local(data[start : start + LOCAL.size + len(entry.raw)], entry, report)


def _read_head(archive: _Archive, nbytes: int, start: int) -> bytes:
    """Bytes from a place that the file may not have."""
    try:
        return archive.some(start, nbytes)
    except OverflowError:
        return b""
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place that no file can have
            raise
        return b""


def _check_local(head: bytes, entry: _DirectoryEntry, report: _ArchiveDefects) -> None:
    """Find out where the payload of `entry` starts.

    The local header must name the same member, by the same method, and be plain too.
    """
    if len(head) < LOCAL.size + len(entry.raw) or head[:4] != LOCAL_SIGNATURE:
        report.add(entry.name, f"found no local header at byte {entry.header_start:,}; expected one")
        return
    fields = LOCAL.unpack_from(head)
    if fields[9] != len(entry.raw) or head[LOCAL.size :] != entry.raw:
        local = head[LOCAL.size : LOCAL.size + fields[9]].decode("utf-8", "backslashreplace")
        report.add(entry.name, f"found the name {local!r} in the local header; expected the directory's")
    if fields[3] != entry.method or fields[2] & REFUSED_FLAGS:
        found = f"method {fields[3]} and flags {fields[2]:#06x}"
        report.add(entry.name, f"found {found} in the local header; expected method {entry.method}, plain")
    entry.byte_start = entry.header_start + LOCAL.size + fields[9] + fields[10]


def leaves_folder(name: bytes) -> bool:
    """Whether a name of a member is no relative path with `/`, as some reader sees it.

    `c:a` is one except on Windows: torch.save of a file `c:a.pt` writes it.

    >>> [leaves_folder(name) for name in (b"a/b", b"/a", b"c:/a", b"c:a/b", b"a/../b", b"a..b")]
    [False, True, True, False, True, False]
    """
    return (
        name[:1] == b"/"
        or (name[1:3] == b":/" and name[:1].isalpha())
        or b"\\" in name
        or b"\0" in name
        or (b".." in name and b".." in name.split(b"/"))
    )


def _check_places(entries: list[_DirectoryEntry], directory: _Directory, report: _ArchiveDefects) -> None:
    """Members must lie between byte 0 and the directory and share no byte.

    A member reaches from its local header to its payload's end.  Gaps are fine: data descriptors lie there.
    """
    places = sorted((e.header_start, e.byte_start + e.stored_nbytes, e.name) for e in entries)
    first = places[0][0] if places else directory.byte_start
    if first > 0:
        report.add("", f"found {first:,} bytes before the archive; expected its first member at byte 0")
    stop, last = 0, ""
    for start, next_stop, name in places:
        if start < stop:
            report.add(name, f"found at byte {start:,}, inside {last!r}; expected no overlap of members")
        if next_stop > directory.byte_start:
            expected = f"expected it before the directory at byte {directory.byte_start:,}"
            report.add(name, f"found its payload to end at byte {next_stop:,}; {expected}")
        if next_stop > stop:
            stop, last = next_stop, name


def _inflate(descriptor: int, member: Member, spot: str) -> bytes:
    """The inflated payload; never more than its declared size plus one byte is made."""
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    made, left = bytearray(), member.stored_nbytes
    while left and not engine.eof:
        step = min(left, INFLATE_STEP)
        packed = _pread(descriptor, member.byte_start + member.stored_nbytes - left, step, spot)
        left -= step
        try:
            made += inflated(engine, packed, member.nbytes + 1 - len(made))
        except ValueError as error:
            raise FormatError(f"{spot}: {error}; expected a valid stream") from None
        if len(made) > member.nbytes:
            raise UnsafeError(f"{spot}: found more bytes than declared; expected {member.nbytes:,}")
    if not engine.eof or left or engine.unused_data or len(made) != member.nbytes:
        found = f"found {len(made):,} inflated bytes, stream ended: {engine.eof}"
        raise FormatError(f"{spot}: {found}; expected {member.nbytes:,}, and nothing after the stream")
    return bytes(made)


def _pread(descriptor: int, byte_start: int, nbytes: int, spot: str) -> bytes:
    """Exactly `nbytes` bytes from `byte_start`; FormatError if the file ends before."""
    data = pread(descriptor, nbytes, byte_start)
    if len(data) < nbytes:
        at, stop = byte_start + len(data), byte_start + nbytes
        raise FormatError(f"{spot}: found the end of the file at byte {at:,}; expected {stop:,}")
    return data
