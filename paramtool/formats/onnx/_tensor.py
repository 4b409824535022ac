"""A TensorProto: its element type, its shape, and where its bytes are stored.

    raw_data                       a range of the file, little-endian
    float_data, double_data        the same if they are packed, as writers do; else collected from their tags
    int32_data, int64_data, ...    numbers of varying length, which have to be unpacked; only small ones are
    external data                  a range of another file in the model's folder

Source: onnx/onnx.proto, TensorProto; docs/ExternalData.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from paramtool.errors import FormatError, UnsafeError, plural
from paramtool.formats.files import open_source
from paramtool.formats.onnx.proto import ENTRY, EXTERNAL, PACKED, STRING, TENSOR, TYPED_FIELDS, TYPES
from paramtool.formats.protobuf import Message, Reader, Span, signed
from paramtool.model.checkpoint import Unreadable
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.paths import named_beside
from paramtool.model.storage import ByteRange, Inline, SourceFile
from paramtool.model.view import MAX_AXES, MAX_EXTENT

MAX_UNPACKED_NBYTES = 16 << 20
"""The most bytes of varints that are unpacked in one file; the result may be eight times as large."""


class OnnxTensor(NamedTuple):
    """A tensor whose bytes were found."""

    dtype: DType
    shape: tuple[int, ...]
    backing: ByteRange | Inline
    packed: str = ""
    """The real element type if its elements share bytes in a way that no view can express; `dtype` is uint8 then."""
    dense: tuple[int, ...] = ()
    """The real shape of a packed tensor."""


Found = OnnxTensor | Unreadable
Place = ByteRange | Inline | Unreadable
"""Where a tensor's bytes are, or why they cannot be read."""


@dataclass
class Tensors:
    """Reads the tensors of one model, and keeps its external files and how much was unpacked."""

    reader: Reader
    source: SourceFile
    files: dict[str, SourceFile] = field(default_factory=dict)
    """{path: file} for the files that hold external data."""
    unpacked_nbytes: int = 0

    def name(self, span: Span) -> str:
        """The name of the tensor at `span`."""
        return self.reader.text(self.reader.message(span, TENSOR), "name")

    def find(self, span: Span) -> Found:
        """The tensor at `span`.

        ValueError if it is inconsistent, FormatError if it is damaged, UnsafeError if it refers to a file outside the
        model's folder.
        """
        message = self.reader.message(span, TENSOR)
        code = self.reader.number(message, "data_type")
        shape = dims(self.reader, message)
        if code == STRING:
            return Unreadable("support for tensors of strings")
        if "segment" in message:
            return Unreadable("TensorProto.segment: a tensor in several pieces")
        dtype, stored_shape, packed = _form(code, shape)
        nbytes = dtype.nbytes(prod(stored_shape))
        backing = self._backing(message, code, nbytes, dtype.block_bytes, span=span)
        if isinstance(backing, Unreadable):
            return backing
        return OnnxTensor(dtype, stored_shape, backing, packed, shape if packed else ())

    def _backing(self, message: Message, code: int, nbytes: int, size: int, *, span: Span) -> Place:
        holders = [name for name in ("raw_data", "string_data", *TYPED_FIELDS) if name in message]
        external = self.reader.number(message, "data_location") == EXTERNAL
        if len(holders) + external > 1:
            places = " and ".join([*holders, *["another file"] * external])
            raise ValueError(f"its data is in {places}; expected one place")
        if external:
            return self._external(message.get("external_data", ()), nbytes)
        if not holders:
            if nbytes:
                raise ValueError(f"has no data; expected {nbytes} bytes")
            return ByteRange(self.source.path, span.stop, span.stop)
        spans = message[holders[0]]
        if holders[0] == "raw_data":
            return self._range(spans, nbytes, "raw_data")
        return self._typed(holders[0], spans, code, nbytes, size=size)

    def _range(self, spans: Sequence[Span], nbytes: int, name: str) -> Place:
        """Bytes that are stored as they are; joined if they are in several places."""
        found = sum(span.nbytes for span in spans)
        if found != nbytes:
            raise ValueError(f"{name} has {found} bytes; its type and shape ask for {nbytes}")
        if len(spans) == 1:
            return ByteRange(self.source.path, *spans[0])
        return self._unpack(found) or Inline(b"".join(self.reader.content(span) for span in spans))

    def _typed(self, name: str, spans: Sequence[Span], code: int, nbytes: int, *, size: int) -> Place:
        """Values in a typed field; `size` is the bytes of one number."""
        if code not in TYPED_FIELDS.get(name, ()):
            if code in (27, 28):
                return Unreadable("float6 values of int32_data, to be packed")
            raise ValueError(f"data of type {code} is in {name}, which cannot hold that type")
        if name in ("float_data", "double_data"):
            return self._range(spans, nbytes, name)
        if too_much := self._unpack(sum(span.nbytes for span in spans)):
            return too_much
        made = bytearray()
        for value in self.reader.varints(spans):
            if name != "uint64_data":
                value = signed(value)
            if not -(1 << 8 * size - 1) <= value < 1 << 8 * size:
                raise ValueError(f"{name} holds {value}, which {size} bytes cannot")
            made += (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        if len(made) != nbytes:
            raise ValueError(f"{name} has {plural(len(made) // size, 'value')}; its shape asks for {nbytes // size}")
        return Inline(bytes(made))

    def _unpack(self, nbytes: int) -> Unreadable | None:
        """Count what is about to be unpacked; returns the reason if that is too much."""
        self.unpacked_nbytes += nbytes
        if self.unpacked_nbytes <= MAX_UNPACKED_NBYTES:
            return None
        return Unreadable(f"unpacking more than {MAX_UNPACKED_NBYTES >> 20} MiB of numbers that have no raw_data")

    def _external(self, entries: Sequence[Span], nbytes: int) -> ByteRange:
        """The range of external data in a file in the model's folder."""
        facts: dict[str, str] = {}
        for span in entries:
            message = self.reader.message(span, ENTRY)
            key = self.reader.text(message, "key")
            if key in facts:
                raise ValueError(f"external_data has {key!r:.60} twice")
            facts[key] = self.reader.text(message, "value")
        if "location" not in facts:
            raise ValueError("its data is in another file, and external_data has no location")
        start, length = _whole(facts, "offset", 0), _whole(facts, "length", nbytes)
        if length != nbytes:
            raise ValueError(f"external_data has {length} bytes; its type and shape ask for {nbytes}")
        file = self._file(facts["location"])
        if start + nbytes > file.nbytes:
            raise ValueError(
                f"needs bytes {start}-{start + nbytes} of {file.path}, which has {file.nbytes}; it is truncated"
            )
        return ByteRange(file.path, start, start + nbytes)

    def _file(self, location: str) -> SourceFile:
        """The file that a location refers to, which must be in the model's folder."""
        path = os.path.join(os.path.dirname(self.source.path), named_beside(self.source.path, location, folders=True))
        if path == self.source.path:
            return self.source
        if path not in self.files:
            check_inside(self.source.path, path, location)
            try:
                file, self.files[path] = open_source(path)
            except FormatError as error:
                raise FormatError(
                    f"{self.source.path}: refers to tensor data in another file: {error.message}"
                ) from None
            file.close()
        return self.files[path]


def check_inside(model: str, path: str, location: str) -> None:
    """UnsafeError if symbolic links lead out of the model's folder.

    In a hub's cache the model and its data are links into one other folder.  If the model itself is in that folder, it
    is allowed too.  So whoever made the links decides what may be read, never the content of the file.
    """
    real = os.path.realpath(path)
    homes = (os.path.realpath(os.path.dirname(model) or "."), os.path.dirname(os.path.realpath(model)))
    if not any(os.path.commonpath([real, home]) == home for home in homes):
        raise UnsafeError(
            f"{model}: its tensor data {location!r:.200} is a symbolic link that leads out of the folder: {real}",
            hint="replace the link by a copy of the file",
        )


def _whole(facts: dict[str, str], key: str, default: int) -> int:
    text = facts.get(key, str(default))
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise ValueError(f"external_data has the {key} {text!r:.60}; expected a whole number")
    return int(text)


def dims(reader: Reader, message: Message) -> tuple[int, ...]:
    """The shape in a message; ValueError if it is invalid."""
    shape: list[int] = []
    for size in reader.varints(message.get("dims", ())):
        shape.append(signed(size))
        if shape[-1] < 0 or len(shape) > MAX_AXES:
            raise ValueError(f"dims {shape[-8:]} are invalid; expected at most {MAX_AXES} sizes, none below 0")
    if prod(size for size in shape if size) > MAX_EXTENT:
        raise ValueError(f"dims {shape[:8]} are too large for any machine, even for an empty tensor")
    return tuple(shape)


def _form(code: int, shape: tuple[int, ...]) -> tuple[DType, tuple[int, ...], str]:
    """(type, shape, real type) of the stored data: a row of bytes if elements share bytes as no view can express."""
    numel = prod(shape)
    if code in PACKED:
        name, per_byte = PACKED[code]
        return DTYPES["uint8"], (-(-numel // per_byte),), name
    if code not in TYPES:
        raise ValueError(f"has the data_type {code}, which onnx 1.23 does not have")
    dtype = DTYPES[TYPES[code]]
    if numel % dtype.block_elements:
        return DTYPES["uint8"], (-(-numel * dtype.block_bytes // dtype.block_elements),), dtype.name
    return dtype, shape, ""
