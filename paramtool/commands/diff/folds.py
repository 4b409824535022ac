"""A change with a reason: batch norms that an exporter folded into the layers before them.

The names of an export need not be those of the model: norms are proposed by the tensors that they leave over, and
weights by their shapes.  Numbers judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from paramtool.commands.diff.settled import Settled
from paramtool.engine.compare.casts import is_rounding
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.folded import Folding, Folds, NormViews
from paramtool.grouping import paired
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.conventions import CONVENTIONS, COUNTERS
from paramtool.model.diff import CHANGED
from paramtool.model.view import Views

MAX_PAIRS = 1 << 16
"""The most pairs of weights of one shape that are tried."""
BATCH_NORM = "batchnorm"


class NamedNorm(NamedTuple):
    """A batch norm by the names of its tensors: {part: name}."""

    at: str
    parts: Mapping[str, str]
    counters: tuple[str, ...] = ()
    """What only counts, and is folded into nothing."""

    def names(self, *parts: str) -> list[str]:
        """The names of those of some parts that it has."""
        return [self.parts[part] for part in parts if part in self.parts]


class Folded(NamedTuple):
    """A layer and its batch norm in one checkpoint, and the layer that holds both in the other one."""

    norm: NamedNorm
    epsilon: float
    weight: str
    new_weight: str
    bias: str = ""
    new_bias: str = ""


def folds(state: Settled) -> None:
    """Weights and biases that hold a batch norm of the other checkpoint."""
    for is_back in (False, True):
        if state.left_a and state.left_b:
            for one in list(_found(state, is_back=is_back)):
                (_settle_back if is_back else _settle)(state, one)


def _settle(state: Settled, one: Folded) -> None:
    """The second checkpoint has the folded layer."""
    how = f"explained by a folded batch norm: {one.norm.at!r}, epsilon {one.epsilon:g}"
    pair = WindowPair(state.a[one.weight], state.b[one.new_weight])
    (change,) = state.sides.changes([[pair]]) if pair.a.shape == pair.b.shape else (None,)
    olds = [one.weight, *one.norm.names("scale", "variance"), *one.norm.counters]
    state.settle(CHANGED, olds, one.new_weight, how=how, change=change)
    if one.new_bias:
        own = [one.bias] if one.bias else []
        state.settle(CHANGED, [*own, *one.norm.names("shift", "mean", "scale", "variance")], one.new_bias, how=how)


def _settle_back(state: Settled, one: Folded) -> None:
    """The first checkpoint has the folded layer."""
    how = f"explained by a batch norm that A folded into {one.new_weight!r}, epsilon {one.epsilon:g}"
    _settle_each(state, one.new_weight, [one.weight, *one.norm.names("scale", "variance"), *one.norm.counters], how)
    if one.new_bias:
        own = [one.bias] if one.bias else []
        _settle_each(state, one.new_bias, [*own, *one.norm.names("shift", "mean")], how)


def _settle_each(state: Settled, old: str, news: Iterable[str], how: str) -> None:
    for name in news:
        view = state.b[name]
        state.settle(CHANGED, [old], name, how=how, dtypes=("", view.dtype.name), shapes=(None, view.shape))


def _found(state: Settled, *, is_back: bool) -> Iterator[Folded]:
    """The layers of one checkpoint that are layers and norms in the other; each norm once."""
    sides = [(state.checkpoints[k], (state.left_a, state.left_b)[k]) for k in (0, 1)]
    (plain, left), (_, other) = sides[::-1] if is_back else sides
    sources = state.sides.a.source, state.sides.b.source
    norms = list(_norms(plain, left))
    if not norms:
        return
    search = Folds(*(sources[::-1] if is_back else sources), [_views(one, left) for one in norms])
    free = dict.fromkeys(name for name in other if is_rounding(other[name].dtype))
    taken: set[int | str] = set()
    for weight, new in _pairs(left, other):
        if new not in free or weight in taken:
            continue
        one = search.find(left[weight], other[new])
        if one is None or one.norm in taken:
            continue
        taken |= {one.norm, weight}
        del free[new]
        bias, new_bias = _bias(weight, new, one, search, left=left, other={name: other[name] for name in free})
        free.pop(new_bias, None)
        yield Folded(norms[one.norm], one.epsilon, weight, new, bias, new_bias)


def _pairs(left: Views, other: Views) -> Iterator[tuple[str, str]]:
    """Weights of one number of elements, those of one name first; only as many as a model has layers of one shape."""
    sizes = [
        ((v.numel, name) for name, v in views.items() if len(v.shape) > 1 and v.numel and is_rounding(v.dtype))
        for views in (left, other)
    ]
    for mine, theirs in paired(*sizes):
        if len(mine) * len(theirs) <= MAX_PAIRS:
            yield from ((name, name) for name in mine if name in theirs)
            yield from ((name, new) for name in mine for new in theirs if name != new)


def _bias(weight: str, new: str, one: Folding, search: Folds, *, left: Views, other: Views) -> tuple[str, str]:
    """(bias of the layer, bias of the folded layer) by their numbers, the one beside the folded weight first."""
    beside = f"{_stem(weight)}bias"
    bias = beside if beside in left else ""
    order = sorted((name for name in other if other[name].numel == search.norms[one.norm].channels),
                   key=lambda name: not name.startswith(_stem(new)))  # fmt: skip
    for name in order:
        if search.is_bias(left[bias] if bias else None, other[name], one):
            return bias, name
    return "", ""


def _stem(weight: str) -> str:
    return weight.removesuffix("weight").removesuffix("kernel")


def _norms(checkpoint: Checkpoint, left: Views) -> Iterator[NamedNorm]:
    """The batch norms of a checkpoint whose statistics are left, by what its file says, or by their names."""
    said: dict[str, dict[str, str]] = {}
    for name, part in checkpoint.parts.items():
        if part.kind == BATCH_NORM and name in left:
            said.setdefault(part.layer, {})[part.part] = name
    found = {layer: parts for layer, parts in said.items() if {"mean", "variance"} <= parts.keys()}
    known = {name for parts in found.values() for name in parts.values()}
    for layer, parts in found.items():
        yield NamedNorm(layer, parts)
    for rows in _NAMES:
        means = [name for name in left if name not in known and _last(name) == rows["mean"]]
        for name in means:
            at = name[: len(name) - len(rows["mean"])]
            parts = {part: f"{at}{own}" for part, own in rows.items() if f"{at}{own}" in left}
            if "variance" in parts:
                known |= {*parts.values()}
                counters = tuple(f"{at}{one}" for one in COUNTERS if f"{at}{one}" in left)
                yield NamedNorm(at.rstrip("./"), parts, counters)


_EVERY = [{part: name for name, (part, _) in one.tensors.items()} for one in CONVENTIONS if one.kind == BATCH_NORM]
_NAMES = [one for one in _EVERY if {"mean", "variance"} <= one.keys()]
"""{part of a batch norm: its name}, as libraries call them."""


def _last(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[2]


def _views(one: NamedNorm, left: Views) -> NormViews:
    scale, shift = (left[one.parts[part]] if part in one.parts else None for part in ("scale", "shift"))
    return NormViews(left[one.parts["mean"]], left[one.parts["variance"]], scale, shift)
