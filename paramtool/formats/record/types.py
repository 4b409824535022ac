"""The record of casts: which tensors of a file were cast by rule, or dequantised, and from what type.

It is text under the metadata key `paramtool.types`: {"version": 1, "cast": {name: the type before}}.  The type after is
the tensor's own.  The numbers were rounded once, to nearest, ties to even.  Version 2 has {"dequantised": {name: [its
scales, and what else of the source went with its codes]}}, of tensors whose codes were multiplied with their scales
before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paramtool.formats.record.damage import HINT, reading, versioned
from paramtool.model.dtype import DTYPES

KEY = "paramtool.types"


class RecordedTypes(NamedTuple):
    """What a file says of the types of its tensors."""

    cast: dict[str, str]
    """{tensor: its type before}"""
    dequantised: dict[str, tuple[str, ...]]
    """{tensor: what of the source went with its codes}"""


def encode(cast: Mapping[str, str], dequantised: Mapping[str, Sequence[str]]) -> str:
    """The record as text, in the lowest version that can express it."""
    more = {"dequantised": {name: list(others) for name, others in dequantised.items()}} if dequantised else {}
    return json.dumps({"version": 1 + bool(more), "cast": dict(cast), **more}, separators=(",", ":"))


def decode(where: str, metadata: Mapping[str, str]) -> RecordedTypes:
    """The record of a file with this metadata; FormatError if it is damaged."""
    if KEY not in metadata:
        return RecordedTypes({}, {})
    with reading(f"{where}: its record of casts ({KEY!r})", HINT):
        record = versioned(metadata[KEY], 2)
        made = record["dequantised"] if record["version"] > 1 else {}
        found = RecordedTypes(
            dict(record["cast"].items()),
            {name: tuple(map(str, others)) for name, others in made.items()},
        )
        if unknown := [str(one) for one in found.cast.values() if not isinstance(one, str) or one not in DTYPES]:
            raise ValueError(f"{unknown[0]!r:.60} is not a type of numbers")
        return found
