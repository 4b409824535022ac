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
from collections.abc import Mapping
from typing import NamedTuple

from paramtool.errors import FormatError, plural
from paramtool.formats.files import open_source
from paramtool.formats.protobuf import Fields, Message, Reader, Span
from paramtool.formats.tensorflow import _proto, _table, names
from paramtool.lazy_dataclass import dataclass
from paramtool.model.storage import SourceFile
from paramtool.model.view import MAX_AXES

VERSION = 1
"""The version of bundles that is read: kTensorBundleVersion."""
MAX_SHARDS = 100_000
Extent = tuple[int, int]
"""The start of a slice along an axis, and its length; -1 for all of it."""


class BundleRow(NamedTuple):
    """What the index says of a tensor."""

    dtype: int
    shape: tuple[int, ...]
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


@dataclass(frozen=True, slots=True)
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
        for key, value, at in _table.items(file, path, source.nbytes):
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
    header = _message(reader, _proto.HEADER)
    count, order = reader.number(header, "num_shards"), reader.number(header, "endianness")
    version = reader.message(header["version"][0], _proto.VERSION) if "version" in header else {}
    needed = reader.number(version, "min_consumer")
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


def _message(reader: Reader, fields: Fields) -> Message:
    return reader.message(Span(0, len(reader.data)), fields)


def _row(reader: Reader, at: int) -> BundleRow:
    entry = _message(reader, _proto.ENTRY)
    shape: list[int] = []
    if "shape" in entry:
        message = reader.message(entry["shape"][0], _proto.SHAPE)
        if reader.number(message, "unknown_rank"):
            raise FormatError(f"{reader.where}: its shape is unknown; expected a shape")
        shape = [reader.number(reader.message(dim, _proto.DIM), "size") for dim in message.get("dim", ())]
    if len(shape) > MAX_AXES or min(shape, default=0) < 0:
        raise FormatError(f"{reader.where}: its shape is {shape[:20]}; expected up to {MAX_AXES} sizes from 0 on")
    shard, start, nbytes = (reader.number(entry, name) for name in ("shard_id", "offset", "size"))
    if min(shard, start, nbytes) < 0:
        raise FormatError(f"{reader.where}: is in file {shard}, byte {start}, {nbytes} bytes; expected no negative one")
    crc = int.from_bytes(reader.content(entry["crc32c"][0]), "little") if "crc32c" in entry else 0
    slices = tuple(_extents(reader, span) for span in entry.get("slices", ()))
    if wrong := [one for one in slices if len(one) != len(shape)]:
        found = plural(len(wrong[0]), "axis", "axes")
        raise FormatError(f"{reader.where}: a slice has {found}; expected {len(shape)}, as the tensor has")
    return BundleRow(reader.number(entry, "dtype"), tuple(shape), shard, start, nbytes, crc, slices, at)


def _extents(reader: Reader, span: Span) -> tuple[Extent, ...]:
    """A slice, axis by axis."""
    found = []
    for place in reader.message(span, _proto.SLICE).get("extent", ()):
        extent = reader.message(place, _proto.EXTENT)
        found.append((reader.number(extent, "start"), reader.number(extent, "length", -1)))
    return tuple(found)


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
