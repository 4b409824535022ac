"""What a diff says of a random pair, judged by NumPy alone.

A verdict is false if what it says of the elements is not so:
  same, renamed       other bytes, another type or shape, a name that A has for another tensor
  layout              elements that the tensors named do not have; rows or columns that they do not have, where these
                      were found; elements in other places than the reference of the layout that is named puts them
  cast, rounded       not the numbers of the other type, or not rounded to it; numbers that do not come back from a cast
  changed             the same bytes; a figure that NumPy counts otherwise
  removed, added      elements that are in a tensor of B, a name that both have
and the verdict on the pair is false if something was lost or changed, and is_same() says that it was not.

A planted map that was not found is no false verdict: it is counted, and is a fault where docs/diff.md says that such a
map is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from paramtool.commands.diff import Diffed
from paramtool.model.diff import TensorDiff
from tests.laws.diff_trials.kinds_parts import rebuilt
from tests.laws.diff_trials.pairs import Array, Arrays, Module, Pair, Planted, bits, same_bytes
from tests.parts.references import REFERENCES

LOST = ("changed", "undecided", "added", "removed", "rounded")
MIN_LINE_NBYTES = 32


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
    false += _of_layouts(pair, found)
    if pair.keeps is False and found.is_same():
        false.append("is_same() of other weights")
    missed = []
    for kind, module in pair.modules:
        names = {*module.a, *module.b}
        lost = [one for one in found.tensors if one.kind in LOST and names.intersection((*one.a, *one.b))]
        if module.keeps and lost:
            missed.append(kind)
            if module.is_found:
                false += [f"{one.kind} of {(*one.b, *one.a)}, which was planted" for one in lost]
    if pair.keeps and not missed and not found.is_same():
        false.append(f"is_same() is false of the same weights: {(*found.ties, *found.objects)}")
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
            yield from _of_map(one, olds, news[0])
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


def _of_map(one: TensorDiff, olds: list[Array], new: Array) -> Iterator[str]:
    """Elements that are not those of the tensors named; rows that are none of theirs, where rows were found."""
    is_signed = "negated" in one.how or "with a sign" in one.how
    here = np.concatenate([bits(old) for old in olds] + ([bits(-old) for old in olds] if is_signed else []))
    if "with constants" in one.how:  # biases of zero in a vector of the whole network
        here = np.append(here, here.dtype.type(0))
    if any(old.dtype != new.dtype for old in olds) or not np.isin(bits(new), here).all():
        yield "elements that A does not have"
    elif one.how == "reshaped" and bits(new).tobytes() != bits(olds[0]).tobytes():
        yield "not in the same order"
    elif not one.layout and one.how != "reshaped" and ", as '" not in one.how and not _are_lines(one.how, olds, new):
        yield "rows or columns that A does not have"


def _are_lines(how: str, olds: list[Array], new: Array) -> bool:
    """Whether the rows of a tensor, or its columns, cut at one of its axes, are rows or columns of others."""
    new = -new if "negated" in how else new
    theirs = [line for old in olds for cut in _cuts(old) for line in cut]
    there = {line.tobytes() for line in theirs}
    return any(all(line.tobytes() in there for line in cut) for cut in _cuts(new))


def _cuts(array: Array) -> Iterator[Array]:
    """An array as matrices whose rows have some bytes, cut at each of its axes, and their transposes."""
    for axis in range(1, array.ndim):
        width = int(np.prod(array.shape[axis:]))
        matrix = np.ascontiguousarray(array).reshape(-1, width)
        for cut in (matrix, np.ascontiguousarray(matrix.T)):
            if cut.shape[1] * array.itemsize >= MIN_LINE_NBYTES:
                yield cut


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
        apart[np.isnan(apart)] = np.inf
        differs = apart != 0
        if old.dtype == new.dtype:
            differs |= (bits(old).reshape(-1, max(1, bits(old).size // max(1, old.size)))
                        != bits(new).reshape(-1, max(1, bits(new).size // max(1, new.size)))).any(1).reshape(
                            old.shape) & ~nans  # fmt: skip
    if (change.elements, change.numel) != (int(differs.sum()), old.size):
        yield f"{change.elements} of {change.numel} elements; NumPy counts {int(differs.sum())}"
    if change.largest is not None and not np.isclose(change.largest, apart.max(initial=0), rtol=1e-12, equal_nan=True):
        yield f"largest difference {change.largest}; NumPy has {apart.max(initial=0)}"
    rows = differs.reshape(differs.shape[0], -1).any(1) if differs.ndim else differs.reshape(1)
    if change.row_count != int(rows.sum()):
        yield f"{change.row_count} rows; NumPy counts {int(rows.sum())}"


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


def _of_layouts(pair: Pair, found: Diffed) -> Iterator[str]:
    """Layouts that are named of fused tensors, or of parts, and that make other tensors of these parts."""
    for _, module in pair.modules:
        planted = module.planted
        if planted is None or planted.side is None:
            continue
        for one in found.tensors:
            if one.kind == "layout" and one.layout in REFERENCES and {*one.b} <= module.b.keys():
                told = _of_layout(one, module, planted)
                if told and planted.moved:
                    other = planted._replace(parts=planted.moved, side=1 - planted.side)
                    told = _of_layout(one, module, other)
                if told:
                    yield told


def _of_layout(one: TensorDiff, module: Module, planted: Planted) -> str:
    """A fused tensor and its parts: what is wrong, if the reference of the layout puts other elements there."""
    if " -> " in one.how or ", as '" in one.how:
        return ""
    parts = [name for own in planted.parts.values() for name in (own if isinstance(own, list) else [own])]
    apart, other = (module.a, module.b)[:: -1 if planted.side else 1]
    wanted, fused = (one.a, one.b)[:: -1 if planted.side else 1]
    if len(fused) != 1 or not {*wanted} <= {*parts} or not {*parts} <= apart.keys():
        return "" if not planted.moved else "not these parts"
    said = {word: int(size) for word, size in re.findall(r"(\w+)=(\d+)", one.how)}
    sizes = {**planted.sizes, "chunks": 1, **said}
    sizes["key_heads"] = sizes["linear_key_heads"]
    starts = dict(zip(parts, np.cumsum([0, *(apart[name].size for name in parts)]), strict=False))
    numbers = {name: starts[name] + np.arange(apart[name].size).reshape(apart[name].shape) for name in parts}
    labels = {term: [numbers[name] for name in own] if isinstance(own, list) else numbers[own]
              for term, own in planted.parts.items()}  # fmt: skip
    try:
        made = rebuilt(one.layout, labels, sizes)
    except (ValueError, KeyError, TypeError):
        return f"{one.layout} cannot be made of these parts with {said}"
    elements, array = np.concatenate([bits(apart[name]) for name in parts]), other[fused[0]]
    for label in made:
        own = np.isin(label, np.concatenate([numbers[name].reshape(-1) for name in wanted]))
        if label.shape != array.shape or not own.any():
            continue
        if (elements[label] == bits(array).reshape(array.shape))[own].all():
            return ""
    return f"{one.layout} makes another tensor of these parts with {said}: {fused[0]}"
