"""Mutations of flax's msgpack: a value of the tree, or of an array's own header, changed, moved, repeated or lost."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgpack

from tests.fuzz.mutators import json_text, raw

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64 - 1, 0.5, float("nan"), "", b"", b"1234", [], {}, [{}], {"0": {}}, {1: 2},
    msgpack.ExtType(1, b""), msgpack.ExtType(2, b"\x92\0\0"), msgpack.ExtType(3, b"\x93\x90\xa1b\xc4\0"),
    msgpack.ExtType(9, b"x"), msgpack.Timestamp(1), "float32", "bfloat16", "V2", "O",
    "<f4", "__msgpack_chunked_array__",
)  # fmt: skip


def mutate(data: bytes, random: Random) -> bytes:
    """One or two changes of a file that the msgpack library can read."""
    top = _open(msgpack.unpackb(data, strict_map_key=False, object_pairs_hook=json_text.Pairs, raw=False))
    holder = [top]
    for _ in range(random.choice((1, 1, 2))):
        _change(holder, random)
    return _packed(holder[0])


class Extension(list[Any]):
    """A value of a type of its own: the type, and what its bytes hold."""


def _open(value: Any) -> Any:
    """A tree in which the contents of arrays' headers are values, too."""
    if isinstance(value, msgpack.ExtType):
        try:
            return Extension([value.code, *msgpack.unpackb(value.data, raw=True)])
        except Exception:  # whatever it is: bytes
            return value
    if isinstance(value, json_text.Pairs):
        return json_text.Pairs([[key, _open(held)] for key, held in value])
    return [_open(held) for held in value] if isinstance(value, list) else value


def _packed(value: Any) -> bytes:
    """The bytes of a tree; a key may stand twice."""
    packer = msgpack.Packer(autoreset=False, unicode_errors="surrogatepass")
    if isinstance(value, json_text.Pairs):
        packer.pack_map_header(len(value))
        return bytes(packer.bytes()) + b"".join(_packed(one) for pair in value for one in pair)
    if isinstance(value, Extension):
        inside = list(value[1:])
        return bytes(msgpack.packb(msgpack.ExtType(_code(value), _packed(inside))))
    if isinstance(value, (list, tuple)):
        packer.pack_array_header(len(value))
        return bytes(packer.bytes()) + b"".join(map(_packed, value))
    packer.pack(value)
    return bytes(packer.bytes())


def _code(value: Extension) -> int:
    return value[0] if isinstance(value[0], int) and 0 <= value[0] < 128 else 5


def _slots(value: Any) -> Iterator[tuple[Any, int]]:
    """(list or pair, index) of every value, and of every key."""
    for k, held in enumerate(value):
        yield value, k
        if isinstance(held, list):
            yield from _slots(held)


def _change(holder: list[Any], random: Random) -> None:
    slots = list(_slots(holder))
    held, at = random.choice(slots)
    other, place = random.choice(slots)
    match random.randrange(8):
        case 0:
            held[at] = random.choice(VALUES)
        case 1 if isinstance(held[at], list) and held[at]:
            del held[at][random.randrange(len(held[at]))]
        case 2 if isinstance(held[at], list) and held[at]:
            held[at].insert(0, random.choice(held[at]))
        case 3 if not isinstance(other[place], list):
            held[at] = other[place]
        case 4 if isinstance(held[at], list):
            random.shuffle(held[at])
        case _:
            _revalue(held, at, random)


def _revalue(held: Any, at: int, random: Random) -> None:
    """Another number, text or bytes, near to what stands there."""
    value = held[at]
    if isinstance(value, int):
        held[at] = max(-(2**63), min(raw.number(random, value), 2**64 - 1))
    elif isinstance(value, bytes):
        held[at] = raw.mutate(value, random)
    elif isinstance(value, str):
        held[at] = json_text.text(random, value)
    else:
        held[at] = random.choice(VALUES)
