"""Tensors that hold all of another tensor of the first, under a name that the first has for its own: changed.

A program that reads tensors by their names gets the wrong one: of two layers that were exchanged, or of one that was
written over another.  No table is tried on them: it could make such a tensor of the other one by a map that moves
nothing, as that of rotary pairs in a head of two rows.
"""

from __future__ import annotations

from paramtool.commands.diff.casts import alike_as_casts
from paramtool.commands.diff.found import distinct
from paramtool.commands.diff.renames import equal_names
from paramtool.commands.diff.settled import SURE_NBYTES, Settled
from paramtool.engine.compare.cast_verdicts import CastPair
from paramtool.model.view import View


def taken(state: Settled) -> None:
    """The same bytes as another tensor."""
    for olds, news in list(equal_names(state, *_views(state))):
        _set_aside(state, olds, news, "the same bytes as")


def taken_as_casts(state: Settled) -> None:
    """The same numbers as another tensor of another type."""
    for olds, news in list(alike_as_casts(state, *_views(state))):
        proved = [old for old in olds if not state.may_be_chance(old)]
        for new in news:
            same = [old for old in proved if state.proved([CastPair(state.a[old], state.b[new])])]
            _set_aside(state, same, [new], "a cast of")


def _set_aside(state: Settled, olds: list[str], news: list[str], words: str) -> None:
    if not olds or state.may_be_chance(olds[0]):
        return
    for new in news:
        own = CastPair(state.a[new], state.b[new])
        is_cast = own.a.dtype != own.b.dtype and own.a.shape == own.b.shape and state.proved([own])
        if not is_cast and all(state.is_exchanged(old, new) for old in olds):
            state.twins["b", new] = f"{words} {olds[0]!r} of A"
            state.taken[new] = state.left_b.pop(new)


def _views(state: Settled) -> tuple[dict[str, View], dict[str, View]]:
    """The tensors of the first, each once, and those of the second without a verdict whose names the first has."""
    new = {name: view for name, view in state.left_b.items() if name in state.a and view.nbytes >= SURE_NBYTES}
    shapes = {view.shape for view in new.values()}
    return {name: view for name, view in distinct(state.a) if view.shape in shapes}, new
