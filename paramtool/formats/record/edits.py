"""What commands record of their edits to ties, types and optimizers, so that `verify` can make them again.

Each record is JSON text under a key of the metadata of its own:

    paramtool.ties         {"version": 1, "untied": {name: a name that it was tied to},
                            "tied": {name: the name whose tensor it became a name of},
                            "state": {"untied": "copy", "tied": "first"}}
    paramtool.types        {"version": 1, "cast": {name: the type before}}
    paramtool.optimizer    {"version": 1, "states": [{"at": "optimizer", "names": {"0": "lstm.flat_weights"},
                            "before": {"0": "lstm.weight_ih_l0", ...}}]}

Names became tensors of their own, or names of others; `state` is what became of an optimizer's state.  The type after a
cast is the tensor's own; the numbers were rounded once, to nearest, ties to even.  Version 2 of types has
{"dequantised": {name: [its scales, and what else of the source went with its codes]}}, of tensors whose codes were
multiplied with their scales before.  `at` is the path of an optimizer, `names` are those of the parameters of its
entries in the file itself, by the keys of the entries, and `before` those in the file that it was made from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from paramtool.formats.record.damage import HINT, reading, versioned
from paramtool.lazy_dataclass import frozen
from paramtool.model.dtype import DTYPES

TIES, TYPES, OPTIMIZERS = "paramtool.ties", "paramtool.types", "paramtool.optimizer"


class RecordedTies(NamedTuple):
    """The ties that a command changed, and its choices."""

    untied: Mapping[str, str]
    tied: Mapping[str, str]
    state: Mapping[str, str]


def ties_text(found: RecordedTies) -> str:
    """The record of ties as text."""
    return _text({"version": 1, **{key: dict(one) for key, one in found._asdict().items()}})


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"))


def ties_of(where: str, metadata: Mapping[str, str]) -> RecordedTies:
    """What a file with this metadata records of ties, which may be nothing; FormatError if the record is damaged."""
    if TIES not in metadata:
        return RecordedTies({}, {}, {})
    with reading(f"{where}: its record of ties ({TIES!r})", HINT):
        record = versioned(metadata[TIES], 1)
        return RecordedTies(*_named([dict(record[key].items()) for key in RecordedTies._fields]))


def _named(found: list[dict[str, str]]) -> list[dict[str, str]]:
    """Mappings to names; ValueError if they are others."""
    if not all(isinstance(name, str) for names in found for name in names.values()):
        raise ValueError("its names are not strings")
    return found


class RecordedTypes(NamedTuple):
    """What a file says of the types of its tensors."""

    cast: dict[str, str]
    """{tensor: its type before}"""
    dequantised: dict[str, tuple[str, ...]]
    """{tensor: what of the source went with its codes}"""


def types_text(cast: Mapping[str, str], dequantised: Mapping[str, Sequence[str]]) -> str:
    """The record of casts as text, in the lowest version that can express it."""
    more = {"dequantised": {name: list(others) for name, others in dequantised.items()}} if dequantised else {}
    return _text({"version": 1 + bool(more), "cast": dict(cast), **more})


def types_of(where: str, metadata: Mapping[str, str]) -> RecordedTypes:
    """What a file with this metadata records of casts; FormatError if that is damaged."""
    if TYPES not in metadata:
        return RecordedTypes({}, {})
    with reading(f"{where}: its record of casts ({TYPES!r})", HINT):
        record = versioned(metadata[TYPES], 2)
        made = record["dequantised"] if record["version"] > 1 else {}
        found = RecordedTypes(
            dict(record["cast"].items()),
            {name: tuple(map(str, others)) for name, others in made.items()},
        )
        if unknown := [str(one) for one in found.cast.values() if not isinstance(one, str) or one not in DTYPES]:
            raise ValueError(f"{unknown[0]!r:.60} is not a type of numbers")
        return found


Recorded = Mapping[str, Mapping[str, str]]
"""{path of an optimizer: the names of its entries, by their keys}"""


@frozen
class RecordedNames:
    """The names of the entries of one optimizer."""

    at: str
    names: Mapping[str, str]
    before: Mapping[str, str]


def optimizers_text(states: Iterable[RecordedNames]) -> str:
    """The record of optimizers as text."""
    listed = [{"at": one.at, "names": dict(one.names), "before": dict(one.before)} for one in states]
    return _text({"version": 1, "states": listed})


def optimizers_of(where: str, metadata: Mapping[str, str]) -> tuple[RecordedNames, ...]:
    """What a file with this metadata records of optimizers; FormatError if the record is damaged."""
    if OPTIMIZERS not in metadata:
        return ()
    with reading(f"{where}: its record of optimizers ({OPTIMIZERS!r})", HINT):
        return tuple(_names(state) for state in versioned(metadata[OPTIMIZERS], 1)["states"])


def _names(state: Mapping[str, Any]) -> RecordedNames:
    at = state["at"]
    found = _named([{str(key): name for key, name in state[kind].items()} for kind in ("names", "before")])
    if not isinstance(at, str):
        raise ValueError("its names are not strings")
    return RecordedNames(at, *found)
