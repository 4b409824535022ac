"""Things by what they have in common."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Thing = TypeVar("Thing")


def grouped(pairs: Iterable[tuple[Key, Thing]]) -> dict[Key, list[Thing]]:
    """{key: the things that come with it, in order}, the keys in the order in which they come first.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[Key, list[Thing]] = {}
    for key, thing in pairs:
        found.setdefault(key, []).append(thing)
    return found


def omit(items: Mapping[Key, Thing], keys: Container[object]) -> dict[Key, Thing]:
    """The items of a mapping whose keys are none of some others.

    >>> omit({"a": 1, "b": 2}, ["b", "c"])
    {'a': 1}
    """
    return {key: thing for key, thing in items.items() if key not in keys}


def paired(a: Iterable[tuple[Key, Thing]], b: Iterable[tuple[Key, Thing]]) -> list[tuple[list[Thing], list[Thing]]]:
    """The things of both sides that come with one key, in the order of `grouped`.

    >>> paired([("a", 1), ("b", 2)], [("b", 3), ("c", 4)])
    [([2], [3])]
    """
    mine, theirs = grouped(a), grouped(b)
    return [(things, theirs[key]) for key, things in mine.items() if key in theirs]


def connected(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """For each of `count` numbers, one that stands for all those that it is connected with.

    >>> connected(5, [(0, 3), (3, 1)])
    [1, 1, 2, 1, 4]
    """
    parent = list(range(count))

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for a, b in pairs:
        parent[root(a)] = root(b)
    return [root(k) for k in range(count)]
