"""The record of optimizers: which parameters the entries of an optimizer belong to, where a command moved its state.

It is text under the metadata key `paramtool.optimizer`: {"version": 1, "states": [{"at": "optimizer",
"names": {"0": "lstm.flat_weights"}, "before": {"0": "lstm.weight_ih_l0", ...}}]}.  `at` is the path of the optimizer,
and `names` are those of the file itself, by the keys of the entries; `before` are those of the file that it was made
from, so that `verify` can make it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from paramtool.formats.record.damage import HINT, reading, versioned
from paramtool.lazy_dataclass import frozen

Recorded = Mapping[str, Mapping[str, str]]
"""{path of an optimizer: the names of its entries, by their keys}"""
KEY = "paramtool.optimizer"
VERSION = 1


@frozen
class RecordedNames:
    """The names of the entries of one optimizer."""

    at: str
    names: Mapping[str, str]
    before: Mapping[str, str]


def encode(states: Iterable[RecordedNames]) -> str:
    """The record as text."""
    listed = [{"at": one.at, "names": dict(one.names), "before": dict(one.before)} for one in states]
    return json.dumps({"version": VERSION, "states": listed}, separators=(",", ":"))


def decode(where: str, metadata: Mapping[str, str]) -> tuple[RecordedNames, ...]:
    """What a file with this metadata records; FormatError if the record is damaged."""
    if KEY not in metadata:
        return ()
    with reading(f"{where}: its record of optimizers ({KEY!r})", HINT):
        record = versioned(metadata[KEY], VERSION)
        return tuple(_read(state) for state in record["states"])


def _read(state: Mapping[str, object]) -> RecordedNames:
    at = state["at"]
    found = [{str(key): name for key, name in state[kind].items()} for kind in ("names", "before")]  # type: ignore[attr-defined]
    if not isinstance(at, str) or not all(isinstance(name, str) for names in found for name in names.values()):
        raise ValueError("its names are not strings")
    return RecordedNames(at, *found)
