"""What a diff says of a random pair, judged by NumPy alone.

A verdict is false if what it says of the elements is not so:
  same, renamed       other bytes, another type or shape, a name that A has for another tensor
  layout              elements that the tensors named do not have; rows, columns or runs that they do not have, where
                      these were found; other axes than the words say; elements in other places than the reference of
                      the layout that is named puts them
  cast, rounded       not the numbers of the other type, or not rounded to it; numbers that do not come back from a cast
  changed             the same bytes; a figure that NumPy counts otherwise
  removed, added      elements that are in a tensor of B, a name that both have
and the verdict on the pair is false if something was lost or changed, and is_same says that it was not.

A planted map that was not found is no false verdict: it is counted, and is a fault where docs/diff.md says that such a
map is found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from paramtool.commands.diff.diff import Diffed
from paramtool.model.diff import TensorDiff
from tests.laws.diff_trials.judge_maps import of_layouts, of_map
from tests.laws.diff_trials.pairs import Array, Arrays, Pair, bits, same_bytes

LOST = ("changed", "undecided", "added", "removed", "rounded")


class Judged(NamedTuple):
    """What is wrong with a diff, and which planted maps were not found."""

    false: list[str]
    missed: list[str]
    """The kinds of modules."""


def judged(pair: Pair, found: Diffed) -> Judged:
    """The faults of a diff of a pair."""
    a, b = pair.sides
    false = [*_of_names(pair, found)]
    for one in found.tensors:
        if {*one.a} <= a.keys() and {*one.b} <= b.keys():
            false += [f"{one.kind} of {', '.join(one.b or one.a)}: {text}" for text in _of_tensor(one, a, b)]
    false += of_layouts(pair, found)
    if pair.keeps is False and found.is_same:
        false.append("is_same of other weights")
    missed = []
    for kind, module in pair.modules:
        names = {*module.a, *module.b}
        lost = [one for one in found.tensors if one.kind in LOST and names.intersection((*one.a, *one.b))]
        if module.keeps and lost:
            missed.append(kind)
            if module.is_found:
                false += [f"{one.kind} of {(*one.b, *one.a)}, which was planted" for one in lost]
    if pair.keeps and not missed and not found.is_same and not found.doubts:
        false.append(f"is_same is false of the same weights: {(*found.ties, *found.objects)}")
    return Judged(false, missed)


def _of_names(pair: Pair, found: Diffed) -> Iterator[str]:
    """Names without a verdict, or with two."""
    a, b = pair.sides
    objects = {*pair.objects[0], *pair.objects[1]}
    names = [name for one in found.tensors for name in one.b if name not in objects]
    if sorted(name for name in names if name in b) != sorted(b):
        yield "not one verdict for each tensor of B"
    told = {name for one in found.tensors for name in one.a}
    if a.keys() - told:
        yield f"no verdict on {sorted(a.keys() - told)} of A"


def _of_tensor(one: TensorDiff, a: Arrays, b: Arrays) -> Iterator[str]:
    """What is false of one verdict."""
    olds, news = [a[name] for name in one.a], [b[name] for name in one.b]
    match one.kind:
        case "same" | "renamed":
            if not same_bytes(olds[0], news[0]) or (one.kind == "same") != (one.a == one.b):
                yield "other bytes or names"
            if one.kind == "renamed" and one.b[0] in a and not same_bytes(a[one.b[0]], news[0]):
                yield "A has the name for another tensor"
        case "layout" if news and olds:
            yield from of_map(one, olds, news[0])
        case "layout" if "copies of equal rows" in one.how:
            yield from _of_copies(olds[0], a, b)
        case "layout":
            if "constants" not in one.how or len(np.unique((news or olds)[0])) > 1:
                yield "no constant"
        case "cast" | "rounded":
            yield from _of_types(one, olds, news[0])
        case "changed":
            yield from _of_change(one, olds, news[0])
        case "removed":
            yield from _of_removed(one, olds[0], b)
        case "added":
            if one.b[0] in a and a[one.b[0]].shape == news[0].shape:
                yield "A has this name"
        case _:
            yield "no verdict"


def _of_copies(old: Array, a: Arrays, b: Arrays) -> Iterator[str]:
    """Rows, or columns, of A that B does not have as often."""
    for turned in (False, True):
        mine, theirs = (Counter(row for one in side.values() for row in _rows(one, turned)) for side in (a, b))
        if all(theirs[row] >= mine[row] for row in _rows(old, False)):
            return
    yield "fewer copies than A has"


def _rows(one: Array, turned: bool) -> list[bytes]:
    rows = one.reshape(len(one), one.size // max(1, len(one))) if one.ndim else one.reshape(1, 1)
    return [row.tobytes() for row in (rows.T if turned else rows)]


def _of_types(one: TensorDiff, olds: list[Array], new: Array) -> Iterator[str]:
    """Numbers of another type that are others."""
    if one.how:  # rows that were cast
        if not all(np.isin(bits(new), np.concatenate([bits(old.astype(new.dtype)) for old in olds]))):
            yield "elements that A does not have"
        return
    (old,) = olds
    with np.errstate(all="ignore"):
        there = old.shape == new.shape and same_bytes(old.astype(new.dtype), new)
        back = old.shape == new.shape and same_bytes(new.astype(old.dtype), old)
        numbers = bool((old == new).all()) if old.dtype.kind in "iub" and new.dtype.kind in "iub" else True
    if old.dtype == new.dtype or not (there or back) or (one.kind == "cast" and not (there and back and numbers)):
        yield "not that cast"


def _of_change(one: TensorDiff, olds: list[Array], new: Array) -> Iterator[str]:
    """No change, or another one than the figures say."""
    if "but for other numbers" in one.how:  # by the map of another layer
        yield from _of_layers(one, olds, new)
        return
    if len(olds) != 1 or olds[0].shape != new.shape:
        return
    old, change = olds[0], one.change
    if same_bytes(old, new) and "does not follow" not in one.how:
        yield "the same bytes"
    if change is None:
        return
    with np.errstate(all="ignore"):
        wide = "c16" if "c" in (old.dtype.kind, new.dtype.kind) else "f8"
        x, y = old.astype(wide), new.astype(wide)
        nans = np.isnan(x) & np.isnan(y)
        apart = np.where((x == y) | nans, 0, np.abs(x - y))
        if {old.dtype.kind, new.dtype.kind} <= {*"iu"}:  # float64 has no odd numbers above 2 ** 53
            apart = np.asarray(abs(old.astype(object) - new.astype(object)), "f8")
        apart[np.isnan(apart)] = np.inf
        differs = apart != 0
        if old.dtype == new.dtype:
            differs |= (bits(old).reshape(-1, max(1, bits(old).size // max(1, old.size)))
                        != bits(new).reshape(-1, max(1, bits(new).size // max(1, new.size)))).any(1).reshape(
                            old.shape)  # fmt: skip
    if (change.elements, change.numel) != (int(differs.sum()), old.size):
        yield f"{change.elements} of {change.numel} elements; NumPy counts {int(differs.sum())}"
    if change.largest is not None and not np.isclose(change.largest, apart.max(initial=0), rtol=1e-12, equal_nan=True):
        yield f"largest difference {change.largest}; NumPy has {apart.max(initial=0)}"
    lonely = tuple(int((np.isnan(one) & ~np.isnan(other)).sum()) for one, other in ((x, y), (y, x)))
    if change.largest is not None and (change.nan_only_a, change.nan_only_b) != lonely:
        yield f"{change.nan_only_a} and {change.nan_only_b} elements are NaN in one only; NumPy counts {lonely}"
    rows = differs.reshape(differs.shape[0], -1).any(1) if differs.ndim else differs.reshape(1)
    if change.row_count != int(rows.sum()):
        yield f"{change.row_count} rows; NumPy counts {int(rows.sum())}"


def _of_layers(one: TensorDiff, olds: list[Array], new: Array) -> Iterator[str]:
    """More elements that are not in A than the figures say, or none that differs."""
    change = one.change
    if change is None or not 0 < change.elements <= change.numel == new.size:
        yield "no figures of a change"
    elif len({old.dtype for old in olds} | {new.dtype}) == 1:
        own = bits(new)
        lost = ~np.isin(own, np.concatenate([bits(old) for old in olds]))
        if int(lost.reshape(new.size, -1).any(1).sum()) > change.elements:
            yield f"{change.elements} elements; NumPy counts {int(lost.sum())} that A does not have"


def _of_removed(one: TensorDiff, old: Array, b: Arrays) -> Iterator[str]:
    """Elements that are called lost: as many as are in no tensor of B at least, if each is there once."""
    if (told := re.match(r"(\d+) of (\d+) elements? in no tensor", one.how)) is None:
        if one.a[0] in b and same_bytes(b[one.a[0]], old):
            yield "B has it"
        return
    own = bits(old)
    there = np.concatenate([bits(new) for new in b.values() if new.dtype == old.dtype] or [own[:0]])
    lost = int((~np.isin(own, there) & (own != 0)).sum())  # biases of zero can be left out
    if int(told[2]) != old.size or int(told[1]) < lost:
        yield f"{one.how}; NumPy finds {lost}"
