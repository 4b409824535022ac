"""The steps of a comparison that look for the same bytes under another name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paramtool.commands.diff.settled import SURE_NBYTES, Settled
from paramtool.grouping import paired
from paramtool.model.diff import LAYOUT, RENAMED
from paramtool.model.view import View, Views
from paramtool.passes.diff.names import Renames

WEIGHTS = ("model", "buffer")
"""Roles of the tensors of a model."""
MANY_TINY = 8
"""How many different numbers of one checkpoint are in another one by no chance."""


class NamePair(NamedTuple):
    """A tensor of the first checkpoint, and one of the second that is, or could be, the same."""

    old: str
    new: str
    is_unique: bool = True
    """Whether no other names of the two would do."""


def by_content(state: Settled, *, is_squeezed: bool = False) -> None:
    """Tensors that hold the same bytes under another name; with `is_squeezed` also with other axes of length 1."""
    unsure: list[tuple[list[str], list[str]]] = []
    for old, new in equal_names(state, state.left_a, state.left_b, is_squeezed=is_squeezed):
        if len(old) == len(new) == 1 and not state.may_be_chance(old[0]):
            if state.is_exchanged(old[0], new[0]):
                state.twins["b", new[0]] = f"the same bytes as {old[0]!r} of A"
                continue
            _rename(state, old[0], new[0])
        else:
            unsure.append((old, new))
    renames = state.renames()
    for old, new in unsure:
        _match(state, old, new, renames)
        state.unsure.append((old, new))


def by_later_renames(state: Settled) -> None:
    """Tensors whose bytes alone prove nothing, by the renames that maps have shown since: nothing is read."""
    renames = state.renames()
    for olds, news in state.unsure:
        old, new = (
            [name for name in names if name in left] for names, left in ((olds, state.left_a), (news, state.left_b))
        )
        if old and new:
            _match(state, old, new, renames)


def equal_names(
    state: Settled, a: Views, b: Views, *, is_squeezed: bool = False
) -> Iterator[tuple[list[str], list[str]]]:
    """Names of some tensors of both checkpoints that hold the same bytes, of one type and shape."""
    keys = [
        (((view.dtype, _squeezed(view) if is_squeezed else view.shape), name) for name, view in views.items())
        for views in (a, b)
    ]
    both = paired(*keys)
    windows = [([a[name] for name in old], [b[name] for name in new]) for old, new in both]
    for (old, new), classes in zip(both, state.sides.equal(windows), strict=True):
        for mine, theirs in classes:
            yield [old[k] for k in mine], [new[k] for k in theirs]


def _squeezed(view: View) -> tuple[int, ...]:
    """A shape without its axes of length 1."""
    return tuple(size for size in view.shape if size != 1)


def _rename(state: Settled, old: str, new: str, *, is_unique: bool = True) -> None:
    if state.a[old].shape == state.b[new].shape:
        state.settle(RENAMED, [old], new, is_unique=is_unique)
    else:
        state.settle(LAYOUT, [old], new, how="reshaped", is_unique=is_unique)


def _match(state: Settled, old: list[str], new: list[str], renames: Renames) -> None:
    """Equal tensors of several names, by the renames that others show; those of real content by their order."""
    more = ", too few or too alike to be a proof" if state.may_be_chance(old[0]) else ""
    state.twins |= {("b", name): f"the same bytes as {old[0]!r} of A{more}" for name in new}
    state.twins |= {("a", name): f"the same bytes as {new[0]!r} of B{more}" for name in old}
    for pair in matched(state, old, new, renames):
        _rename(state, pair.old, pair.new, is_unique=pair.is_unique)


def matched(state: Settled, old: list[str], new: list[str], renames: Renames) -> list[NamePair]:
    """Pairs of names whose tensors are alike: by the renames that others show; those of real content by their order."""
    free = dict.fromkeys(new)
    left, pairs = [], []
    for name in old:
        wanted = next((one for one in renames.of(name) if one in free and not state.is_exchanged(name, one)), None)
        if wanted is None:
            left.append(name)
            continue
        del free[wanted]
        pairs.append(NamePair(name, wanted))
    if not state.may_be_chance(old[0]):
        places = [one for one in free if one not in state.a]
        is_unique = len(left) == len(free) == 1
        pairs += [NamePair(name, other, is_unique) for name, other in zip(left, places, strict=False)]
    return pairs


def tiny(state: Settled) -> None:
    """Tensors of a few bytes that are left, if every one of A is in B, and they are many different ones."""
    old_groups, new_groups = _tiny_contents(state, 0), _tiny_contents(state, 1)
    for key, olds in old_groups.items():
        news = {content: name for name, content in new_groups.get(key, {}).items()}
        contents = {*olds.values()}
        are_single = len(contents) == len(olds) and len(news) == len(new_groups.get(key, {}))
        if are_single and len(olds) >= MANY_TINY and news.keys() >= contents:
            for name, content in olds.items():
                if not state.is_exchanged(name, news[content]):
                    _rename(state, name, news[content])


def _tiny_contents(state: Settled, side: int) -> dict[object, dict[str, bytes]]:
    """{type and shape: {name: bytes}} of the small weights of one checkpoint that are left."""
    entries, pool = state.checkpoints[side].entries, (state.sides.a, state.sides.b)[side]
    found: dict[object, dict[str, bytes]] = {}
    for name, view in (state.left_a, state.left_b)[side].items():
        if name in entries and entries[name].role in WEIGHTS and 0 < view.nbytes < SURE_NBYTES:
            content = pool.source.array(view).all().tobytes()
            found.setdefault((view.dtype, _squeezed(view)), {})[name] = content
    return found
