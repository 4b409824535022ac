"""Protobuf messages as segments: literal bytes, and tensors that are copied when the file is written.

A message needs its length before its content, and a tensor knows its length, so no content is needed here.

Source: protobuf.dev, "Encoding"; the wire types are those of `_protobuf`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from paramtool.formats.output import Segment
from paramtool.formats.protobuf import BYTES, FIXED32, VARINT


def varint(value: int) -> bytes:
    """A number as a varint; a negative one as the 64 bits of an int64.

    >>> varint(1), varint(300), len(varint(-1))
    (b'\\x01', b'\\xac\\x02', 10)
    """
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def tag(number: int, wire: int) -> bytes:
    """The bytes before the content of a field."""
    return varint(number << 3 | wire)


def whole(number: int, value: int) -> bytes:
    """A field that is an integer."""
    return tag(number, VARINT) + varint(value)


def real(number: int, value: float) -> bytes:
    """A field that is a float32."""
    return tag(number, FIXED32) + struct.pack("<f", value)


def text(number: int, value: str) -> bytes:
    """A field that is a string."""
    return message(number, value.encode())


def message(number: int, *parts: bytes) -> bytes:
    """A field that is a message of these fields, or bytes."""
    return b"".join((opening(number, sum(map(len, parts))), *parts))


def opening(number: int, nbytes: int) -> bytes:
    """The bytes before the content of a field of `nbytes` bytes."""
    return tag(number, BYTES) + varint(nbytes)


def nested(number: int, parts: Iterable[Segment]) -> tuple[Segment, ...]:
    """A field that is a message with tensors in it."""
    inside = tuple(parts)
    return (opening(number, length(inside)), *inside)


def length(parts: Sequence[Segment]) -> int:
    """How many bytes segments have."""
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)


def joined(parts: Iterable[Segment]) -> tuple[Segment, ...]:
    """The segments with literal bytes that follow each other as one."""
    found: list[Segment] = []
    literal: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            literal.append(part)
            continue
        if literal:
            found.append(b"".join(literal))
            literal.clear()
        if part.nbytes:
            found.append(part)
    if literal:
        found.append(b"".join(literal))
    return tuple(found)
