"""Mutations that know no structure: bytes, whole numbers at any place, ranges."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

NUMBERS = (
    0, 1, 2, 3, 4, 7, 8, 16, 63, 64, 65, 127, 128, 255, 256, 1000, 4096, 65535, 65536, 2**24, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**33, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -2, -8, -(2**31), -(2**63),
)  # fmt: skip
"""Whole numbers that programs get wrong."""


def number(random: Random, near: int = 0) -> int:
    """A number that programs get wrong, or one beside a number that stood there."""
    if random.random() < 0.4:
        return near + random.choice((-8, -4, -2, -1, 1, 2, 4, 8))
    if random.random() < 0.2:
        return near * random.choice((2, 3, -1, 1 << 32)) or random.randrange(64)
    return random.choice(NUMBERS)


def place(data: bytes, random: Random, room: int = 1) -> int:
    """Where something of `room` bytes can stand; the first and last bytes of a file say most."""
    last = max(0, len(data) - room)
    match random.randrange(4):
        case 0:
            return min(last, random.randrange(64))
        case 1:
            return max(0, last - random.randrange(64))
    return random.randint(0, last)


def flip(data: bytes, random: Random) -> bytes:
    """One bit, or one byte."""
    if not data:
        return b"\0"
    at, made = place(data, random), bytearray(data)
    made[at] ^= 1 << random.randrange(8) if random.random() < 0.5 else random.randrange(1, 256)
    return bytes(made)


def integer(data: bytes, random: Random) -> bytes:
    """A whole number of 1 to 8 bytes, in either order, replaced."""
    room = random.choice((1, 2, 4, 4, 8, 8))
    at = place(data, random, room)
    order = "little" if random.random() < 0.8 else "big"
    value = number(random, int.from_bytes(data[at : at + room], order))  # type: ignore[arg-type]
    return data[:at] + (value % (1 << (8 * room))).to_bytes(room, order) + data[at + room :]  # type: ignore[arg-type]


def delete(data: bytes, random: Random) -> bytes:
    """A range less."""
    at = place(data, random)
    return data[:at] + data[at + _length(random) :]


def insert(data: bytes, random: Random) -> bytes:
    """Bytes more: zeros, or any."""
    at, room = place(data, random), _length(random)
    return data[:at] + (bytes(room) if random.random() < 0.5 else random.randbytes(room)) + data[at:]


def copy(data: bytes, random: Random) -> bytes:
    """A range of the file over another place, or before it."""
    room = _length(random)
    start, at = place(data, random, room), place(data, random)
    stop = at if random.random() < 0.5 else at + room
    return data[:at] + data[start : start + room] + data[stop:]


def truncate(data: bytes, random: Random) -> bytes:
    """An end too early."""
    return data[: place(data, random)]


def append(data: bytes, random: Random) -> bytes:
    """Bytes behind the end, or the file a second time."""
    return data + (data if random.random() < 0.2 else random.randbytes(_length(random)))


def _length(random: Random) -> int:
    return random.choice((1, 1, 2, 4, 8, 8, 16, 64, random.randint(1, 512)))


ALL: tuple[Callable[[bytes, Random], bytes], ...] = (
    flip, flip, flip, integer, integer, integer, delete, insert, copy, truncate, append,
)  # fmt: skip


def mutate(data: bytes, random: Random) -> bytes:
    """One of them."""
    return random.choice(ALL)(data, random)
