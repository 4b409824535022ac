"""What a model computes, as its file describes it: dicts, lists and plain values, in which names are `Name`."""

from __future__ import annotations

from typing import Any


class Name(str):
    """What a description calls a layer or a value, in its own way."""

    __slots__ = ()


def difference(ours: Any, theirs: Any, names: dict[str, str], where: str = "") -> str:
    """Where two descriptions differ, names apart; empty where nothing does.

    `names` gets {a name of the second: what stands there in the first}, which is one thing everywhere.

    >>> one, other = ([{"name": Name(name), "axis": 1, "takes": [Name("x")]}] for name in "ab")
    >>> difference(one, other, {}), difference(one, [{**other[0], "axis": 2}], {})
    ('', "axis of 'a'")
    """
    if isinstance(theirs, Name):
        return "" if names.setdefault(theirs, ours) == ours else where
    if isinstance(ours, dict) and isinstance(theirs, dict):
        of = f" of {ours['name']!r}" if "name" in ours else ""
        keys = {**ours, **theirs}
        rest = ((ours.get(key), theirs.get(key), f"{key}{of}" if of else where or str(key)) for key in keys)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        rest = ((*both, where) for both in zip(ours, theirs, strict=True))
    else:
        return "" if ours == theirs else where or "what feeds what, and operations without weights"
    return next(filter(None, (difference(one, other, names, at) for one, other, at in rest)), "")
