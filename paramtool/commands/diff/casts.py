"""The steps of a comparison that look for tensors of another type or shape, under the same name or another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from paramtool.commands.diff.renames import NamePair, matched
from paramtool.commands.diff.settled import Settled, may_be_cast
from paramtool.engine.compare.cast_verdicts import CastPair, narrow, sample_as
from paramtool.engine.compare.sides import WindowPair
from paramtool.grouping import paired
from paramtool.model.diff import CHANGED, LAYOUT, ROUNDED
from paramtool.model.objects import is_extra_state
from paramtool.model.view import View, Views
from paramtool.passes.diff.names import Renames


def casts_by_name(state: Settled) -> None:
    """Casts under the same name."""
    _prove(state, _by_name(state, Renames(())))


def casts(state: Settled) -> None:
    """Casts under another name, which names or numbers show."""
    if state.left_a and state.left_b:
        # Casts under another name: those whose samples are like no others', then those that their names show
        unsure = []
        sure = []
        for old, new in alike_as_casts(state, state.left_a, state.left_b):
            if len(old) == len(new) == 1 and not state.may_be_chance(old[0]):
                if not state.is_exchanged(old[0], new[0]):
                    sure.append(NamePair(old[0], new[0]))
            else:
                unsure.append((old, new))
        _prove(state, sure)
        renames = state.renames()
        _prove(state, [one for old, new in unsure for one in matched(state, old, new, renames)])
    if state.left_a and state.left_b:
        casts_by_renames(state)


def casts_by_renames(state: Settled) -> None:
    """Casts under the names that others show."""
    _prove(state, _by_name(state, state.renames()))


def reshaped(state: Settled) -> None:
    """Tensors under the same name and in another shape: the same bytes, or a cast."""
    pairs = {}
    for name, new in state.left_b.items():
        old = state.left_a.get(name)
        if old is None or old.numel != new.numel or not (old.numel and may_be_cast(old, new)):
            continue
        if old.shape != new.shape and old.is_contiguous and new.is_contiguous:
            flat, other = (View(one.storage, one.dtype, one.offset, (one.numel,), (1,)) for one in (old, new))
            pairs[name] = CastPair(flat, other)
    exact = {name: WindowPair(pair.a, pair.b) for name, pair in pairs.items() if pair.a.dtype == pair.b.dtype}
    same = state.sides.same(exact.values(), lambda nbytes: None)
    for name, pair in pairs.items():
        kind = (LAYOUT if same[exact[name]] else "") if name in exact else state.proved([pair])
        if kind:
            state.settle(kind, [name], name, how="reshaped", change=state.lost(kind, [pair]))


def _by_name(state: Settled, renames: Renames) -> Iterator[NamePair]:
    """Tensors of one shape and two types, of one name or of a name that others show."""
    if len({view.dtype for left in (state.left_a, state.left_b) for view in left.values()}) < 2:
        return
    taken: set[str] = set()
    for name, old in list(state.left_a.items()):
        every = (name, *(one for one in renames.of(name) if not state.is_exchanged(name, one)))
        new = next((one for one in every if one in state.left_b and state.left_b[one].shape == old.shape), None)
        if new is not None and new not in taken and state.left_b[new].dtype != old.dtype:
            taken.add(new)
            yield NamePair(name, new)


def _prove(state: Settled, candidates: Iterable[NamePair]) -> None:
    """A verdict on each pair of names that is a cast; an extra state is given to its module in the type that it has."""
    every = [one for one in candidates if not is_extra_state(one.new)]
    pairs = [CastPair(state.a[one.old], state.b[one.new]) for one in every]
    kinds = list(state.sides.casts([pair] for pair in pairs))
    rounded = [pair for pair, kind in zip(pairs, kinds, strict=True) if kind == ROUNDED]
    measured = state.sides.changes([WindowPair(pair.a, pair.b)] for pair in rounded)
    changes = dict(zip(rounded, measured, strict=True))
    for one, pair, kind in zip(every, pairs, kinds, strict=True):
        if kind != CHANGED and one.old in state.left_a and one.new in state.left_b:
            state.settle(kind, [one.old], one.new, change=changes.get(pair), is_unique=one.is_unique)


def alike_as_casts(state: Settled, a: Views, b: Views) -> Iterator[tuple[list[str], list[str]]]:
    """Names of some tensors of both checkpoints, of one shape and two types, whose samples are alike."""
    sources = state.sides.a.source, state.sides.b.source
    shapes = [((view.shape, name) for name, view in views.items() if view.numel) for views in (a, b)]
    for olds, news in paired(*shapes):
        kinds = product({a[old].dtype for old in olds}, {b[new].dtype for new in news})
        for one, other in sorted(kinds, key=str):
            dtype = narrow(one, other)
            if dtype is None:
                continue
            yield from paired(
                ((sample_as(sources[0], a[old], dtype), old) for old in olds if a[old].dtype == one),
                ((sample_as(sources[1], b[new], dtype), new) for new in news if b[new].dtype == other),
            )
