"""The protobuf wire format, read in place: a message is the positions of its fields, and nothing is copied.

    message   any number of consecutive fields
    field     a tag, which is a varint of (number << 3 | wire type), and then by wire type
                0  a varint        seven bits a byte, lowest first; the top bit says that another byte follows
                1  eight bytes
                2  a length and that many bytes: text, bytes, a message, or numbers without tags ("packed")
                5  four bytes

The caller passes a table of the fields of a message; other fields are skipped.  This reader is stricter than protobuf's
own, which merge duplicates: a field that is not repeated may appear only once.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from paramtool.errors import FormatError, UnsafeError
from paramtool.lazy_dataclass import frozen

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types.  3 and 4 are groups, which no current writer makes."""
MAX_VARINT_NBYTES = 10
MAX_REPEATED = 2_000_000
"""The most fields of one name in one message; a packed field counts as one."""


class Span(NamedTuple):
    """The position of a field's content: bytes `start` to `stop` of the file, without tag and length."""

    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The length of the content."""
        return self.stop - self.start


class Field(NamedTuple):
    """A field that a message can have."""

    name: str
    wire: int
    many: bool = False
    """Whether it may appear more than once; numbers may then also be packed."""


Fields = Mapping[int, Field]


def one(wire: int, **numbers: int) -> dict[int, Field]:
    """Fields of one wire type that are not repeated, by their names."""
    return {number: Field(name, wire) for name, number in numbers.items()}


def many(wire: int, **numbers: int) -> dict[int, Field]:
    """Fields of one wire type that may be repeated, by their names."""
    return {number: Field(name, wire, many=True) for name, number in numbers.items()}


Message = Mapping[str, Sequence[Span]]
"""{name: places}, for the fields that are there."""


@frozen
class Reader:
    """Bytes that hold messages, and their name for errors."""

    data: Buffer
    where: str
    what: str = "an ONNX model"
    """What the bytes should be, for hints."""

    def whole(self, fields: Fields) -> Message:
        """The message that all of the bytes are."""
        return self.message(Span(0, len(self.data)), fields)

    def messages(self, message: Message, name: str, fields: Fields) -> Iterator[Message]:
        """The messages that a field of a message holds."""
        return (self.message(span, fields) for span in message.get(name, ()))

    def inner(self, message: Message, name: str, fields: Fields) -> Message:
        """The message that a field holds, which is not repeated; without fields if it is missing."""
        return next(self.messages(message, name, fields), {})

    def message(self, span: Span, fields: Fields) -> Message:
        """The positions of a message's fields; FormatError if it is damaged."""
        found: dict[str, list[Span]] = {}
        for number, wire, content in self.fields(span):
            field = fields.get(number)
            if field is None:
                continue
            if wire != field.wire and not (field.many and wire == BYTES):
                raise self.damaged(content.start, f"{field.name} has wire type {wire}; expected {field.wire}")
            places = found.setdefault(field.name, [])
            places.append(content)
            if len(places) > 1 and not field.many:
                raise self.damaged(content.start, f"{field.name} appears twice in one message; expected it once")
            if len(places) > MAX_REPEATED:
                raise UnsafeError(f"{self.where}: {field.name} appears more than {MAX_REPEATED:,} times in one message")
        return found

    def fields(self, span: Span) -> Iterator[tuple[int, int, Span]]:
        """(number, wire type, position) of every field of a message; the fields must fill it exactly."""
        at, stop = span
        while at < stop:
            tag_at = at
            tag, at = self._varint(at, stop)
            number, wire = tag >> 3, tag & 7
            start = at
            if wire == VARINT:
                _, at = self._varint(at, stop)
            elif wire == BYTES:
                nbytes, start = self._varint(at, stop)
                at = start + nbytes
            elif wire in (FIXED32, FIXED64):
                at += 4 if wire == FIXED32 else 8
            if not 0 < number < 1 << 29 or wire in (3, 4, 6, 7):
                raise self.damaged(tag_at, f"tag {tag} is field {number} of wire type {wire}; expected 0, 1, 2 or 5")
            if at > stop:
                ends = "the file has" if stop == len(self.data) else "its message ends at byte"
                more = " bytes; it is truncated" if stop == len(self.data) else ""
                raise self.damaged(tag_at, f"field {number} ends at byte {at}; {ends} {stop}{more}")
            yield number, wire, Span(start, at)

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        """An unsigned number, and the position after it."""
        value, nbytes = varint(self.data[at : min(stop, at + MAX_VARINT_NBYTES)])
        if not nbytes:
            raise self.damaged(at, f"a number does not end within {MAX_VARINT_NBYTES} bytes and before byte {stop}")
        if value >> 64:
            raise self.damaged(at, "a number needs more than 64 bits")
        return value, at + nbytes

    def varints(self, spans: Sequence[Span]) -> Iterator[int]:
        """The numbers of a repeated field, packed or not; unsigned."""
        for start, stop in spans:
            while start < stop:
                value, start = self._varint(start, stop)
                yield value

    def number(self, message: Message, name: str, default: int = 0) -> int:
        """A number that is not repeated, as int64."""
        spans = message.get(name)
        return signed(next(self.varints(spans))) if spans else default

    def real(self, message: Message, name: str) -> float:
        """A float32 that is not repeated; 0 if it is missing."""
        data = self.content(message[name][0]) if name in message else bytes(4)
        return float(struct.unpack("<f", data)[0])

    def content(self, span: Span) -> bytes:
        """The bytes of a field."""
        return bytes(self.data[span.start : span.stop])

    def text(self, message: Message, name: str) -> str:
        """A string that is not repeated; empty if it is missing."""
        return "".join(self.texts(message, name))

    def texts(self, message: Message, name: str) -> list[str]:
        """The strings of a field; FormatError if one is not UTF-8."""
        found = []
        for span in message.get(name, ()):
            try:
                found.append(self.content(span).decode())
            except UnicodeDecodeError:
                raise self.damaged(span.start, f"{name} is not UTF-8") from None
        return found

    def damaged(self, at: int, text: str) -> FormatError:
        """The error for the data at a byte."""
        return FormatError(f"{self.where}: byte {at}: {text}", hint=f"the file is damaged, or is not {self.what}")


def varint(data: bytes) -> tuple[int, int]:
    r"""The unsigned number at the start of some bytes, and how many it takes; 0 if it does not end among them.

    >>> varint(b"\xac\x02..."), varint(b"\xac")[1]
    ((300, 2), 0)
    """
    value = 0
    for k, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value, k + 1
    return value, 0


def signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number.

    >>> signed(5), signed(2**64 - 1)
    (5, -1)
    """
    return value - (1 << 64) if value >> 63 else value
