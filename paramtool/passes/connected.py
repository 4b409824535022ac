"""Which of some numbers are connected by pairs of them."""

from __future__ import annotations

from collections.abc import Iterable


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
