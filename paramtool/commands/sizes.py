"""Numbers of bytes as people write and read them."""

from __future__ import annotations

import re

from paramtool.model.display import size as size

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def parse_size(text: str) -> int:
    """Bytes of `5GB`, `512MiB`, `4096`; ValueError otherwise.

    >>> parse_size("5GB"), parse_size("1.5 KiB"), parse_size("0")
    (5000000000, 1536, 0)
    """
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if not found or found[2].upper() not in UNITS:
        raise ValueError(f"{text!r} is an invalid size; write 4096, 5GB or 512MiB")
    return int(float(found[1]) * UNITS[found[2].upper()])
