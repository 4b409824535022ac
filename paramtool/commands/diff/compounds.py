"""What the windows of two checkpoints do not show: facts of compound tensors, and signs that are pending.

A quantised tensor has a scale, a sparse one a dense shape, and torch's lazy conjugate is the window of another tensor:
by their bytes alone, different numbers would be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paramtool.commands._value_facts import differences, known, of_codes, of_header
from paramtool.engine.compare.changes import Measure
from paramtool.engine.compare.sides import Sides
from paramtool.errors import PlanError, some
from paramtool.formats.record.moved import with_tensors
from paramtool.model import quantised
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, pending
from paramtool.model.diff import (
    ADDED,
    CHANGED,
    DEQUANTISED,
    LAYOUT,
    LED_BACK,
    REMOVED,
    RENAMED,
    ROUNDED,
    SAME,
    SAME_BYTES,
    UNDECIDED,
    TensorDiff,
)
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.commands.diff.settled import Settled


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


def compounds(state: Settled) -> Iterator[TensorDiff]:
    """Verdicts on what the bytes of tensors do not show: facts of compounds, entries of headers, pending signs.

    A compound is compared with the one that its parts are made of; where there is none, and all its parts are found,
    the bytes are the same and what they stand for is undecided.
    """
    a, b = state.checkpoints
    old, new = known(a), known(b)
    owners = {f"{name}/{part}": name for name in old for part in a.entries[name].value.parts}  # type: ignore[union-attr]
    paired = set()
    for name, facts in new.items():
        rows = [state.found.get(f"{name}/{part}") for part in b.entries[name].value.parts]  # type: ignore[union-attr]
        olds = {owners.get(one.a[0], "") for one in rows if one is not None and one.a}
        other = name if name in old else olds.pop() if len(olds) == 1 else ""
        paired.add(other)
        if other and (how := differences(old[other], facts)):
            yield TensorDiff(CHANGED, (other,), (name,), how=how)
        elif not other and all(one is not None and one.kind in LED_BACK for one in rows):
            yield TensorDiff(UNDECIDED, (), (name,), how=SAME_BYTES)
    gone = {one.a for one in state.gone}
    for name in old.keys() - paired:
        if not any((f"{name}/{part}",) in gone for part in a.entries[name].value.parts):  # type: ignore[union-attr]
            yield TensorDiff(UNDECIDED, (name,), (), how=SAME_BYTES)
    heads = of_header(_renamed(state)), of_header(state.as_made[1])
    for key in {**heads[1], **heads[0]}:
        if key not in heads[0] or key not in heads[1]:
            sides = [(key,) if key in head else () for head in heads]
            yield TensorDiff(UNDECIDED, sides[0], sides[1], how=f"{SAME_BYTES}: an entry of the header")
        elif how := differences(heads[0][key], heads[1][key]):
            yield TensorDiff(CHANGED, (key,), (key,), how=f"by the header, {how}")
    for name, entry in b.entries.items():
        if name in state.signed:
            yield _of_sign(name, a.entries.get(name), entry, state.sides)
    for name in state.signed - b.entries.keys():
        yield TensorDiff(REMOVED, (name,), (), how="with a pending sign")


def _renamed(state: Settled) -> Checkpoint:
    """The first checkpoint with the names of the second in its header, where every tensor has one there."""
    a = state.as_made[0]
    pairs = [(one.a[0], name) for name, one in state.found.items() if one.kind in (SAME, RENAMED) and len(one.a) == 1]
    names = dict(pairs)
    if all(old == new for old, new in names.items()):
        return a
    try:
        metadata = with_tensors(a.path, a.metadata, names)
    except PlanError:
        return a
    return replace(a, metadata=metadata, entries={names.get(old, old): entry for old, entry in a.entries.items()})


def other_scales(a: Checkpoint, b: Checkpoint, found: Sequence[TensorDiff]) -> Iterator[TensorDiff]:
    """Codes of quantised weights that are the same under scales, or a config, that are not: other weights."""
    how, (mine, theirs) = of_codes(a, b)
    for one in found if how else ():
        if one.kind in LED_BACK and one.kind != DEQUANTISED and mine.issuperset(one.a) and theirs.issuperset(one.b):
            kind = UNDECIDED if how.startswith(SAME_BYTES) else CHANGED
            yield replace(one, kind=kind, how=f"{one.how}, {how}" if kind == CHANGED and one.how else how)
    groups = [quantised.groups(side.entries) for side in (a, b)]
    if not any(groups):
        return
    same = [one for one in found if one.kind in LED_BACK and one.kind != ROUNDED]
    there = _places([(one.a, one.b) for one in same], b), _places([(one.b, one.a) for one in same], a)
    mine, theirs = (quantised.parts(side) - side.keys() for side in groups)
    for one in same:
        is_scale = len(one.a) == 1 == len(one.b) and not mine.isdisjoint(one.a) and not theirs.isdisjoint(one.b)
        is_moved = one.kind == LAYOUT and not one.layout and one.shapes[0] != one.shapes[1]
        if is_scale and is_moved and max(one.shapes[1] or (1,)) > 1:
            yield replace(one, kind=UNDECIDED, how=f"{one.how}, a scale of another shape")
    for one in same:
        beside = [
            {name for codes in names for name in side.get(codes, ()) if not name.endswith(quantised.CACHES)}
            for side, names in zip(groups, (one.a, one.b), strict=True)
        ]
        gone = (name for names, at in zip(beside, there, strict=True) for name in names - at.keys())
        if others := {name for name in gone if not name.endswith(quantised.OF_OTHERS)}:
            how = f"the same codes, and other {some(sorted(others), 2)}"
        elif one.kind != DEQUANTISED and (
            parted := {
                name
                for names, at, others in zip(beside, there, beside[::-1], strict=True)
                for name in names
                if at.get(name) and at[name].isdisjoint(others)
            }
        ):
            how = f"the same codes, parted from {some(sorted(parted), 2)}"
        else:
            continue
        yield replace(one, kind=CHANGED, how=f"{one.how}, {how}" if one.how else how)


def _places(pairs: Iterable[tuple[Sequence[str], Sequence[str]]], other: Checkpoint) -> dict[str, set[str]]:
    """{name in one checkpoint: the names in the other that have its numbers}, none where they are in a compound"""
    found: dict[str, set[str]] = {}
    for names, others in pairs:
        for name in names:
            found.setdefault(name, set()).update(other.entries.keys() & others)
    return found


def _of_sign(name: str, old: Entry | None, new: Entry, sides: Sides) -> TensorDiff:
    """The verdict on a name whose sign is pending in one of the two: by the numbers that it stands for."""
    if old is None:
        return TensorDiff(ADDED, (), (name,), how="with a pending sign")
    one, other = _signed_view(old), _signed_view(new)
    if one is None or other is None or (one[0].dtype, one[0].shape) != (other[0].dtype, other[0].shape):
        return TensorDiff(CHANGED, (name,), (name,), how="a pending sign in one of the two, another type or shape")
    numbers = [_carried_out(*both, source) for both, source in zip((one, other), sides.sources, strict=True)]
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

    found = source.numbers(view).all()
    found = np.conj(found) if "conj" in sign else found
    return np.ascontiguousarray(-found if "neg" in sign else found)


def _sign(entry: Entry | None) -> str:
    sign = pending(entry.value) if entry is not None else None
    return sign[0] if sign else ""
