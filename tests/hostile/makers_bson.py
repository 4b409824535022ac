"""Documents of BSON, assembled by hand: what is nested deeply, repeated often or referred to from many places."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack

DOCUMENT, ROW, STRING, BINARY, NULL, INT64 = 3, 4, 2, 5, 10, 18


def element(kind: int, key: str, value: bytes = b"") -> bytes:
    """An element."""
    return bytes([kind]) + key.encode() + b"\0" + value


def document(*elements: bytes) -> bytes:
    """A document; a row is the same, with keys that nobody reads."""
    body = b"".join(elements)
    return pack("<i", len(body) + 5) + body + b"\0"


def text(key: str, value: str) -> bytes:
    """A string."""
    raw = value.encode()
    return element(STRING, key, pack("<i", len(raw) + 1) + raw + b"\0")


def row(key: str, items: Iterable[bytes]) -> bytes:
    """A row of documents."""
    return element(ROW, key, document(*(element(DOCUMENT, "", item) for item in items)))


def number(key: str, value: int) -> bytes:
    """A whole number."""
    return element(INT64, key, pack("<q", value))


def backref(to: int) -> bytes:
    """A back-reference."""
    return document(text("tag", "backref"), number("ref", to))


def datatype(*path: str) -> bytes:
    """A type."""
    names = document(*(text("", part) for part in path))
    return document(text("tag", "datatype"), element(ROW, "params", document()), element(ROW, "name", names))


def array(count: int = 1) -> bytes:
    """A vector of float32."""
    return document(
        text("tag", "array"),
        element(DOCUMENT, "type", datatype("Core", "Float32")),
        element(ROW, "size", document(number("", count))),
        element(BINARY, "data", pack("<iB", 4 * count, 0) + bytes(4 * count)),
    )


def struct(*fields: bytes, kind: tuple[str, ...] = ("Main", "S")) -> bytes:
    """A struct of documents."""
    return document(text("tag", "struct"), element(DOCUMENT, "type", datatype(*kind)), row("data", fields))
