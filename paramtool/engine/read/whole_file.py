"""The sha256 of a whole file, read from the beginning to the end."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from paramtool.formats.files import check_unchanged, open_source, unreadable

BLOCK_NBYTES = 4 << 20


def sha256_of(path: str, advance: Callable[[int], None] = lambda nbytes: None) -> tuple[int, str]:
    """The size of a file, and its sha256 in hexadecimal.

    UnreadableError where the system does not let us read it, or where it changed meanwhile.
    """
    file, source = open_source(path)
    made = sha256(usedforsecurity=False)
    with file:
        try:
            while data := file.read(BLOCK_NBYTES):
                made.update(data)
                advance(len(data))
        except OSError as error:
            raise unreadable(path, error) from None
    check_unchanged(source)
    return source.nbytes, made.hexdigest()
