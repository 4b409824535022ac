"""What an alias record has to keep to, beyond being JSON of the right form: every name leads to bytes, and in one step.

owner       a tensor that is stored or derived, never an alias
memory      a name that stands on the same owner and is the first of its memory, so that no chain leads on or round
position    a number of its own
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from paramtool.errors import Defects

CHANGED = "the file was changed after paramtool wrote it: write it again with dedup, or take the record out"


def check(where: str, stored: Collection[str], record: Mapping[str, Any]) -> None:
    """Defects where names of a record lead nowhere, on, or round; KeyError and the like where it has another form."""
    if record["version"] == 1 and "derived" in record:
        raise Defects(
            f"{where}: its alias record", ["is of version 1, which has no derived names, and has some"], CHANGED
        )
    found = list(_owners(stored, record))
    if not found:  # memories follow owners, so that one wrong owner would be told several times
        found = [*_memories(stored, record), *_positions(record)]
    if found:
        raise Defects(f"{where}: its alias record", found, CHANGED)


def _owners(stored: Collection[str], record: Mapping[str, Any]) -> Iterator[str]:
    aliases, spans, derived = record["aliases"], record["spans"], record.get("derived", {})
    if not isinstance(spans, list) or not all(isinstance(name, str) for name in spans):
        raise ValueError("spans is no list of names")
    yield from (f"{name!r} is a span that is not stored" for name in spans if name not in stored)
    yield from (f"{name!r} is derived and is stored too; expected one of them" for name in derived if name in stored)
    said = (name for name in record["stored"] if name not in stored and name not in derived)
    yield from (f"says something of {name!r}, which is not stored" for name in said)
    for name, item in aliases.items():
        owner = item["owner"]
        if name in stored or name in derived:
            yield f"{name!r} is an alias and is {'stored' if name in stored else 'derived'} too; expected one of them"
        elif owner not in stored and owner not in derived:
            kind = "itself an alias" if owner in aliases else "not there"
            yield f"{name!r} is a window on {owner!r}, which is {kind}; expected a stored tensor"


def _memories(stored: Collection[str], record: Mapping[str, Any]) -> Iterator[str]:
    aliases, spans, derived = record["aliases"], set(record["spans"]), record.get("derived", {})
    said = {name: item["memory"] for part in (record["stored"], aliases) for name, item in part.items()}
    owners = {name: item["owner"] for name, item in aliases.items()}
    for name, memory in said.items():
        if not isinstance(memory, str):
            raise ValueError(f"{name!r} has a memory that is no name")
        if memory == name:
            continue
        if memory in spans or not (memory in stored or memory in aliases or memory in derived):
            yield f"{name!r} is in the memory of {memory!r}, which is no name of the file"
        elif (further := said.get(memory, memory)) != memory:
            yield f"{name!r} is in the memory of {memory!r}, which is in that of {further!r}; expected the first name"
        elif (mine := owners.get(name, name)) != (other := owners.get(memory, memory)):
            yield f"{name!r} is in the memory of {memory!r}, but stands on {mine!r} and the other on {other!r}"
    for name, item in aliases.items():
        if item["evidence"] == "content" and item["memory"] == said.get(item["owner"], item["owner"]):
            yield f"{name!r} has the evidence 'content' and is in the memory of its owner; equal is not tied"


def _positions(record: Mapping[str, Any]) -> Iterator[str]:
    items = {**record["aliases"], **record.get("derived", {})}
    numbers = {name: item["position"] for name, item in items.items()}
    if not all(type(number) is int for number in numbers.values()):
        raise ValueError("a position is no whole number")
    yield from (f"{name!r} stands at position {number}" for name, number in numbers.items() if number < 0)
    yield from twice(numbers)


def twice(numbers: Mapping[str, int]) -> Iterator[str]:
    """Names that stand at one position.

    >>> list(twice({"a": 1, "b": 1, "c": 2}))
    ["'a' and 'b' stand at one position, 1"]
    """
    often = {number for number, count in Counter(numbers.values()).items() if count > 1}
    for number in sorted(often):
        names = " and ".join(repr(name) for name, mine in numbers.items() if mine == number)
        yield f"{names:.300} stand at one position, {number}"


def shards(document: Mapping[str, Any], positions: Mapping[str, int]) -> Iterator[str]:
    """What the records of shards, whose names stand at these positions, say otherwise than each other or their index.

    `document` is the union of them in the index, empty where it has none.
    """
    yield from (f"the alias records of its shards clash: {text}" for text in twice(positions))
    promised = [name for part in ("aliases", "derived") for name in document.get(part, {})]
    lacking = (name for name in promised if name not in positions)
    yield from (f"its alias record has {name!r}, and no shard has; a shard was changed" for name in list(lacking)[:1])
