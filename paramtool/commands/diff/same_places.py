"""Which tensors of a candidate have the place of those of a fine-tune in the model, whatever their numbers.

by name                       model.layers.0.mlp.up_proj.weight in both
by what is in front of names  layers.0.mlp.up_proj.weight, as a model without its head is saved
by dialects                   experts in one stack, and apart, where a config.json is beside one of the two
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

from paramtool.commands.diff.settled import made_of
from paramtool.commands.diff.tables import of_dialects
from paramtool.grouping import grouped, omit
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.view import View, Views

MAX_PREFIX = 3
"""The most segments in front of names that are exchanged: `model.language_model.` has two."""
NEAR = 0.5
"""A base is nearer than this, relative to its own norm: weights that have nothing in common are 1.41 apart."""
ENOUGH = 0.5
"""Dialects are tried if names show the place of a smaller share of the fine-tune's elements."""


class SamePlace(NamedTuple):
    """A tensor of the fine-tune, or a window on one, and its place in the candidate."""

    tuned: View
    base: View
    is_matrix: bool
    """Whether the candidate's tensor is one: norms and biases are not, and are alike in all models."""


class SamePlaces(NamedTuple):
    """What two checkpoints have in common, and how it was found."""

    pairs: list[SamePlace]
    how: str
    """What differs between the names, in words; "" where they are the same."""


def same_places(tuned: Checkpoint, base: Checkpoint, mine: Views, counts: Callable[[View], bool]) -> SamePlaces:
    """Tensors of one place and shape; `mine` are those of the fine-tune that count, and `counts` says the same of any.

    Of names and dialects, the way that finds the places of more elements.
    """
    theirs = {name: view for name, view in base.views().items() if counts(view)}
    pairs, told = names_in_front(mine, theirs)
    every = ((mine[name], theirs[other]) for name, other in pairs.items())
    found = SamePlaces([SamePlace(view, other, is_matrix(other)) for view, other in every], ", ".join(told))
    if _numel(found.pairs) >= ENOUGH * sum(view.numel for view in mine.values()):
        return found
    ways = [found, *_by_dialects(tuned, base, counts)]
    return max(ways, key=lambda way: _numel(way.pairs))


def is_matrix(view: View) -> bool:
    """Whether a tensor has more than one axis that is longer than 1."""
    return sum(size > 1 for size in view.shape) > 1


def _numel(pairs: list[SamePlace]) -> int:
    return sum(one.tuned.numel for one in pairs)


def names_in_front(mine: Views, theirs: Views) -> tuple[dict[str, str], list[str]]:
    """{name of a fine-tune: that of the same place in the candidate}, and what differs in front of them, in words.

    Tensors of one name, then those whose names differ in front, the exchange that explains most first.
    """
    pairs = {name: name for name, view in mine.items() if name in theirs and theirs[name].shape == view.shape}
    told: list[str] = []
    while exchange := _exchange(omit(mine, pairs),
                                {n: v for n, v in theirs.items() if n not in pairs.values()}):  # fmt: skip
        old, new = exchange
        for name, view in mine.items():
            other = f"{old}{name.removeprefix(new)}"
            if name in pairs or not name.startswith(new) or other in pairs.values():
                continue
            if other in theirs and theirs[other].shape == view.shape:
                pairs[name] = other
        told.append(f"{old!r} -> {new!r} in front of names")
    return pairs, told


def _exchange(mine: Views, theirs: Views) -> tuple[str, str] | None:
    """(what is in front of names of the candidate, what the fine-tune has instead) that explains the most elements."""
    by_rest = grouped(
        (name.removeprefix(prefix), (prefix, view)) for name, view in theirs.items() for prefix in _prefixes(name)
    )
    explained: Counter[tuple[str, str]] = Counter()
    for name, view in mine.items():
        for new in _prefixes(name):
            for old, other in by_rest.get(name.removeprefix(new), ()):
                if other.shape == view.shape and old != new:
                    explained[old, new] += view.numel
    return max(explained, key=lambda one: (explained[one], -len(one[0] + one[1]))) if explained else None


def _prefixes(name: str) -> Iterator[str]:
    """What can be in front of a name: "", and its first modules without numbers; a module and its tensor stay."""
    yield ""
    for prefix in accumulate(f"{word}." for word in name.split(".")[:-2][:MAX_PREFIX]):
        if any(word.isdecimal() for word in prefix.split(".")):
            return
        yield prefix


def _by_dialects(tuned: Checkpoint, base: Checkpoint, counts: Callable[[View], bool]) -> Iterator[SamePlaces]:
    """Windows on tensors of the fine-tune that a dialect has in one tensor of the candidate; the largest of each."""
    there = base.views()
    for proposed in of_dialects(tuned, base):
        pairs = []
        for one in proposed:
            whole = there[one.target.name]
            made = made_of(one.target, whole) if counts(whole) else None
            if made is not None and made.pairs:
                largest = max(made.pairs, key=lambda pair: pair.a.numel)
                pairs.append(SamePlace(largest.a, largest.b, is_matrix(whole)))
        if pairs:
            yield SamePlaces(pairs, proposed[0].layout)
