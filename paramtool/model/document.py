"""What a report says of itself, once: its JSON document, its schema and its `repr` follow from its `_members`.

    path format=checkpoint.format files=checkpoint.files(path nbytes) weights? warnings+ base!

is a list of members, in their order.  A member has the name of an attribute, property or method of the report, or is
taken from the path behind `=`, which is null where something on the way is None.  Of a value, of each item of a list
and of each value of a mapping only the members in parentheses are taken.  A member with `?` is left out where it is
None, with `+` where it holds nothing, and with `!` it is null where it holds nothing.  `*` in front of a path stands
for all members of what is there.

A class may say `_members`, too.  Without them a value is what `str` makes of it where its class says that, and else all
fields of its dataclass.  The types of members are their annotations, from which `docs/make_schemas.py` makes schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set, ValuesView
from functools import lru_cache
from typing import Any, NamedTuple

LISTS = (list, tuple, Iterator, Set, ValuesView)
_WORD = r"(\*?)(\w+)(?:=([\w.]+))?([?+!]?)(\(?)|(\))"


class Member(NamedTuple):
    """A member of a document."""

    name: str
    """Empty for all members of what is at the path."""
    path: tuple[str, ...]
    inside: tuple[Member, ...]
    """Those of its items; empty for what their class says."""
    mark: str


@lru_cache(None)
def members(text: str) -> tuple[Member, ...]:
    """A list of members.

    >>> [one.path for one in members("a b=c.d(e) f?")]
    [('a',), ('c', 'd'), ('f',)]
    """
    found: list[list[Any]] = [[]]
    for spread, name, path, mark, opens, closes in re.findall(_WORD, text):
        if closes:
            inside = tuple(found.pop())
            found[-1][-1] = found[-1][-1]._replace(inside=inside)
            continue
        found[-1].append(Member("" if spread else name, tuple((path or name).split(".")), (), mark))
        if opens:
            found.append([])
    (made,) = found
    return tuple(made)


def members_of(kind: Any) -> tuple[Member, ...]:
    """What a class says of its values; empty for what has no members."""
    if said := getattr(kind, "_members", ""):
        return members(said)
    if kind.__str__ is not object.__str__ or issubclass(kind, (*LISTS, Mapping)):
        return ()
    return tuple(Member(name, (name,), (), "") for name in getattr(kind, "__dataclass_fields__", ()))


def followed(value: Any, path: tuple[str, ...]) -> Any:
    """What is at a path; None where something on the way is."""
    for name in path:
        value = getattr(value, name)
        value = value() if callable(value) else value
        if value is None:
            break
    return value


def taken(value: object, inside: tuple[Member, ...]) -> Iterator[tuple[Member, Any]]:
    """The members of a value that are there, with what they are."""
    for one in inside:
        found = followed(value, one.path)
        if not one.name:
            yield from taken(found, members_of(type(found)))
        elif one.mark == "!":
            yield one, found or None
        elif not ((one.mark == "?" and found is None) or (one.mark == "+" and not found)):
            yield one, found


def document(value: Any, inside: tuple[Member, ...] = ()) -> Any:
    """A value as JSON has it: dicts, numbers, strings, and iterators for arrays, whose items are made one by one.

    A report begins with its `schema`.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key: document(one, inside) for key, one in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, LISTS) and not hasattr(value, "_fields"):
        return (document(one, inside) for one in value)
    if found := inside or members_of(type(value)):
        schema = "" if inside else getattr(value, "_schema", "")
        head = {"schema": f"paramtool.{schema}"} if schema else {}
        return head | {one.name: document(part, one.inside) for one, part in taken(value, found)}
    return [*map(document, value)] if isinstance(value, tuple) else str(value)
