"""Which of several checkpoints another one was fine-tuned from, by samples of their tensors of one place in the model.

by name                       model.layers.0.mlp.up_proj.weight in both
by what is in front of names  layers.0.mlp.up_proj.weight, as a model without its head is saved
by dialects                   experts in one stack, and apart, where a config.json is beside one of the two
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import inf, isfinite, sqrt
from typing import NamedTuple

from paramtool.commands.diff.settled import made_of
from paramtool.commands.diff.tables import of_dialects
from paramtool.commands.opening import Allowed, opened
from paramtool.commands.progress import Path, Progress, silent
from paramtool.engine.read.elements import Array, number_type
from paramtool.engine.read.sampling import RowMajorBytes
from paramtool.engine.read.source import Source
from paramtool.errors import FIRST, internal
from paramtool.formats.judging import judging
from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import reading
from paramtool.model.display import Displayed
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


# --- How far candidates are ------------------------------------------------------------------------------------------


TENSORS = 64
"""The most tensors that are sampled: the largest."""
SAMPLE = 4096
"""Elements of a tensor that are compared, from its middle."""
CLEAR = 0.5
"""Its distance is at most this share of that of the next candidate."""


class BaseCandidate(NamedTuple):
    """How far a checkpoint is from the one that is asked about."""

    path: str
    distance: float
    """The norm of the difference of all samples, divided by that of the candidate's; `inf` without common tensors."""
    sampled: int
    """How many tensors of one place in the model, and of one shape, were sampled."""
    same: int
    """How many of these samples are the same bytes."""
    why: str = ""
    """Why it could not be compared."""
    exit_code: int = 0
    """The exit code of the error in `why`, if it could not be read."""
    how: str = ""
    """How its tensors were found where their names differ: `'' -> 'model.' in front of names`, or a dialect."""

    @property
    def shown(self) -> float | None:
        """The distance as JSON has it, which has no infinity."""
        return self.distance if isfinite(self.distance) else None


@frozen(repr=False)
class BaseFound(Displayed):
    """The candidates, the nearest first."""

    path: str
    """The checkpoint whose base was looked for."""
    candidates: tuple[BaseCandidate, ...]
    """The candidates, the nearest first."""

    _facts = "`base`"

    @property
    def base(self) -> str:
        """The candidate that is clearly the base; empty if none is."""
        first, *others = self.candidates
        second = others[0].distance if others else inf
        is_clear = first.distance <= CLEAR * second and first.distance != second
        return first.path if first.distance < NEAR and is_clear else ""

    @property
    def answer(self) -> str:
        """The base, or why none is named."""
        near = [repr(one.path) for one in self.candidates[:2] if one.distance < NEAR]
        if self.base or len(near) < 2:
            return self.base or "none of the candidates is clearly the base"
        return f"none of the candidates is clearly the base: {' and '.join(near)} are about as near"

    _schema = "find-base/1"
    _members = "path base! candidates(path distance=shown sampled same why how)"


@reading
@judging("path", "candidates")
def find_base(
    path: Path,
    candidates: Sequence[Path],
    *,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> BaseFound:
    """Which of some checkpoints another was fine-tuned from: the one whose samples are nearest, and by far.

    Tensors of one shape and one place in the model are sampled, in any types.  Their names are the same, differ in
    front, or are those of two dialects, for which a config.json has to be beside one of the two.  Errors, `allow_class`
    and `allow_unknown` as of `read`; a candidate that cannot be read is an error only if all of them are, and else says
    why, and comes last.
    """
    allowed = Allowed(allow_class, allow_unknown)
    tuned = opened(path, None, progress, allowed).checkpoint
    found, errors = [], []
    with Source(tuned) as source, progress("sample", len(candidates)) as advance:
        views = _largest(tuned)
        for one in candidates:
            try:
                other = opened(one, None, progress, allowed).checkpoint
                found.append(_compared(os.fspath(one), (tuned, other), source, views))
            except Exception as caught:
                errors.append(error := internal(caught))
                why = error.message.removeprefix(f"{os.fspath(one)}: ")
                found.append(BaseCandidate(os.fspath(one), inf, 0, 0, why, error.exit_code))
            advance(1)
    if errors and len(errors) == len(found):
        raise min(errors, key=lambda error: FIRST.index(error.exit_code))
    found.sort(key=lambda one: (bool(one.exit_code), one.distance))
    return BaseFound(os.fspath(path), tuple(found))


def _largest(checkpoint: Checkpoint) -> Views:
    """The tensors of numbers of a model, the largest first."""
    entries = checkpoint.entries
    found = {name: view for name, view in checkpoint.views().items() if entries[name].role == "model" and _counts(view)}
    return dict(sorted(found.items(), key=lambda item: (-item[1].numel, item[0])))


def _counts(view: View) -> bool:
    return view.dtype.block_elements == 1 and view.dtype.is_floating and view.numel > 1


def _compared(path: str, both: tuple[Checkpoint, Checkpoint], source: Source, views: Views) -> BaseCandidate:
    """The distance of a fine-tune, the first of both, from a candidate, the second."""
    tuned, base = both
    pairs, how = same_places(tuned, base, views, _counts)
    if any(map(is_matrix, views.values())):
        pairs = [pair for pair in pairs if pair.is_matrix]
    chosen = sorted(pairs, key=lambda pair: -pair.tuned.numel)[:TENSORS]
    if not chosen:
        why = "no tensor of the same name and shape can be sampled; codes and compound tensors are not"
        return BaseCandidate(path, inf, 0, 0, why)
    apart = norm = 0.0
    same = 0
    with Source(base) as other:
        for pair in chosen:
            x, y = _sample(other, pair.base), _sample(source, pair.tuned)
            squares, own = float(((x - y) ** 2).sum()), float((x * x).sum())
            same += squares == 0
            apart, norm = apart + squares, norm + own
    return BaseCandidate(path, sqrt(apart / norm) if norm else inf, len(chosen), same, how=how)


def _sample(source: Source, view: View) -> Array:
    """Numbers from the middle of a tensor as float64, in row-major order; what is not finite counts as 0."""
    import numpy as np

    size, count = view.dtype.block_bytes, min(SAMPLE, view.numel)
    start = (view.numel - count) // 2 * size
    raw = RowMajorBytes(source, view).part(start, start + count * size)
    numbers = np.frombuffer(raw, number_type(view.dtype)).astype("f8")
    found: Array = np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)
    return found
