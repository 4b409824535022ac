"""Headers of safetensors files, honest ones and ones that were changed in one or a few places."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from struct import pack
from typing import Any

CODES = ("F32", "F16", "BF16", "F64", "I8", "U8", "BOOL", "I64", "C64", "F4", "F6_E2M3", "F8_E4M3", "F8_E8M0", "U16")
BITS = {"F32": 32, "F16": 16, "BF16": 16, "F64": 64, "I8": 8, "U8": 8, "BOOL": 8, "I64": 64, "C64": 64, "F4": 4,
        "F6_E2M3": 6, "F8_E4M3": 8, "F8_E8M0": 8, "U16": 16}  # fmt: skip
NAMES = ("w", "b", "layer.0.weight", "", "ü", "\U0001f600", "a\0b", "__metadata_", "x" * 300)
ODD: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 1.0, 4.0, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, 2**64, 2**70, "", "4", "F32", "f32",
    [], [4], [0, 4], [4, 0], [0, 0], [[]], [None], {}, {"a": 1}, {"a": "b"}, ["F32", [1], [0, 4]],
)  # fmt: skip
TEXTS = (
    "NaN", "Infinity", "-Infinity", "-0", "0e0", "1e2", "4E0", "1e999", "1" + "0" * 400, "01", "+1", "0x4", ".5", "4.",
    "nul", "True", "''", '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\t"', '"\\x"', "[1,]",
    "[,]", "{,}", "/**/", "", "\ufeff", "\xa0", "\x0b", " \t\r\n", '{"a":1,"a":2}', '"' + "a" * 70_000 + '"',
    "[" * 125 + "]" * 125, "[" * 126 + "]" * 126,
)  # fmt: skip
"""What JSON spells in odd ways, or is none; at the end lists in lists, as deep as serde_json goes, and deeper."""


HOLE = "@hole@"
"""Takes the place of a value that is put in as text."""


def honest(random: Random) -> tuple[dict[str, Any], bytes]:
    """A header and the data behind it, as a writer makes them."""
    header: dict[str, Any] = {}
    at = 0
    for name in random.sample(NAMES, random.randint(0, 4)):
        code = random.choice(CODES)
        shape = [random.choice((0, 1, 2, 3, 4, 8)) for _ in range(random.randint(0, 3))]
        if BITS[code] < 8:
            shape.append(8)
        nbytes = BITS[code] // 2
        for size in shape:
            nbytes *= size
        nbytes = nbytes * 2 // 8
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    if random.random() < 0.5:
        header["__metadata__"] = {name: random.choice(("pt", "\n", "é")) for name in random.sample(NAMES, 2)}
    items = list(header.items())
    random.shuffle(items)
    return dict(items), random.randbytes(at)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a header."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [place for key, inner in pairs for place in ((value, key), *_places(inner))]


def changed(random: Random) -> bytes:
    """A file: honest, or changed in a value, a key, an offset, the text, the bytes or the lengths around it."""
    header, data = honest(random)
    for _ in range(random.choice((0, 0, 1, 1, 1, 2))):
        places = _places(header)
        if not places:
            break
        holder, key = random.choice(places)
        match random.randrange(8):
            case 0 | 1:
                holder[key] = deepcopy(random.choice(ODD))
            case 2 if isinstance(holder[key], int):
                holder[key] += random.choice((-4, -1, 1, 4, 8))
            case 3 if isinstance(holder, dict):
                holder[random.choice(("dtype", "shape", "data_offsets", "extra", "__metadata__", "w"))] = holder.pop(
                    key
                )
            case 4 if isinstance(holder, dict):
                holder[random.choice(("extra", "dtype", "w", "__metadata__"))] = deepcopy(random.choice((*ODD, HOLE)))
            case 5:
                del holder[key]
            case _:
                holder[key] = HOLE
    text = json.dumps(
        header, ensure_ascii=random.random() < 0.5, separators=random.choice(((",", ":"), (" , ", " : ")))
    )
    text = text.replace(f'"{HOLE}"', random.choice(TEXTS))
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(random.choice((0,) * 5 + (1,))):
        at = random.randrange(len(raw))
        match random.randrange(4):
            case 0:
                raw[at] = random.choice(b'{}[]",:0123456789eE+-.\\ \n\t\0\xff\xed\xc0ntf')
            case 1:
                del raw[at]
            case 2:
                raw[at:at] = random.choice(
                    (b" ", b"0", b",", b'"', b"\\u0041", b"\\", b"-", b"\xc3\xbc", b"\xed\xa0\x80")
                )
            case 3:
                raw[at:] = raw[at : at + random.randrange(20)]
    raw += random.choice((b"",) * 12 + (b" " * 7, b"\n", b"\t \r", b"\0", b"{}", b"\x0b"))
    length = len(raw) + random.choice((0,) * 40 + (-1, 1, 8))
    data = data[: len(data) - random.choice((0,) * 40 + (1,))] + random.choice((b"",) * 40 + (b"x",))
    return pack("<Q", max(length, 0)) + bytes(raw) + data
