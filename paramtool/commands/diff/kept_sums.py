"""Biases of a recurrent network that both checkpoints have in one layout: sums that are kept, or a forget bias more.

A  bias_ih 0.2, bias_hh 0.3     B  bias_ih 0, bias_hh 0.5        the same sums
A  forget gate of bias_hh 0.3   B  forget gate of bias_hh 1.3    a forget bias
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.commands.diff.explained import Explained
from paramtool.commands.diff.settled import Settled
from paramtool.engine.compare.shifted import are_one, is_floating, rounded, shift_of
from paramtool.engine.read.elements import number_type
from paramtool.engine.read.source import Source
from paramtool.layouts.networks import Network, as_stored
from paramtool.layouts.spec import Cell
from paramtool.model.diff import LED_BACK
from paramtool.model.dtype import DType
from paramtool.model.view import Views

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BIASES = {"bW", "bR"}


class _Reason(NamedTuple):
    """What explains that the biases of a gate differ."""

    is_summed: bool = False
    """Whether they have the same sum."""
    shift: int = 0
    """What is added to a forget gate: 1 or -1."""


def kept_sums(state: Settled) -> Iterator[Explained]:
    """Biases without a verdict of networks whose other tensors have one."""
    for mine in (one.network for one in state.networks[0]):
        for theirs in (one.network for one in state.networks[1]):
            if not _are_alike(mine, theirs):
                continue
            names = [(mine.tensors[own], theirs.tensors[own]) for own in mine.tensors]
            left = [pair for pair in names if _is_left(state, *pair)]
            if not left or not all(_is_found(state, *pair) for pair in names if pair not in left):
                continue
            if why := _why(state, mine, theirs, {old for old, _ in left}):
                yield from (Explained((old,), new, f"{why}, {mine.layout.name}", mine.layout.name) for old, new in left)


def _are_alike(mine: Network, theirs: Network) -> bool:
    """Whether two networks have one layout and one spec; and none of their tensors is read from elsewhere."""
    return (
        (mine.layout.name, mine.options, mine.spec) == (theirs.layout.name, theirs.options, theirs.spec)
        and mine.tensors.keys() == theirs.tensors.keys()
        and not mine.raw
        and not theirs.raw
    )


def _is_left(state: Settled, old: str, new: str) -> bool:
    return old in state.left_a and new in state.left_b and state.a[old].shape == state.b[new].shape


def _is_found(state: Settled, old: str, new: str) -> bool:
    one = state.found.get(new)
    return one is not None and one.kind in LED_BACK and one.a == (old,)


def _why(state: Settled, mine: Network, theirs: Network, left: set[str]) -> str:
    """What explains that two networks differ in their biases, in words; "" where nothing does."""
    own = {name for tensor, name in mine.tensors.items() if name in left}
    if any(not tensor.row.kinds() <= BIASES for tensor in mine.stored() if mine.tensors[tensor.name] in own):
        return ""
    a, b = _biases(mine, state.a, state.sides.a.source), _biases(theirs, state.b, state.sides.b.source)
    found = set()
    for cell, numbers in a.items():
        is_split = mine.spec.kind == "gru" and cell.gate == "n" and mine.spec.reset != "before"  # they are not summed
        reason = _of_gate(numbers, b.get(cell, []), is_forget=cell.gate == "f", is_split=is_split)
        if reason is None:
            return ""
        found.add(reason)
    shifts = {one.shift for one in found if one.shift}
    if len(shifts) > 1:
        return ""
    parts = ["sums of biases, which are the same"] if any(one.is_summed for one in found) else []
    parts += [f"a number that is added (a forget bias): {shift:+d}".replace("+", "+ ").replace("-", "- ")
              for shift in shifts]  # fmt: skip
    return f"explained by {', and '.join(parts)}" if parts else ""


def _biases(network: Network, views: Views, source: Source) -> dict[Cell, list[tuple[DType, Array]]]:
    """{gate of a layer and direction: its biases in their type}"""
    found: dict[Cell, list[tuple[DType, Array]]] = {}
    for tensor in network.stored():
        if not tensor.row.kinds() & BIASES:
            continue
        view = as_stored(views[network.tensors[tensor.name]], tensor.shape)
        source.prove(int(view.storage))
        for place in tensor.places(view):
            cells = [cell for _, cell in place.terms if cell.kind in BIASES]
            if cells:
                numbers = source.array(place.view).all().view(number_type(view.dtype)).reshape(-1)
                found.setdefault(cells[0]._replace(kind=""), []).append((view.dtype, numbers))
    return found


def _of_gate(
    a: list[tuple[DType, Array]], b: list[tuple[DType, Array]], *, is_forget: bool, is_split: bool
) -> _Reason | None:
    """What explains that the biases of a gate differ, if they do; None where nothing does."""
    dtypes = {dtype for dtype, _ in (*a, *b)}
    if len(a) != len(b) or len(dtypes) != 1 or not is_floating(dtype := next(iter(dtypes))):
        return None
    other = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True) if x.tobytes() != y.tobytes()]
    if not other:
        return _Reason()
    if is_split:
        return None
    x, y = _sum(a), _sum(b)
    if are_one(x, y, dtype):
        return _Reason(is_summed=True)
    if not is_forget:
        return None
    if len(other) == 1:  # one bias alone has its own rounding
        x, y = (one.astype("f8") for one in other[0])
    ways = ((x, y), (rounded(x, dtype), y), (x, rounded(y, dtype)))  # the sum may have been rounded before
    shift = next((shift for p, q in ways if (shift := shift_of(p, q, dtype, dtype))), 0)
    return _Reason(is_summed=len(other) > 1, shift=shift) if shift else None


def _sum(parts: list[tuple[DType, Array]]) -> Array:
    import numpy as np

    found: Array = np.sum([one.astype("f8") for _, one in parts], axis=0)
    return found
