"""What a variant of a model wants, as names with their windows on the variant's own memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paramtool.model import alias
from paramtool.model.checkpoint import PENDING, Checkpoint, Compound, NoData, Value
from paramtool.model.view import View, contiguous


@dataclass(frozen=True, slots=True)
class Wanted:
    """One name that a variant wants."""

    memory: str
    """The first name of its memory: names of one memory whose windows overlap are tied."""
    view: View | None = None
    """Its dtype and shape, and where it lies in the variant's own memory; None where only its name is known."""
    kind: str = ""
    """The kind of a compound tensor, such as `quantized`; empty for a plain one."""


def wanted_by(checkpoint: Checkpoint) -> Mapping[str, Wanted]:
    """What a checkpoint holds, taken as what somebody wants."""
    members = alias.build(checkpoint, parts=False).members
    found = {}
    for name, entry in checkpoint.entries.items():
        if name in members:
            found[name] = Wanted(members[name].memory, members[name].window)
        else:
            found[name] = _without_window(name, entry.value)
    return found


def _without_window(name: str, value: Value) -> Wanted:
    """A name that is no plain window: its dtype and shape where it has one of each, else its kind."""
    match value:
        case NoData(dtype, shape):
            return Wanted(name, contiguous(name, dtype, shape))
        case Compound(kind, parts) if kind in PENDING:
            return Wanted(name, contiguous(name, parts["data"].dtype, parts["data"].shape))
        case Compound(kind):
            return Wanted(name, kind=kind)
    return Wanted(name)
