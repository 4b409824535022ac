"""Numbers of bytes as people write and read them."""

from __future__ import annotations

import re

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def size(nbytes: int) -> str:
    """Bytes in decimal units with three digits.

    >>> size(999), size(154_389_504), size(1_000_000_000)
    ('999 B', '154 MB', '1.00 GB')
    """
    number = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if number < 999.5 or unit == "PB":
            break
        number /= 1000
    return f"{nbytes} B" if unit == "B" else f"{number:.{max(0, 2 - len(str(int(number))) + 1)}f} {unit}"


def parse_size(text: str) -> int:
    """Bytes of `5GB`, `512MiB`, `4096`; ValueError otherwise.

    >>> parse_size("5GB"), parse_size("1.5 KiB"), parse_size("0")
    (5000000000, 1536, 0)
    """
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in UNITS:
        raise ValueError(f"{text!r} is no size; write 4096, 5GB or 512MiB")
    return int(float(found[1]) * UNITS[found[2].upper()])
