"""What a variant of a model wants: names, with their alias sets and windows as far as these are known."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.checkpoint import PENDING, SHARDED, Checkpoint, Compound, NoData, Unreadable, Value
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous


@frozen
class Wanted:
    """One name that a variant wants."""

    alias_set: str
    """The first name of its alias set; names of one alias set whose windows overlap are tied."""
    view: View | None = None
    """Its dtype and shape, and its window on the alias set; None where only its name is known."""
    kind: str = ""
    """The kind of a compound tensor, such as `quantized`; empty for a plain one."""


def wanted_by(checkpoint: Checkpoint) -> Mapping[str, Wanted]:
    """The tensors of a checkpoint as what a variant wants; arrays beside the weights are left out."""
    members = alias.build(checkpoint, parts=False).names
    found = {}
    for name, entry in checkpoint.entries.items():
        if entry.role == "other":
            continue
        if name in members:
            found[name] = Wanted(members[name].alias_set, members[name].window)
        else:
            found[name] = _without_window(name, entry.value)
    return found


def _without_window(name: str, value: Value) -> Wanted:
    """A name that is not a plain window: its dtype and shape where it has a single one, else its kind."""
    match value:
        case NoData(dtype, shape):
            return Wanted(name, contiguous(name, dtype, shape))
        case Compound(kind, parts) if kind in PENDING:
            return Wanted(name, contiguous(name, parts["data"].dtype, parts["data"].shape))
        case Compound():
            return Wanted(name, kind=kind_of(value))
    return Wanted(name)


def plain_window(value: Value) -> View | None:
    """The window of a plain tensor, or of a tensor whose sign is still pending; None for any other."""
    if isinstance(value, Compound):
        return value.parts["data"] if value.kind in PENDING else None
    return value if isinstance(value, View) else None


def kind_of(value: Value) -> str:
    """The kind of a tensor that is not a plain window, for people."""
    match value:
        case Compound(kind=kind, facts=facts):
            return "one rank's part of it" if SHARDED in facts else kind
        case NoData(why=why):
            return f"without data ({why})"
        case Unreadable(needs=needs):
            return f"unreadable (needs {needs})"
    return "plain"


PAIRS = "float4_e2m1fn_x2"


def as_pairs(view: View) -> View:
    """float4 as torch counts it: two elements as one, along the last axis."""
    if view.dtype.name != "float4_e2m1fn" or not view.shape or view.shape[-1] % 2:
        return view
    shape = (*view.shape[:-1], view.shape[-1] // 2)
    return contiguous(view.storage, DTYPES[PAIRS], shape, view.byte_start)


def covers(outer: View | None, inner: View | None) -> bool:
    """Whether filling `outer` fills all of `inner`."""
    if outer is None or inner is None or outer.storage != inner.storage:
        return False
    dense = outer.is_injective and outer.nbytes == outer.byte_stop - outer.byte_start
    return outer == inner or (dense and outer.byte_start <= inner.byte_start and inner.byte_stop <= outer.byte_stop)
