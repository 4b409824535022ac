"""Mutations of `.npy`: the dict of the header by its parts, its length, its version."""

from __future__ import annotations

import re
from random import Random

from tests.fuzz.mutators import raw

DESCRS = (
    "<f4", ">f4", "|f4", "<f2", "<f8", "<i8", ">i8", "|b1", "|u1", "|V2", "|V4", "<U1", "|S3", "|O", "<M8[s]", "<c8",
    "<f16", "=f4", "f4", "", "<f0", "<V0", "|S0",
)  # fmt: skip
VALUES = (
    "()", "(4,)", "(-4,)", "(2, 2)", "(4.0,)", "(True,)", "(4, 0)", "(2**40,)", "(0, 18446744073709551616)", "4", "[4]",
    "None", "True", "False", "1", "'x'", "{}", "(" * 150, "[('a', '<f4'), ('b', '<i8')]", "('<f4', (2,))",
    "__import__('paramtool_fuzz_canary').fire()",
)  # fmt: skip
TOKEN = re.compile(r"'[^']*'|\d+|True|False|\([^()]*\)|[{}:,]")


def mutate(data: bytes, random: Random) -> bytes:
    """One mutation of an array."""
    major = data[6]
    width = 2 if major == 1 else 4
    start = 8 + width
    length = int.from_bytes(data[8:start], "little")
    text, body = data[start : start + length].decode("latin-1"), data[start + length :]
    match random.randrange(8):
        case 0:
            return data[:8] + (raw.number(random, length) % (1 << (8 * width))).to_bytes(width, "little") + data[start:]
        case 1:
            return data[:6] + bytes([random.choice((0, 1, 2, 3, 4, 255)), random.choice((0, 0, 1))]) + data[8:]
        case 2:
            body = raw.mutate(body, random)
        case 3:
            text = re.sub(r"'descr': ?'[^']*'", f"'descr': {random.choice(DESCRS)!r}", text)
        case _:
            text = _changed(text, random)
    raw_text = text.encode("latin-1")
    if random.random() < 0.8:  # padded as NumPy does
        raw_text = raw_text.rstrip(b" \n")
        raw_text += b" " * (-(start + len(raw_text) + 1) % 64) + b"\n"
    return data[:8] + (len(raw_text) % (1 << (8 * width))).to_bytes(width, "little") + raw_text + body


def _changed(text: str, random: Random) -> str:
    """A token of the header less, twice, or another."""
    found = random.choice(list(TOKEN.finditer(text)))
    token = found.group()
    match random.randrange(5):
        case 0:
            token = ""
        case 1:
            token = token * 2
        case 2:
            token = random.choice(list(TOKEN.finditer(text))).group()
        case 3 if token.isdigit():
            token = str(raw.number(random, int(token)))
        case _:
            token = random.choice(VALUES)
    return text[: found.start()] + token + text[found.end() :]
