"""Mutations of MXNet's `.params`: every field by its place (tests/contracts/makers_arrays.py writes the same form)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from struct import unpack_from

from tests.fuzz.mutators import raw

V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
SIZES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8, 7: 1, 8: 2, 9: 2, 10: 4, 11: 8, 12: 2}
Field = tuple[int, int]
"""Where it begins, and how many bytes it has."""


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a file that is sound, tensors' own bytes left out."""
    yield from ((0, 8), (8, 8), (16, 8))
    (count,) = unpack_from("<Q", data, 16)
    at = 24
    for _ in range(min(count, 1000)):
        at = yield from _array(data, at)
    yield at, 8
    (count,) = unpack_from("<Q", data, at)
    at += 8
    for _ in range(min(count, 1000)):
        yield at, 8
        (length,) = unpack_from("<Q", data, at)
        yield at + 8, length
        at += 8 + length


def _shape(data: bytes, at: int, wide: bool = True) -> Iterator[Field]:
    (axes,) = unpack_from("<i", data, at)
    yield at, 4
    size = 8 if wide else 4
    for k in range(min(axes, 64)):
        yield at + 4 + size * k, size


def _array(data: bytes, at: int):  # type: ignore[no-untyped-def]
    """The fields of one array; returns where the next one begins."""
    (mark,) = unpack_from("<I", data, at)
    kind = 0
    if mark in (V1, V2, V3):
        yield at, 4
        at += 4
    if mark in (V2, V3):
        (kind,) = unpack_from("<i", data, at)
        yield at, 4
        at += 4
    auxiliary = {1: 1, 2: 2}.get(kind, 0)
    shapes = []
    for _ in range(2 if auxiliary else 1):
        part = list(_shape(data, at, mark in (V1, V2, V3)))
        yield from part
        shapes.append([int.from_bytes(data[a : a + n], "little") for a, n in part[1:]])
        at = sum(part[-1])
    if not shapes[0] and mark != V3:
        return at
    yield from ((at, 4), (at + 4, 4), (at + 8, 4))
    (flag,) = unpack_from("<i", data, at + 8)
    at += 12
    sizes = [_nbytes(shapes[0], flag)]
    for _ in range(auxiliary):
        (flag,) = unpack_from("<i", data, at)
        yield at, 4
        part = list(_shape(data, at + 4))
        yield from part
        at = sum(part[-1])
        sizes.append(_nbytes([int.from_bytes(data[a : a + n], "little") for a, n in part[1:]], flag))
    return at + sum(sizes)


def _nbytes(shape: list[int], flag: int) -> int:
    nbytes = SIZES[flag]
    for size in shape:
        nbytes *= size
    return nbytes


def mutate(data: bytes, random: Random) -> bytes:
    """Another value of one field or two, or a field less, or twice."""
    for _ in range(random.choice((1, 1, 2))):
        at, room = random.choice(list(fields(data)))
        match random.randrange(8):
            case 0:
                data = data[:at] + data[at + room :]
            case 1:
                data = data[:at] + data[at : at + room] + data[at:]
            case 2:
                other, width = random.choice(list(fields(data)))
                data = data[:at] + data[other : other + width] + data[at + room :]
            case _:
                value = raw.number(random, int.from_bytes(data[at : at + room], "little"))
                data = data[:at] + (value % (1 << (8 * room))).to_bytes(room, "little") + data[at + room :]
    return data
