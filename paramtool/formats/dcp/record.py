"""What `.metadata` has no place for: the attribute `paramtool` of the pickled Metadata, JSON text.

    {"version": 1, "alias_sets": {...}, "empty": [...], "layouts": {...}, "metadata": {...}}

`alias_sets` has {name: [the first name of its alias set, the evidence]} for names that share one place in the folder
and are not all one tensor, and for names that were declared to be one.  `empty` has [number, place] for each empty
dict: how many values of the tree come before it, and where it is.  The rest is that of `formats.record.facts`.  A part
that says nothing is absent, and so is an attribute without parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from itertools import pairwise
from typing import Any

from paramtool.formats.dcp.metadata import RECORD, Place, is_place
from paramtool.formats.record import facts
from paramtool.formats.record.damage import reading
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import DECLARED, Checkpoint, Link
from paramtool.model.plan import Plan

EVIDENCE = ("storage", *DECLARED)


def encode(plan: Plan, empty: Sequence[tuple[int, Place]] = ()) -> str:
    """The record of a plan with such empty dicts; empty if none is needed."""
    own: dict[str, Any] = {"empty": [[count, list(place)] for count, place in empty]} if empty else {}
    # {name: its alias set and why}, of names on places that do not say it themselves.
    places = grouped((one.owner, name) for name, one in plan.names.items())
    found = {}
    for names in places.values():
        held = [plan.names[name] for name in names]
        is_said = len({one.alias_set for one in held}) == 1 and {one.set_evidence for one in held} == {"storage"}
        if len(names) > 1 and not is_said:
            found.update({one.name: [one.alias_set, one.set_evidence] for one in held})
    if found:
        own["alias_sets"] = found
    return facts.encode(plan, own)


@frozen
class ReadRecord:
    """What a record says, as far as it can be told without the tensors."""

    where: str
    document: Mapping[str, Any] = field(default_factory=dict)
    empty: tuple[tuple[int, Place], ...] = ()


def decode(where: str, text: object) -> ReadRecord:
    """A record; FormatError if it is damaged.  `text` is None if there is none."""
    if text is None:
        return ReadRecord(where)
    with _reading(where):
        if not isinstance(text, str):
            raise ValueError(f"it is of type {type(text).__name__}; expected a string")
        found = facts.document(text)
        empty = tuple((count, tuple(place)) for count, place in found.get("empty", []))
        if not all(type(count) is int and count >= 0 and is_place(place) for count, place in empty):
            raise ValueError("its empty dicts need a number and a place each")
        if any(one > other for (one, _), (other, _) in pairwise(empty)):
            raise ValueError("its empty dicts are out of order")
    return ReadRecord(where, found, empty)


def _reading(where: str) -> AbstractContextManager[None]:
    hint = "torch.distributed.checkpoint does not look at it, and can still load the folder"
    return reading(f"{where}: its record {RECORD!r}", hint, names_type=False)


def with_record(checkpoint: Checkpoint, said: ReadRecord) -> Checkpoint:
    """A checkpoint with the facts of its record; FormatError if that contradicts the tensors."""
    where, found = said.where, said.document
    if not found:
        return checkpoint
    with _reading(where):
        links = _links(checkpoint, found.get("alias_sets", {}))
    return facts.applied(checkpoint, where, found, links)


def _links(checkpoint: Checkpoint, said: Any) -> dict[str, Link]:
    """{name: its alias set}; ValueError unless every name is a tensor, and a set has one place."""
    if not isinstance(said, Mapping):
        raise ValueError("its alias_sets are not an object")
    views = checkpoint.views()
    links: dict[str, Link] = {}
    places: dict[str, object] = {}
    firsts: dict[object, str] = {}
    for name, item in said.items():
        if name not in views or not isinstance(item, list) or len(item) != 2 or item[1] not in EVIDENCE:
            raise ValueError(f"its alias set of {name!r:.100} is {item!r:.100}; expected a tensor's name, and why")
        if said.get(item[0], [None])[0] != item[0] or places.setdefault(item[0], views[name]) != views[name]:
            raise ValueError(f"{name!r:.100} is in the alias set of {item[0]!r:.100}, and has other bytes")
        is_first = firsts.setdefault(views[name], item[0]) == item[0]
        links[name] = Link(item[0], item[1], by_content=not is_first)
    return links
