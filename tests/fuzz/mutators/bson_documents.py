"""Mutations of BSON: one member of one document of Julia's is changed, moved, repeated or left out."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import bson

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 2**31, 2**62, 0.5, "", "tag", b"", b"1234", [], {}, {"tag": "backref", "ref": 1},
    {"tag": "backref", "ref": 2}, {"tag": "symbol", "name": "s"}, {"tag": "jl_bottom_type"}, [{}],
)  # fmt: skip
TAGS = ("array", "struct", "backref", "tuple", "svec", "symbol", "datatype", "unionall", "jl_anonymous", "ref", "other")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in a document."""
    todo = [value]
    while todo:
        held = todo.pop()
        items = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ()
        for key, child in items:
            yield held, key
            todo.append(child)


def mutate(data: bytes, random: Random) -> bytes:
    """One change, of a file that pymongo can read."""
    top = bson.decode(data)
    places = list(_places(top))
    held, key = random.choice(places)
    action = random.randrange(5)
    if action == 0:
        held[key] = random.choice(VALUES)
    elif action == 1:
        other, name = random.choice(places)
        held[key] = bson.decode(bson.encode({"v": other[name]}))["v"]
    elif action == 2:
        del held[key]
    elif action == 3:
        documents = [each for each, name in places if name == "tag"]
        random.choice(documents)["tag"] = random.choice(TAGS)
    else:
        top["_backrefs"] = [*top.get("_backrefs", []), held[key]]
        held[key] = {"tag": "backref", "ref": len(top["_backrefs"])}
    return bytes(bson.encode(top))
