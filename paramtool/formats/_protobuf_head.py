"""The fields of a protobuf message of which only the first bytes are known."""

from __future__ import annotations

from typing import NamedTuple

from paramtool.formats.protobuf import MAX_VARINT_NBYTES, varint

MAX_FIELDS = 1000
MAX_NUMBER = 10_000
"""The largest number of a field that is taken for one: those of the formats that are recognised go to 600."""


class HeadField(NamedTuple):
    """A field; `data` is what the first bytes have of its content."""

    number: int
    wire: int
    value: int
    """Of a number; of anything else its length."""
    data: bytes
    stop: int
    """Where it ends, by its own word."""

    @property
    def is_message(self) -> bool:
        """Whether it has a length and content."""
        return self.wire == 2 and len(self.data) > 0

    @property
    def is_text(self) -> bool:
        """Whether it is printable ASCII, all of which is known."""
        is_whole = self.wire == 2 and len(self.data) == self.value > 0
        return is_whole and self.data.isascii() and self.data.decode().isprintable()


def fields(data: bytes) -> list[HeadField]:
    """The fields of a message up to where `data` ends; none if it does not begin like a message."""
    found: list[HeadField] = []
    at = 0
    while at < len(data) and len(found) < MAX_FIELDS:
        key, taken = varint(data[at : at + MAX_VARINT_NBYTES])
        if not taken:
            return found
        number, wire, at = key >> 3, key & 7, at + taken
        if not 0 < number <= MAX_NUMBER or wire not in (0, 1, 2, 5):
            return []
        if wire in (1, 5):
            size = 8 if wire == 1 else 4
            found.append(HeadField(number, wire, size, data[at : at + size], at + size))
            at += size
            continue
        value, taken = varint(data[at : at + MAX_VARINT_NBYTES])
        if not taken:
            return found
        at += taken
        stop = at + value if wire == 2 else at
        found.append(HeadField(number, wire, value, data[at:stop], stop))
        at = stop
    return found
