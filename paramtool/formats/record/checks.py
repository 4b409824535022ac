"""Checks of an alias record: the form of its JSON, and that every name leads to bytes in a single step.

owner       a tensor that is stored or derived, never an alias
memory      the first name of the alias set, with the same owner, so that there are no chains or cycles
position    a number that no other name has
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from paramtool.errors import Defects
from paramtool.model.dtype import DTYPES

CHANGED = "the file was changed after paramtool wrote it: write it again with dedup, or remove the record"

_PLACE = {"owner": str, "dtype": str, "strides": list, "offset": int}
_CAST = {**_PLACE, "lossless": bool}
_ITEMS: Mapping[str, Mapping[str, type]] = {
    "aliases": {**_PLACE, "memory": str, "evidence": str, "shape": list, "position": int},
    "stored": {"memory": str, "memory_evidence": str},
    "derived": {"dtype": str, "shape": list, "position": int},
}
"""The members that an item of each part must have; other members are ignored."""
_WORDS = {str: "a string", list: "a list", int: "a whole number", bool: "true or false"}


def form(where: str, record: Mapping[str, Any], needed: Iterable[str] = ("aliases", "stored", "spans")) -> None:
    """Defects if a part of a record or a member of an item is missing, or has the wrong type."""
    found = [f"has no {part!r}" for part in needed if part not in record]
    spans = record.get("spans", [])
    if not isinstance(spans, list) or not all(isinstance(name, str) for name in spans):
        found.append(f"has the 'spans' {spans!r:.60}; expected a list of names")
    for part, members in _ITEMS.items():
        items = record.get(part, {})
        if not isinstance(items, dict):
            found.append(f"has the {part!r} {items!r:.60}; expected an object")
            continue
        for name, item in items.items():
            wrong = [*_item(item, members), *(_how(item) if part == "derived" else ())]
            found += [f"{name!r:.200} of {part!r} {text}" for text in wrong]
    found += _marks(record)
    if found:
        raise Defects(f"{where}: its alias record", found, CHANGED)


KINDS = ("parameter", "storage", "untyped storage")


def _marks(record: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the members that version 3 adds for tensors."""
    trainable, kinds = record.get("requires_grad", []), record.get("kinds", {})
    if not isinstance(trainable, list) or not all(isinstance(name, str) for name in trainable):
        yield f"has the 'requires_grad' {trainable!r:.60}; expected a list of names"
    if not isinstance(kinds, dict) or not all(isinstance(kind, str) and kind in KINDS for kind in kinds.values()):
        yield f"has the 'kinds' {kinds!r:.60}; expected an object of names, each with one of {', '.join(KINDS)}"


def _item(item: object, members: Mapping[str, type]) -> Iterator[str]:
    if not isinstance(item, dict):
        yield f"is {item!r:.60}; expected an object"
        return
    for member, kind in members.items():
        if member not in item:
            yield f"has no {member!r}"
        elif type(item[member]) is not kind:
            yield f"has the {member} {item[member]!r:.60}; expected {_WORDS[kind]}"
        elif member == "dtype" and item[member] not in DTYPES:
            yield f"has the dtype {item[member]!r:.60}, which is not known; expected one such as 'float32'"


def _how(item: object) -> Iterator[str]:
    """What is wrong with how a name is derived."""
    if not isinstance(item, dict):
        return
    if ("constant" in item) == ("cast" in item):
        yield f"has {'both' if 'cast' in item else 'neither'} of 'constant' and 'cast'; expected one of them"
    elif "cast" in item:
        yield from (f"has a cast that {text}" for text in _item(item["cast"], _CAST))
    else:
        yield from _item(item, {"constant": str})


def check(where: str, stored: Collection[str], record: Mapping[str, Any]) -> None:
    """Defects if names of a well-formed record refer to missing names, to aliases, or to each other."""
    if record["version"] == 1 and "derived" in record:
        raise Defects(f"{where}: its alias record", ["has derived names, which version 1 does not have"], CHANGED)
    found = list(_owners(stored, record))
    if not found:  # alias sets depend on owners, so one wrong owner would be reported several times
        found = [*_alias_sets(stored, record), *_positions(record)]
    if found:
        raise Defects(f"{where}: its alias record", found, CHANGED)


def _owners(stored: Collection[str], record: Mapping[str, Any]) -> Iterator[str]:
    aliases, spans, derived = record["aliases"], record["spans"], record.get("derived", {})
    yield from (f"{name!r} is a span that is not stored" for name in spans if name not in stored)
    yield from (f"{name!r} is both derived and stored; expected one of them" for name in derived if name in stored)
    said = (name for name in record["stored"] if name not in stored and name not in derived)
    yield from (f"describes {name!r}, which is not stored" for name in said)
    for name, item in aliases.items():
        owner = item["owner"]
        if name in stored or name in derived:
            yield f"{name!r} is both an alias and {'stored' if name in stored else 'derived'}; expected one of them"
        elif owner not in stored and owner not in derived:
            kind = "itself an alias" if owner in aliases else "not in the file"
            yield f"{name!r} is a view of {owner!r}, which is {kind}; expected a stored tensor"


def _alias_sets(stored: Collection[str], record: Mapping[str, Any]) -> Iterator[str]:
    aliases, spans, derived = record["aliases"], set(record["spans"]), record.get("derived", {})
    said = {name: item["memory"] for part in (record["stored"], aliases) for name, item in part.items()}
    owners = {name: item["owner"] for name, item in aliases.items()}
    for name, alias_set in said.items():
        if alias_set == name:
            continue
        if alias_set in spans or not (alias_set in stored or alias_set in aliases or alias_set in derived):
            yield f"{name!r} is in the alias set ('memory') of {alias_set!r}, which is not a name of the file"
        elif (further := said.get(alias_set, alias_set)) != alias_set:
            in_turn = f"which is in that of {further!r}; expected the first name of the set"
            yield f"{name!r} is in the alias set ('memory') of {alias_set!r}, {in_turn}"
        elif (mine := owners.get(name, name)) != (other := owners.get(alias_set, alias_set)):
            yield (
                f"{name!r} is in the alias set ('memory') of {alias_set!r}, but is a view of {mine!r}, "
                f"and the other of {other!r}"
            )
    for name, item in aliases.items():
        if item["evidence"] == "content" and item["memory"] == said.get(item["owner"], item["owner"]):
            yield (
                f"{name!r} has the evidence 'content' and is in the alias set ('memory') of its owner; "
                "equal is not tied"
            )


def _positions(record: Mapping[str, Any]) -> Iterator[str]:
    items = {**record["aliases"], **record.get("derived", {})}
    numbers = {name: item["position"] for name, item in items.items()}
    yield from (f"{name!r} has the position {number}" for name, number in numbers.items() if number < 0)
    yield from twice(numbers)


def twice(numbers: Mapping[str, int]) -> Iterator[str]:
    """Names that have the same position.

    >>> list(twice({"a": 1, "b": 1, "c": 2}))
    ["'a' and 'b' have the same position, 1"]
    """
    often = {number for number, count in Counter(numbers.values()).items() if count > 1}
    for number in sorted(often):
        names = " and ".join(repr(name) for name, mine in numbers.items() if mine == number)
        yield f"{names:.300} have the same position, {number}"


def shards(document: Mapping[str, Any], positions: Mapping[str, int]) -> Iterator[str]:
    """Contradictions between the records of shards, and between them and the record in the index.

    `positions` are those of the names in the shards' records; `document` is the record in the index, or empty.
    """
    yield from (f"the alias records of its shards clash: {text}" for text in twice(positions))
    promised = [name for part in ("aliases", "derived") for name in document.get(part, {})]
    lacking = (name for name in promised if name not in positions)
    yield from (f"its alias record has {name!r}, but no shard does; a shard was changed" for name in list(lacking)[:1])
