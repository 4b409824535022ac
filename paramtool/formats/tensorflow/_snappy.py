"""Snappy's raw format, in which a table may compress its blocks.

    varint          the number of bytes after decoding
    elements        by the lowest two bits of their first byte, the tag
      0  literal    the upper six bits are the length less 1; 60 to 63 mean that it is in the next 1 to 4 bytes
      1  copy       length 4 to 11 (three bits), offset of 11 bits: the upper three of the tag, and the next byte
      2  copy       length 1 to 64 (six bits), an offset of two bytes
      3  copy       length 1 to 64 (six bits), an offset of four bytes

A copy repeats what was decoded `offset` bytes earlier, and may overlap what it makes.

Source: format_description.txt of google/snappy.
"""

from __future__ import annotations

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
