"""The record of ties that were changed: which names became tensors of their own, and which became names of others.

It is text under the metadata key `paramtool.ties`: {"version": 1, "untied": {name: a name that it was tied to},
"tied": {name: the name whose tensor it became a name of}, "state": {"untied": "copy", "tied": "first"}}.  `state` is
what became of an optimizer's state, so that `verify` can make it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from paramtool.formats.record.damage import HINT, reading, versioned

KEY = "paramtool.ties"
VERSION = 1


class RecordedTies(NamedTuple):
    """The ties that a command changed, and its choices."""

    untied: Mapping[str, str]
    tied: Mapping[str, str]
    state: Mapping[str, str]


def encode(found: RecordedTies) -> str:
    """The record as text."""
    return json.dumps({"version": VERSION, **{key: dict(one) for key, one in found._asdict().items()}},
                      separators=(",", ":"))  # fmt: skip


def decode(where: str, metadata: Mapping[str, str]) -> RecordedTies:
    """What a file with this metadata records, which may be nothing; FormatError if the record is damaged."""
    if KEY not in metadata:
        return RecordedTies({}, {}, {})
    with reading(f"{where}: its record of ties ({KEY!r})", HINT):
        record = versioned(metadata[KEY], VERSION)
        found = [dict(record[key].items()) for key in RecordedTies._fields]
        if not all(isinstance(text, str) for one in found for text in one.values()):
            raise ValueError("its names are not strings")
        return RecordedTies(*found)
