"""Which layer of a source belongs to which layer of a model: by name, by shape where that is unique, by numbers.

Names are compared piece by piece: `encoder.fc` is `encoder/fc`, `fc` where no other name ends so, and `encoder` where
nothing else that begins so fits.  Names that Keras makes (`dense_1`) count only if both sides have the same ones, since
Keras numbers through a process.  Then layers that fit only one layer of the other side belong to it.  Several that fit
several are taken in order if both sides number them (`lstm`, `lstm_1` and `rnn.0`, `rnn.2`), in the order of their
files.  Anything else is ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from paramtool.lazy_dataclass import frozen
from paramtool.model.conventions import MADE_BY_KERAS

S = TypeVar("S")
M = TypeVar("M")


@frozen
class MatchedPair(Generic[S, M]):
    """A layer of the source and one of the model that belong together."""

    source: S
    model: M
    how: str
    """`name`, `shape`, `order` or `map`."""


@frozen
class Unsure(Generic[S, M]):
    """Layers that fit each other in several ways."""

    sources: tuple[S, ...]
    models: tuple[M, ...]


def tokens(name: str) -> tuple[str, ...]:
    """The pieces of a name, for comparing.

    >>> tokens("Encoder.fc"), tokens("encoder/fc"), tokens("")
    (('encoder', 'fc'), ('encoder', 'fc'), ())
    """
    return tuple(filter(None, re.split(r"[./]", name.casefold())))


def matched(
    sources: Sequence[S],
    models: Sequence[M],
    name_of: Callable[[S | M], str],
    fits: Callable[[S, M], bool],
) -> tuple[list[MatchedPair[S, M]], list[Unsure[S, M]]]:
    """The pairs, and what is ambiguous; both sides are in the order of their files."""
    pairs: list[MatchedPair[S, M]] = []
    left, right = list(range(len(sources))), list(range(len(models)))

    def take(edges: Sequence[tuple[int, int]], how: str) -> None:
        """Keep the edges that are the only ones at both ends, of those that are free."""
        edges = [(s, m) for s, m in edges if s in left and m in right]
        ones, others = [s for s, _ in edges], [m for _, m in edges]
        for s, m in edges:
            if ones.count(s) == 1 and others.count(m) == 1:
                pairs.append(MatchedPair(sources[s], models[m], how))
                left.remove(s)
                right.remove(m)

    ours = [tokens(name_of(one)) for one in sources]
    theirs = [tokens(name_of(one)) for one in models]
    loose = _loose(ours, theirs)
    named = [(s, m) for s in left for m in right if _stem(ours[s]) not in loose or _stem(theirs[m]) not in loose]
    inside = [(s, m) for s, m in named if theirs[m] and ours[s][: len(theirs[m])] == theirs[m]]
    take([(s, m) for s, m in inside if fits(sources[s], models[m])], "name")
    take([(s, m) for s, m in inside if ours[s] == theirs[m]], "name")
    ends = [
        (s, m) for s, m in named if ours[s][-len(theirs[m]) :] == theirs[m] or theirs[m][-len(ours[s]) :] == ours[s]
    ]
    take([(s, m) for s, m in ends if fits(sources[s], models[m])], "name")
    edges = [(s, m) for s in left for m in right if fits(sources[s], models[m])]
    unsure: list[Unsure[S, M]] = []
    for mine, other in _components(edges):
        if len(mine) == len(other) == 1:
            take([(mine[0], other[0])], "shape")
            continue
        is_whole = sum(s in mine for s, _ in edges) == len(mine) * len(other) and len(mine) == len(other)
        if is_whole and is_numbered([ours[s] for s in mine]) and is_numbered([theirs[m] for m in other]):
            for s, m in zip(mine, other, strict=True):
                take([(s, m)], "order")
        else:
            unsure.append(Unsure(tuple(sources[s] for s in mine), tuple(models[m] for m in other)))
    return pairs, unsure


def _stem(name: tuple[str, ...]) -> str:
    """The last piece of a name that Keras made, without its number; empty for any other."""
    stem = re.sub(r"_\d+$", "", name[-1]) if name else ""
    return stem if stem in MADE_BY_KERAS else ""


def _loose(ours: Sequence[tuple[str, ...]], theirs: Sequence[tuple[str, ...]]) -> set[str]:
    """Stems of names that Keras made of which the two sides have other numbers: equal names are another layer then.

    >>> _loose([("dense",), ("dense_1",)], [("dense_1",), ("dense_2",)]), _loose([("dense",)], [("dense",)])
    ({'dense'}, set())
    """
    found = set()
    for stem in {*map(_stem, ours)} & {*map(_stem, theirs)} - {""}:
        mine, other = ({name[-1] for name in names if _stem(name) == stem} for names in (ours, theirs))
        if mine != other:
            found.add(stem)
    return found


def _components(edges: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], list[int]]]:
    """The connected parts of a graph with two sides, each in order."""
    rest = list(edges)
    while rest:
        mine, other = {rest[0][0]}, {rest[0][1]}
        while more := [(s, m) for s, m in rest if (s in mine) != (m in other)]:
            mine |= {s for s, _ in more}
            other |= {m for _, m in more}
        rest = [(s, m) for s, m in rest if s not in mine]
        yield sorted(mine), sorted(other)


def is_numbered(names: Sequence[tuple[str, ...]]) -> bool:
    """Whether names differ only in their numbers, which ascend; the first may have none.

    >>> is_numbered([("lstm",), ("lstm_1",)]), is_numbered([("rnn", "2"), ("rnn", "10")])
    (True, True)
    >>> is_numbered([("fwd",), ("bwd",)]), is_numbered([("lstm_1",), ("lstm",)])
    (False, False)
    """
    texts = {re.sub(r"_?\d+", "", "/".join(name)) for name in names}
    numbers = [[int(number) for number in re.findall(r"\d+", "/".join(name))] for name in names]
    return len(texts) == 1 and all(one < two for one, two in pairwise(numbers))
