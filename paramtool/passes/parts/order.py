"""The order of a file's tensors before it was rearranged, from its record of parts.

A file keeps the order of its names through any number of `fuse` and `unfuse`: each record of a tensor says where the
tensors that it replaced stood, in the order that the file had before the first of them.  Through conversions between
dialects it is kept by the tensors of transformers 4 that all are made of: the record says the first order of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from paramtool.grouping import grouped
from paramtool.model.parts import PartsRecord
from paramtool.parts.pieces import Stored


def first_order(names: Iterable[str], record: PartsRecord) -> dict[str, int]:
    """{name: its rank in the first order}, for the names of a file and for those that its record can restore.

    A tensor that was fused has the rank of its first part, and parts have the rank of the tensor that was taken apart.
    """
    present = dict.fromkeys(names)
    places: dict[str, int] = {}
    undone = list(_undone(present, record))
    for one in undone:
        for name in one.there:
            present.pop(name, None)
        present |= dict.fromkeys(one.before)
        places |= zip(one.before, one.positions, strict=True)
    ranks = {name: k for k, name in enumerate(_placed(present, places))}
    for one in reversed(undone):
        rank = min(ranks[name] for name in one.before)
        for name in one.there:
            ranks.setdefault(name, rank)
    return ranks


def in_first_order(names: Iterable[str], ranks: Mapping[str, int]) -> list[str]:
    """Names by their ranks; one without a rank stays behind the name in front of it."""
    found: list[tuple[int, str]] = []
    for name in dict.fromkeys(names):
        found.append((ranks.get(name, found[-1][0] if found else -1), name))
    return [name for _, name in sorted(found, key=lambda pair: pair[0])]


def of_parts(
    held: Iterable[Stored], hub: Iterable[str], ranks: Mapping[str, int], known: Sequence[int]
) -> tuple[int, ...]:
    """The rank of each tensor of transformers 4, in the order of its names; `known` if it is of as many.

    `held` are the file's tensors, and `ranks` the order of their names.  Parts of one tensor follow each other.
    """
    names = sorted(hub)
    if len(known) == len(names):
        return tuple(known)
    places: dict[str, tuple[int, int]] = {}
    for tensor in held:
        rank = ranks.get(tensor.name, len(ranks))
        for k, part in enumerate(tensor.parts):
            place = (rank, k)
            if places.setdefault(part, place) > place:
                places[part] = place
    found = {name: rank for rank, name in enumerate(sorted(names, key=places.__getitem__))}
    return tuple(found[name] for name in names)


def of_made(made: Iterable[Stored], hub: Iterable[str], order: Sequence[int]) -> dict[str, int]:
    """{new tensor: the rank of the first tensor of transformers 4 that it is made of}; none without an order."""
    if not order:
        return {}
    ranks = dict(zip(sorted(hub), order, strict=True))
    found = {
        one.name: min((ranks[piece.part] for piece in one.pieces if piece.part in ranks), default=-1) for one in made
    }
    return {name: rank for name, rank in found.items() if rank >= 0}


class _OrderStep(NamedTuple):
    """One tensor that was fused or taken apart."""

    there: tuple[str, ...]
    """The names that it left."""
    before: tuple[str, ...]
    """The names that it replaced."""
    positions: tuple[int, ...]
    """Those of `before`."""


def _undone(names: Iterable[str], record: PartsRecord) -> Iterator[_OrderStep]:
    """The steps whose tensors a file has, or has when others are undone, each once."""
    steps = [_OrderStep((one.tensor,), one.names, one.positions) for one in record.fused]
    steps += [_OrderStep(one.names, (one.tensor,), one.positions) for one in record.unfused]
    steps = [one for one in steps if one.there and one.before and len(one.before) == len(one.positions)]
    users = grouped((name, k) for k, one in enumerate(steps) for name in one.there)
    present = set(names)
    lacking = [set(one.there) - present for one in steps]
    ready = deque(k for k, lack in enumerate(lacking) if not lack)
    done = set()
    while ready:
        k = ready.popleft()
        if lacking[k] or k in done:
            continue
        done.add(k)
        yield (one := steps[k])
        for name in one.there:
            for user in users[name]:
                lacking[user].add(name)
        for name in one.before:
            for user in users.get(name, ()):
                lacking[user].discard(name)
                if not lacking[user]:
                    ready.append(user)


def _placed(names: Iterable[str], places: Mapping[str, int]) -> Iterator[str]:
    """Names in their order, those that have a place at it, as far as the others leave room."""
    present = dict.fromkeys(names)
    waiting = sorted((name for name in places if name in present), key=places.__getitem__, reverse=True)
    count = 0
    for name in (name for name in present if name not in places):
        while waiting and places[waiting[-1]] <= count:
            yield waiting.pop()
            count += 1
        yield name
        count += 1
    yield from reversed(waiting)
