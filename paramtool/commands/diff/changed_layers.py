"""Tensors that changed, by the map that the same tensor of another layer shows.

proved    q_proj, k_proj and v_proj of layers 0, 1 and 3  ->  qkv of layers 0, 1 and 3
changed   those of layer 2 -> qkv of layer 2, by the same windows: how many elements differ, and how far
"""

from __future__ import annotations

from paramtool.commands.diff.settled import Settled
from paramtool.engine.compare.cast_verdicts import CastPair
from paramtool.engine.compare.sides import WindowPair
from paramtool.model.diff import CHANGED, LED_BACK, TensorDiff
from paramtool.model.view import View
from paramtool.passes.diff.numbering import numberless, numbers, renumbered

MAX_TRIED = 8
"""Twins that are tried for a tensor."""


def changed_layers(state: Settled) -> None:
    """Settle what is left and has a proved twin: of the same types and shapes, under the same names but for numbers."""
    proved: dict[str, list[TensorDiff]] = {}
    for name in state.pairs:
        if state.found[name].kind in LED_BACK:
            proved.setdefault(numberless(name), []).append(state.found[name])
    for twins in proved.values():
        if any(numbers(old) != numbers(one.b[0]) for one in twins for old in one.a):  # 0, 2, 4 as 0, 1, 2
            twins.clear()
    found: dict[str, tuple[TensorDiff, list[WindowPair], dict[str, str]]] = {}
    for name, view in state.left_b.items():
        for one in proved.get(numberless(name), ())[:MAX_TRIED]:
            olds = {old: renumbered(old, numbers(name)) for old in one.a if numbers(old) == numbers(one.b[0])}
            if len(olds) < len(one.a) or not _are_alike(state, olds, one.b[0], view):
                continue
            windows = {old: (state.a[old], state.a[other]) for old, other in olds.items()}
            moved = (_moved(pair, windows, (state.b[one.b[0]], view)) for pair in state.pairs[one.b[0]])
            found[name] = one, [pair for pair in moved if pair is not None], olds
            break
    changes = state.sides.changes([pairs for _, pairs, _ in found.values()])
    for (name, (one, pairs, olds)), change in zip(found.items(), changes, strict=True):
        for other in olds.values():
            state.use(other, [pair.a for pair in pairs if _holds(state.a[other], pair.a)])
        if not change.elements:  # constants, which the map of the other layers proves
            state.settle(one.kind, olds.values(), name, how=f"{one.how}, as {one.b[0]!r}", layout=one.layout)
            continue
        how = f"{one.how}, as {one.b[0]!r}, but for other numbers"
        change = change._replace(rows=(), row_count=0)  # those of the windows are no rows of the whole
        state.settle(CHANGED, olds.values(), name, how=how, layout=one.layout, change=change)


def _are_alike(state: Settled, olds: dict[str, str], proved: str, view: View) -> bool:
    """Whether the tensors of two layers have the same types and shapes, and those of the first are not all used."""
    if not all(other in state.left_a or (other in state.a and state.unread(other)) for other in olds.values()):
        return False
    pairs = [(state.b[proved], view), *((state.a[old], state.a[other]) for old, other in olds.items())]
    return all((one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides) for one, other in pairs)


def _moved(pair: CastPair, olds: dict[str, tuple[View, View]], news: tuple[View, View]) -> WindowPair | None:
    """The same windows on the tensors of another layer."""
    here = next((both for both in olds.values() if _holds(both[0], pair.a)), None)
    return None if here is None else WindowPair(_on(pair.a, *here), _on(pair.b, *news))


def _holds(whole: View, window: View) -> bool:
    return (
        whole.storage == window.storage
        and whole.byte_start <= window.byte_start
        and window.byte_stop <= whole.byte_stop
    )


def _on(window: View, whole: View, other: View) -> View:
    """A window on one tensor as that on another one of the same strides."""
    offset = window.offset - whole.offset + other.offset
    return View(other.storage, window.dtype, offset, window.shape, window.strides)
