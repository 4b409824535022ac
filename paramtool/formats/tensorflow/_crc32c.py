"""CRC-32C, with which tables and bundles are checked.

Python has no such function, and this one takes a tenth of a second for a megabyte: it is for headers, not for tensors.

Source: RFC 3720, appendix B.4, for the polynomial; tensorflow/core/lib/hash/crc32c.h for the mask, which keeps a CRC of
bytes that hold a CRC from being a constant.
"""

from __future__ import annotations

from functools import cache

POLYNOMIAL = 0x82F63B78


@cache
def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(found)


def crc32c(data: bytes, crc: int = 0) -> int:
    """The CRC of some bytes, or of what `crc` is the CRC of and these bytes behind it.

    >>> hex(crc32c(b"123456789")), crc32c(b"456789", crc32c(b"123")) == crc32c(b"123456789")
    ('0xe3069283', True)
    """
    table = _table()
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A CRC as files hold it.

    >>> hex(masked(0))
    '0xa282ead8'
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
