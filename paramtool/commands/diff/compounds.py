"""What the windows of two checkpoints do not show: facts of compound tensors, and signs that are pending.

A quantised tensor has a scale, a sparse one a dense shape, and torch's lazy conjugate is the window of another tensor:
by their bytes alone, different numbers would be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paramtool.engine.compare.changes import Measure
from paramtool.engine.compare.sides import Sides
from paramtool.errors import some
from paramtool.model import quantised
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, pending
from paramtool.model.diff import ADDED, CAST, CHANGED, LAYOUT, REMOVED, RENAMED, SAME, TensorDiff
from paramtool.model.view import View

MAX_VALUE = 40
"""Characters of a fact that are shown."""


def pending_signs(a: Checkpoint, b: Checkpoint) -> frozenset[str]:
    """Names that have a pending sign in one of the two and not the same one in the other."""
    names = (name for side in (a, b) for name, entry in side.entries.items() if pending(entry.value))
    return frozenset(name for name in names if _sign(a.entries.get(name)) != _sign(b.entries.get(name)))


def labelled(checkpoint: Checkpoint, without: frozenset[str]) -> dict[str, View]:
    """{name: window}, of compounds `name/part`, without some names; parts never take the name of a tensor."""
    found: dict[str, View] = {}
    for name, entry in checkpoint.entries.items():
        if name in without:
            continue
        if isinstance(entry.value, View):
            found[name] = entry.value
        elif isinstance(entry.value, Compound):
            for part, view in entry.value.parts.items():
                label = f"{name}/{part}"
                while label in checkpoint.entries or label in found:
                    label += "/"
                found[label] = view
    return found


def compounds(a: Checkpoint, b: Checkpoint, signed: frozenset[str], sides: Sides) -> Iterator[TensorDiff]:
    """A verdict on each compound whose facts differ, and on each name with another pending sign."""
    for name, entry in b.entries.items():
        other = a.entries.get(name)
        if name in signed:
            yield _of_sign(name, other, entry, sides)
        elif isinstance(entry.value, Compound) and other is not None and (how := _facts(other, entry.value)):
            yield TensorDiff(CHANGED, (name,), (name,), how=how)
    for name in signed - b.entries.keys():
        yield TensorDiff(REMOVED, (name,), (), how="with a pending sign")


def other_scales(a: Checkpoint, b: Checkpoint, found: Sequence[TensorDiff]) -> Iterator[TensorDiff]:
    """Codes of quantised weights that are the same under scales that are not: other weights."""
    groups = [quantised.groups(side.entries) for side in (a, b)]
    if not any(groups):
        return
    same = [one for one in found if one.kind in (SAME, RENAMED, LAYOUT, CAST)]
    alike = {name for one in same for name in one.a}, {name for one in same for name in one.b}
    for one in same:
        others = {
            name
            for side, names, there in zip(groups, (one.a, one.b), alike, strict=True)
            for codes in names
            for name in side.get(codes, {}).keys() - there
            if not name.endswith(quantised.OF_OTHERS)
        }
        if others:
            how = f"the same codes, and other {some(sorted(others), 2)}"
            yield replace(one, kind=CHANGED, how=f"{one.how}, {how}" if one.how else how)


def _facts(old: Entry, new: Compound) -> str:
    """What differs between the facts of two compounds, in words; "" where nothing does."""
    if not isinstance(old.value, Compound):
        return f"is {new.kind} in B only"
    if old.value.kind != new.kind:
        return f"{old.value.kind} in A, {new.kind} in B"
    keys = sorted({*old.value.facts, *new.facts})
    return ", ".join(
        f"{key} is {_short(old.value.facts.get(key))} in A and {_short(new.facts.get(key))} in B"
        for key in keys
        if _word(old.value.facts.get(key)) != _word(new.facts.get(key))
    )


def _word(value: object) -> str:
    """A value as text; a NaN equals a NaN."""
    return repr(dict(value)) if isinstance(value, Mapping) else repr(value)


def _short(value: object) -> str:
    text = _word(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."


def _of_sign(name: str, old: Entry | None, new: Entry, sides: Sides) -> TensorDiff:
    """The verdict on a name whose sign is pending in one of the two: by the numbers that it stands for."""
    if old is None:
        return TensorDiff(ADDED, (), (name,), how="with a pending sign")
    one, other = _signed_view(old), _signed_view(new)
    if one is None or other is None or (one[0].dtype, one[0].shape) != (other[0].dtype, other[0].shape):
        return TensorDiff(CHANGED, (name,), (name,), how="a pending sign in one of the two, another type or shape")
    numbers = _carried_out(*one, sides.a.source), _carried_out(*other, sides.b.source)
    views = one[0], other[0]
    said = TensorDiff(
        SAME,
        (name,),
        (name,),
        (views[0].dtype.name, views[1].dtype.name),
        (views[0].shape, views[1].shape),
        how="a pending sign is carried out in one of the two",
        nbytes=views[1].nbytes,
    )
    if numbers[0].tobytes() == numbers[1].tobytes():
        return said
    measure = Measure()
    measure.add_numbers(*numbers)
    return replace(said, kind=CHANGED, how="with its pending sign carried out", change=measure.change())


def _signed_view(entry: Entry) -> tuple[View, str] | None:
    if sign := pending(entry.value):
        return sign[1], sign[0]
    return (entry.value, "") if isinstance(entry.value, View) else None


def _carried_out(view: View, sign: str, source: Any) -> Any:
    import numpy as np

    from paramtool.engine.read.elements import number_type

    found = source.array(view).all().view(number_type(view.dtype))
    found = np.conj(found) if "conj" in sign else found
    return np.ascontiguousarray(-found if "neg" in sign else found)


def _sign(entry: Entry | None) -> str:
    sign = pending(entry.value) if entry is not None else None
    return sign[0] if sign else ""
