"""CRCs of runs of bytes that follow each other, without reading them again.

CRCs are remainders of polynomials over GF(2).  The CRC of two runs is that of the second, plus that of the first times
x to the power of the number of bits that follow (as zlib's crc32_combine calculates it).
"""

from __future__ import annotations

import zlib
from functools import cache

POLYNOMIAL = 0xEDB88320
"""The polynomial of the CRC that zip files use, with reversed bits."""
ONE = 1 << 31


def crc32_of_rest(crc32: int, head: bytes, nbytes: int) -> int:
    """The CRC of the last `nbytes` bytes of something, from that of all of it and from its first bytes.

    >>> import zlib
    >>> crc32_of_rest(zlib.crc32(b"head and rest"), b"head and ", 4) == zlib.crc32(b"rest")
    True
    """
    return crc32_joined(zlib.crc32(head), crc32, nbytes)


def crc32_joined(first: int, second: int, nbytes: int) -> int:
    """The CRC of two runs of bytes, from that of each; the second has `nbytes` bytes.

    >>> import zlib
    >>> crc32_joined(zlib.crc32(b"head and "), zlib.crc32(b"rest"), 4) == zlib.crc32(b"head and rest")
    True
    """
    return second ^ _times(_x_to_bytes(nbytes), first)


def _times(a: int, b: int) -> int:
    """The product of two polynomials, modulo the CRC's."""
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ POLYNOMIAL if b & 1 else b >> 1
    return product


@cache
def _x_to_bytes(nbytes: int) -> int:
    """x to the power of eight times `nbytes`, modulo the CRC's polynomial."""
    found, square = ONE, ONE >> 8
    while nbytes:
        if nbytes & 1:
            found = _times(found, square)
        square = _times(square, square)
        nbytes >>= 1
    return found
