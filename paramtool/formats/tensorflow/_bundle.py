"""The rows of a bundle's index: which tensor is where in which file of data.

    ""       the header: the number of files of data, their byte order, a version
    name     dtype, shape, file, start, bytes, CRC-32C; or, for a tensor that was saved in slices, the slices, each of
             which has a row of its own, whose key is the name and the slice in an order-preserving code

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, saved_tensor_slice_util.cc (EncodeTensorNameSlice), and
tensorflow/core/lib/strings/ordered_code.cc.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import BinaryIO, NamedTuple

from paramtool.errors import FormatError, UnsafeError, plural
from paramtool.formats.files import open_source, read_bytes
from paramtool.formats.protobuf import Message, Reader, varint
from paramtool.formats.tensorflow import _proto, names
from paramtool.lazy_dataclass import frozen
from paramtool.model.storage import SourceFile
from paramtool.model.view import MAX_AXES, Shape

VERSION = 1
"""The version of bundles that is read: kTensorBundleVersion."""
MAX_SHARDS = 100_000
Extent = tuple[int, int]
"""The start of a slice along an axis, and its length; -1 for all of it."""


class BundleRow(NamedTuple):
    """What the index says of a tensor."""

    dtype: int
    shape: Shape
    shard: int
    start: int
    nbytes: int
    crc32c: int
    slices: tuple[tuple[Extent, ...], ...]
    at: int
    """The byte of the block that has it, for errors."""

    @property
    def stop(self) -> int:
        """The end of its bytes in its file."""
        return self.start + self.nbytes


@frozen
class Bundle:
    """The index of a bundle, and its files of data as far as a tensor is in them."""

    where: str
    """The path of the index."""
    is_big: bool
    rows: Mapping[str, BundleRow]
    """{name: row}, in the order of the names; without slices."""
    slices: Mapping[bytes, BundleRow]
    """{key: row} of slices."""
    files: tuple[SourceFile, ...]
    """The index and the files of data."""
    paths: Mapping[int, str]
    """{number of a file of data: path}."""


def read(path: str) -> Bundle:
    """Read an index; FormatError if it is damaged, or a file of data is missing or too short."""
    file, source = open_source(path)
    rows: dict[str, BundleRow] = {}
    slices: dict[bytes, BundleRow] = {}
    header = None
    with file:
        for key, value, at in table_items(file, path, source.nbytes):
            reader = Reader(value, f"{path}: byte {at}: the row of {_shown(key)}", "the index of a bundle")
            if header is None:
                if key:
                    raise FormatError(f"{path}: byte {at}: begins with {_shown(key)}; expected the header of a bundle")
                header = _header(reader)
            elif key[:1] == b"\0":
                slices[key] = _row(reader, at)
            else:
                try:
                    rows[key.decode()] = _row(reader, at)
                except UnicodeDecodeError:
                    raise FormatError(f"{path}: byte {at}: the name {_shown(key)} is not UTF-8") from None
    if header is None:
        raise FormatError(f"{path}: is an empty table; expected the index of a bundle")
    count, is_big = header
    files, paths = _files(path, count, [*rows.items(), *((_shown(key), row) for key, row in slices.items())])
    return Bundle(path, is_big, rows, slices, (source, *files), paths)


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))[:200]


def _header(reader: Reader) -> tuple[int, bool]:
    """The number of files of data, and whether numbers are big-endian."""
    header = reader.whole(_proto.HEADER)
    count, order = reader.number(header, "num_shards"), reader.number(header, "endianness")
    needed = reader.number(reader.inner(header, "version", _proto.VERSION), "min_consumer")
    if not 0 < count <= MAX_SHARDS:
        raise FormatError(f"{reader.where}: num_shards is {count}; expected 1 to {MAX_SHARDS}")
    if order not in (0, 1):
        raise FormatError(f"{reader.where}: endianness is {order}; expected 0 for little or 1 for big")
    if needed > VERSION:
        raise FormatError(
            f"{reader.where}: needs a reader of version {needed}; this one reads version {VERSION}",
            hint="save it again with an older TensorFlow",
        )
    return count, order == 1


def _row(reader: Reader, at: int) -> BundleRow:
    entry = reader.whole(_proto.ENTRY)
    message = reader.inner(entry, "shape", _proto.SHAPE)
    if reader.number(message, "unknown_rank"):
        raise FormatError(f"{reader.where}: its shape is unknown; expected a shape")
    shape = [reader.number(dim, "size") for dim in reader.messages(message, "dim", _proto.DIM)]
    if len(shape) > MAX_AXES or min(shape, default=0) < 0:
        raise FormatError(f"{reader.where}: its shape is {shape[:20]}; expected up to {MAX_AXES} sizes from 0 on")
    shard, start, nbytes = (reader.number(entry, name) for name in ("shard_id", "offset", "size"))
    if min(shard, start, nbytes) < 0:
        raise FormatError(f"{reader.where}: is in file {shard}, byte {start}, {nbytes} bytes; expected no negative one")
    crc = int.from_bytes(reader.content(entry["crc32c"][0]), "little") if "crc32c" in entry else 0
    slices = tuple(_extents(reader, one) for one in reader.messages(entry, "slices", _proto.SLICE))
    if wrong := [one for one in slices if len(one) != len(shape)]:
        found = plural(wrong[0], "axis", "axes")
        raise FormatError(f"{reader.where}: a slice has {found}; expected {len(shape)}, as the tensor has")
    return BundleRow(reader.number(entry, "dtype"), tuple(shape), shard, start, nbytes, crc, slices, at)


def _extents(reader: Reader, one: Message) -> tuple[Extent, ...]:
    """A slice, axis by axis."""
    extents = reader.messages(one, "extent", _proto.EXTENT)
    return tuple((reader.number(extent, "start"), reader.number(extent, "length", -1)) for extent in extents)


def _files(path: str, count: int, rows: list[tuple[str, BundleRow]]) -> tuple[list[SourceFile], dict[int, str]]:
    """The files of data that rows name; FormatError if one is missing, or ends before a tensor does."""
    prefix = path.removesuffix(names.INDEX)
    found: dict[int, SourceFile] = {}
    for name, row in rows:
        if row.slices:
            continue
        if row.shard >= count:
            raise FormatError(f"{path}: byte {row.at}: {name!r:.200} is in file {row.shard} of {count}")
        if row.shard not in found:
            found[row.shard] = _file(path, names.shard(prefix, row.shard, count), name)
        if row.stop > found[row.shard].nbytes:
            raise FormatError(
                f"{path}: byte {row.at}: {name!r:.200} ends at byte {row.stop} of {found[row.shard].path}, which has "
                f"{found[row.shard].nbytes} bytes",
                hint="one of the two files is damaged, or they belong to different checkpoints",
            )
    ordered = sorted(found)
    return [found[k] for k in ordered], {k: found[k].path for k in ordered}


def _file(path: str, data: str, name: str) -> SourceFile:
    if not os.path.exists(data):
        raise FormatError(
            f"{path}: {data} is missing, which holds {name!r:.200}",
            hint="a bundle is its index and all files of data; put them into one folder under their own names",
        )
    file, source = open_source(data)
    file.close()
    return source


# --- keys of slices ---------------------------------------------------------------------------------------------------


def slice_key(name: str, extents: tuple[Extent, ...]) -> bytes:
    """The key of the row of a slice.

    >>> slice_key("v", ((0, 3), (0, -1)))
    b'\\x00v\\x00\\x01\\x01\\x02\\x80\\x83\\x80\\x7f'
    """
    text = re.sub(rb"[\0\xff]", lambda found: b"\0\xff" if found[0] == b"\0" else b"\xff\0", name.encode())
    count = len(extents)
    numbers = b"".join(_signed(number) for extent in extents for number in extent)
    return b"\0" + text + b"\0\1" + (bytes([1, count]) if count else b"\0") + numbers


def _signed(value: int) -> bytes:
    """A signed number in a code whose order is that of the numbers: its first ones count bytes."""
    nbytes = (value if value >= 0 else ~value).bit_length() // 7 + 1
    head = ((1 << nbytes) - 1) << (16 - nbytes)  # as two bytes
    whole = bytearray((value & ((1 << 80) - 1)).to_bytes(10, "big")[-nbytes:])
    whole[0] ^= head >> 8
    if nbytes > 1:
        whole[1] ^= head & 0xFF
    return bytes(whole)


# --- The table in which a bundle keeps its index: LevelDB's, keys in order with a value each -------------------------
#
#     data blocks, ...             each with a trailer: one byte 0, or 1 for snappy; the masked CRC-32C of block and
#       byte
#     an index block               {a key not before a block's last: that block}
#     footer, the last 48 bytes    the places of a metaindex block and of the index block; zeros; the magic number
#
#     block      entries; the positions of those with a whole key, u32 each; their count, u32
#     entry      varints: bytes shared with the key before, bytes of the key that are not, bytes of the value; then
#       both
#     place      varints: start, and bytes without the trailer
#
# Source: tensorflow/tsl/lib/io/format.{h,cc}, block.cc, table.cc; doc/table_format.md of google/leveldb.


FOOTER_NBYTES = 48
MAGIC = bytes.fromhex("57fb808b247547db")
TRAILER_NBYTES = 5
NONE, SNAPPY = 0, 1
MAX_TABLE_NBYTES = 256 << 20
MAX_CHECKED_NBYTES = 16 << 20
"""The CRCs of blocks are checked until this many bytes of a table are done, since that is slow in Python."""
MAX_KEY_GROWTH = 64
"""The most bytes of keys for one byte of a table: prefixes that keys share can make long keys of few bytes."""


def table_items(file: BinaryIO, where: str, nbytes: int) -> Iterator[tuple[bytes, bytes, int]]:
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
                shown = f"{_shown(key):.120} is behind {_shown(before):.120}"
                raise table.damaged(first, f"the key {shown}; expected keys in order")
            before = key
            yield key, content, first


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
        value, nbytes = varint(data[at : at + 10])
        if not nbytes:
            raise self.damaged(near, f"a number at {at} does not end within its {len(data)} bytes")
        return value, at + nbytes

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
    nbytes, at = varint(data[:5])
    if not at:
        raise ValueError("does not begin with its length")
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


# --- CRC-32C, with which tables and bundles are checked ---------------------------------------------------------------
#
# Python has no such function, and this one takes a tenth of a second for a megabyte: it is for headers, not tensors.
#
# Source: RFC 3720, appendix B.4, for the polynomial; tensorflow/core/lib/hash/crc32c.h for the mask, which keeps a CRC
# of bytes that hold a CRC from being a constant.


POLYNOMIAL = 0x82F63B78


@cache
def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(found)


def crc32c(data: bytes, crc: int = 0) -> int:
    """The CRC of some bytes, or of what `crc` is the CRC of and these bytes behind it.

    >>> hex(crc32c(b"123456789")), crc32c(b"456789", crc32c(b"123")) == crc32c(b"123456789")
    ('0xe3069283', True)
    """
    table = _table()
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A CRC as files hold it.

    >>> hex(masked(0))
    '0xa282ead8'
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
