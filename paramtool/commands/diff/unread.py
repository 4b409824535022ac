"""Tensors that no bytes can be compared of: those without data, and those that paramtool cannot read."""

from __future__ import annotations

from paramtool.commands.diff.settled import Settled
from paramtool.model.checkpoint import GRAPH, Entry, NoData, Unreadable, Value
from paramtool.model.diff import ADDED, CHANGED, REMOVED, SAME, UNDECIDED, TensorDiff
from paramtool.model.view import View


def unread(state: Settled) -> None:
    """A verdict on each name that has no bytes in one of the two; after all others."""
    a, b = (one.entries for one in state.checkpoints)
    for name in dict.fromkeys((*b, *a)):
        old, new = a.get(name), b.get(name)
        if not (_why(old) or _why(new)):
            continue
        if new is None:
            state.gone.append(_verdict(state, name, old, new))
        elif old is None:
            state.found[name] = _verdict(state, name, old, new)
        elif name not in state.found or state.found[name].kind == ADDED:  # another tensor of A can have B's bytes
            state.gone = [one for one in state.gone if (one.kind, one.a) != (REMOVED, (name,))]
            state.found[name] = _verdict(state, name, old, new)


def _verdict(state: Settled, name: str, old: Entry | None, new: Entry | None) -> TensorDiff:
    """The verdict on a name, by what each of the two has under it."""
    entries = [one for one in (old, new) if one is not None]
    values = [one.value for one in entries]
    kind = ADDED if old is None else REMOVED
    if len(values) == 2:
        is_unread = any(isinstance(value, Unreadable) for value in values)
        is_same = values[0] == values[1] and (not is_unread or state.sides.are_same_files())
        kind = SAME if is_same else UNDECIDED if is_unread else CHANGED
    if kind != SAME and all(one.role == GRAPH for one in entries):
        kind = GRAPH
    said = [(_why(old), "A"), (_why(new), "B")]
    whys = dict.fromkeys(why for why, _ in said if why)
    how = ", ".join(f"{why} in {' and '.join(side for one, side in said if one == why)}" for why in whys)
    one, other = (_form(entry.value if entry else None) for entry in (old, new))
    return TensorDiff(
        kind, (name,) if old else (), (name,) if new else (), (one[0], other[0]), (one[1], other[1]),
        how="" if kind == SAME else how,
    )  # fmt: skip


def _why(entry: Entry | None) -> str:
    """Why a tensor has no bytes to compare; "" where it has."""
    match entry.value if entry else None:
        case NoData(why=why):
            return f"no data ({why})"
        case Unreadable(needs=needs):
            return f"not read (needs {needs})"
    return ""


def _form(value: Value | None) -> tuple[str, tuple[int, ...] | None]:
    """The type and the shape, where both are known."""
    return (value.dtype.name, value.shape) if isinstance(value, View | NoData) else ("", None)
