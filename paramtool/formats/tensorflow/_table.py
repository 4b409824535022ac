"""The table in which a bundle keeps its index: LevelDB's, keys in order with a value each.

    data blocks, ...             each with a trailer: one byte 0, or 1 for snappy; the masked CRC-32C of block and byte
    an index block               {a key not before a block's last: that block}
    footer, the last 48 bytes    the places of a metaindex block and of the index block; zeros; the magic number

    block      entries; the positions of those with a whole key, u32 each; their count, u32
    entry      varints: bytes shared with the key before, bytes of the key that are not, bytes of the value; then both
    place      varints: start, and bytes without the trailer

Source: tensorflow/tsl/lib/io/format.{h,cc}, block.cc, table.cc; doc/table_format.md of google/leveldb.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from paramtool.errors import FormatError, UnsafeError
from paramtool.formats.files import read_bytes
from paramtool.formats.tensorflow._crc32c import crc32c, masked

FOOTER_NBYTES = 48
MAGIC = bytes.fromhex("57fb808b247547db")
TRAILER_NBYTES = 5
NONE, SNAPPY = 0, 1
MAX_TABLE_NBYTES = 256 << 20
MAX_CHECKED_NBYTES = 16 << 20
"""The CRCs of blocks are checked until this many bytes of a table are done, since that is slow in Python."""
MAX_KEY_GROWTH = 64
"""The most bytes of keys for one byte of a table: prefixes that keys share can make long keys of few bytes."""


def items(file: BinaryIO, where: str, nbytes: int) -> Iterator[tuple[bytes, bytes, int]]:
    """(key, value, position of the block) of each row; FormatError if the table is damaged."""
    if nbytes < FOOTER_NBYTES or read_bytes(file, nbytes - len(MAGIC), len(MAGIC)) != MAGIC:
        raise FormatError(
            f"{where}: does not end with the magic number of a table, {MAGIC.hex()}; expected the index of a bundle",
            hint="the file is truncated, or is not an index of TensorFlow's",
        )
    if nbytes > MAX_TABLE_NBYTES:
        raise UnsafeError(f"{where}: is an index of {nbytes} bytes; expected at most {MAX_TABLE_NBYTES}")
    table = _Table(file, where, nbytes)
    footer = nbytes - FOOTER_NBYTES
    data = read_bytes(file, footer, FOOTER_NBYTES - len(MAGIC))
    _, _, at = table.place(data, 0, footer)
    start, stop, _ = table.place(data, at, footer)
    if stop + TRAILER_NBYTES > footer:
        raise table.damaged(footer, f"the index block ends at byte {stop}, in the footer")
    before, end = b"", 0
    for _, value in table.block(start, stop):
        first, last, _ = table.place(value, 0, start)
        if first < end:
            raise table.damaged(start, f"a block begins at byte {first}, before byte {end}, where the last one ends")
        if last + TRAILER_NBYTES > start:
            raise table.damaged(start, f"a block ends at byte {last}, behind the index block's start")
        end = last + TRAILER_NBYTES
        for key, content in table.block(first, last):
            if key <= before and before:
                raise table.damaged(first, f"the key {_shown(key)} is behind {_shown(before)}; expected keys in order")
            before = key
            yield key, content, first


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))[:120]


class _Table:
    """A table, and how much of it was checked and unpacked so far."""

    def __init__(self, file: BinaryIO, where: str, nbytes: int) -> None:
        self.file = file
        self.where = where
        self.unchecked = MAX_CHECKED_NBYTES
        self.keys = MAX_KEY_GROWTH * nbytes

    def damaged(self, at: int, text: str) -> FormatError:
        """The error for the data at a byte."""
        return FormatError(f"{self.where}: byte {at}: {text}", hint="the file is damaged")

    def place(self, data: bytes, at: int, near: int) -> tuple[int, int, int]:
        """The start and the end of a block, and the position behind that."""
        start, at = self.varint(data, at, near)
        nbytes, at = self.varint(data, at, near)
        return start, start + nbytes, at

    def varint(self, data: bytes, at: int, near: int) -> tuple[int, int]:
        """A number of up to 64 bits, and the position behind it; `near` is the byte that errors name."""
        value = 0
        for k in range(at, min(at + 10, len(data))):
            value |= (data[k] & 0x7F) << 7 * (k - at)
            if data[k] < 0x80:
                return value, k + 1
        raise self.damaged(near, f"a number at {at} does not end within its {len(data)} bytes")

    def block(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of each entry of a block."""
        data = self.unpacked(start, stop)
        count = int.from_bytes(data[-4:], "little")
        end = len(data) - 4 * (count + 1)
        if len(data) < 4 or end < 0:
            raise self.damaged(start, f"a block of {len(data)} bytes says that it has {count} restarts")
        at, key = 0, b""
        while at < end:
            shared, at = self.varint(data, at, start)
            own, at = self.varint(data, at, start)
            nbytes, at = self.varint(data, at, start)
            if shared > len(key) or at + own + nbytes > end:
                raise self.damaged(
                    start,
                    f"an entry takes {shared} bytes of a key of {len(key)}, and has {own} and {nbytes} bytes, where "
                    f"{max(end - at, 0)} are left",
                )
            key = key[:shared] + data[at : at + own]
            self.keys -= len(key)
            if self.keys < 0:
                raise UnsafeError(
                    f"{self.where}: byte {start}: its keys are {MAX_KEY_GROWTH} times as long as the file"
                )
            at += own + nbytes
            yield key, data[at - nbytes : at]

    def unpacked(self, start: int, stop: int) -> bytes:
        """The content of a block."""
        data = read_bytes(self.file, start, stop - start + TRAILER_NBYTES)
        content, kind, crc = data[:-5], data[-5], int.from_bytes(data[-4:], "little")
        self.unchecked -= len(data)
        if self.unchecked >= 0 and masked(crc32c(data[:-4])) != crc:
            raise self.damaged(start, f"the CRC-32C of the block is not {crc:#010x}, as its end says")
        if kind == NONE:
            return content
        if kind != SNAPPY:
            raise self.damaged(stop, f"the block has the compression {kind}; expected 0, or 1 for snappy")
        try:
            return decoded(content)
        except ValueError as error:
            raise self.damaged(start, f"a block that snappy compressed {error}") from None


# --- Snappy's raw format, in which a table may compress its blocks ---------------------------------------------------
#
#     varint          the number of bytes after decoding
#     elements        by the lowest two bits of their first byte, the tag
#       0  literal    the upper six bits are the length less 1; 60 to 63 mean that it is in the next 1 to 4 bytes
#       1  copy       length 4 to 11 (three bits), offset of 11 bits: the upper three of the tag, and the next byte
#       2  copy       length 1 to 64 (six bits), an offset of two bytes
#       3  copy       length 1 to 64 (six bits), an offset of four bytes
#
# A copy repeats what was decoded `offset` bytes earlier, and may overlap what it makes.
#
# Source: format_description.txt of google/snappy.


MAX_GROWTH = 32
"""The most bytes that one byte of such data can make: a copy of 64 bytes takes at least two, or three."""


def decoded(data: bytes) -> bytes:
    """What some bytes decode to; ValueError if they are damaged.  Never larger than they say at their start.

    >>> decoded(bytes([11, 0, ord("a"), 0b00010101, 1, 0, ord("b")]))
    b'aaaaaaaaaab'
    """
    nbytes, at = _varint(data)
    if nbytes > MAX_GROWTH * len(data):
        raise ValueError(f"says that {len(data)} bytes decode to {nbytes}, which is impossible")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        kind, upper, at = tag & 3, tag >> 2, at + 1
        more = (max(0, upper - 59), 1, 2, 4)[kind]
        number = int.from_bytes(data[at : at + more], "little")
        at += more
        if at > len(data):
            raise ValueError("ends within an element")
        if kind == 0:
            length = (number if more else upper) + 1
            if length > len(data) - at:
                raise ValueError(f"has a literal of {length} bytes, and {len(data) - at} are left")
            out += data[at : at + length]
            at += length
        else:
            length = (upper & 7) + 4 if kind == 1 else upper + 1
            _copy(out, (upper >> 3) << 8 | number if kind == 1 else number, length)
        if len(out) > nbytes:
            raise ValueError(f"decodes to more than the {nbytes} bytes that it says")
    if len(out) != nbytes:
        raise ValueError(f"decodes to {len(out)} bytes, and says {nbytes}")
    return bytes(out)


def _copy(out: bytearray, offset: int, length: int) -> None:
    """Repeat bytes that were decoded before."""
    if not 0 < offset <= len(out):
        raise ValueError(f"has a copy from {offset} bytes before byte {len(out)}")
    start = len(out) - offset
    piece = out[start : start + length]
    out += (piece * (length // len(piece) + 1))[:length]


def _varint(data: bytes) -> tuple[int, int]:
    value = 0
    for k, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value, k + 1
    raise ValueError("does not begin with its length")
