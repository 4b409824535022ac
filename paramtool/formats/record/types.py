"""The record of casts: which tensors of a file were cast by rule, and from what type.

It is text under the metadata key `paramtool.types`: {"version": 1, "cast": {name: the type before}}.  The type after is
the tensor's own.  The numbers were rounded once, to nearest, ties to even.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from paramtool.formats.record.damage import HINT, reading, versioned
from paramtool.model.dtype import DTYPES

KEY = "paramtool.types"
VERSION = 1


def encode(cast: Mapping[str, str]) -> str:
    """{tensor: its type before} as text."""
    return json.dumps({"version": VERSION, "cast": dict(cast)}, separators=(",", ":"))


def decode(where: str, metadata: Mapping[str, str]) -> dict[str, str]:
    """{tensor: its type before} of a file with this metadata; FormatError if the record is damaged."""
    if KEY not in metadata:
        return {}
    with reading(f"{where}: its record of casts ({KEY!r})", HINT):
        record = versioned(metadata[KEY], VERSION)
        cast: dict[str, str] = dict(record["cast"].items())
        if unknown := [str(dtype) for dtype in cast.values() if not isinstance(dtype, str) or dtype not in DTYPES]:
            raise ValueError(f"{unknown[0]!r:.60} is not a type of numbers")
        return cast
