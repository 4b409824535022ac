"""What is beside a matrix whose map is proved: its bias, its scales and its low-rank factors, by the same rows.

qkv_proj.weight [96, 32]        rows 0-63 of q_proj.weight, ...
qkv_proj.bias [96]              the same of q_proj.bias
qkv_proj.lora_B.weight [96, 8]  rows of their own width
qkv_proj.weight_scale_inv [3, 1]   a row for every 32, where each run is whole blocks
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from paramtool.engine.compare.cast_verdicts import narrow
from paramtool.engine.compare.sides import WindowPair
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, Views
from paramtool.passes.diff.names import biases_of

MAX_RUNS = 1 << 16
"""A map of more runs is not tried on what is beside a matrix."""
WEIGHT = ".weight"


class NamedRun(NamedTuple):
    """Rows of a tensor of the first checkpoint that follow each other in one of the second."""

    old: str
    start: int
    length: int
    to: int


class Followed(NamedTuple):
    """A tensor of the second that could follow a matrix."""

    name: str
    pairs: tuple[tuple[str, WindowPair], ...]
    """(tensor of the first, a window on it and one on this tensor)"""


def beside(name: str, runs: Sequence[NamedRun], a: Views, left: Views) -> Iterator[Followed]:
    """The tensors beside one that is made of whole rows of others, and the windows that they would be made of."""
    rows = sum(run.length for run in runs)
    for other, olds in _named(name, {run.old for run in runs}, a, left):
        pairs = list(_pairs(runs, rows, left[other], {matrix: a[old] for matrix, old in olds.items()}))
        if pairs:
            yield Followed(other, tuple((olds[run.old], pair) for run, pair in zip(runs, pairs, strict=True)))


def _named(name: str, matrices: Collection[str], a: Views, left: Views) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(tensor beside one of the second, {matrix of the first: what has the same place beside it}).

    They have the same end, or are biases by the words of other frameworks: `in_proj_bias` beside `in_proj_weight`.
    """
    stem = name.removesuffix(WEIGHT)
    found = set()
    for other, view in left.items():
        end = other[len(stem) :]
        if other == name or not other.startswith(stem) or end[:1] not in (".", "_") or not view.is_contiguous:
            continue
        # What a companion can be called beside another tensor: stacks have `_bias` where layers have `.bias`.
        word = end[1:]
        for tail in dict.fromkeys([end, f".{word}", f".weight_{word}", f"_{word.removeprefix('weight_')}"]):
            olds = {old: f"{old.removesuffix(WEIGHT)}{tail}" for old in matrices}
            if all(old in a for old in olds.values()):
                found.add(other)
                yield other, olds
                break
    for other in biases_of(name, left):
        biases = {old: next(iter(biases_of(old, a)), "") for old in matrices}
        if other not in found and left[other].is_contiguous and all(biases.values()):
            yield other, biases


def _pairs(runs: Iterable[NamedRun], rows: int, view: View, olds: Views) -> Iterator[WindowPair]:
    """The windows of one companion; none if its rows are not those of the matrix, or blocks of them."""
    found = []
    for run in runs:
        old = olds[run.old]
        block = _block(rows, view)
        if not block or not old.is_contiguous or view.dtype.block_elements != 1:
            return
        if old.dtype != view.dtype and narrow(old.dtype, view.dtype) is None:
            return
        if run.start % block or run.length % block or run.to % block:
            return
        width = view.numel // (rows // block)
        start, length, to = run.start // block, run.length // block, run.to // block
        if (start + length) * width > old.numel or (
            old.shape[-1:] != view.shape[-1:] and width > 1 and len(old.shape) > 1
        ):
            return
        found.append(WindowPair(_rows(old, start, length, width), _rows(view, to, length, width)))
    yield from found


def _block(rows: int, view: View) -> int:
    """How many rows of a matrix one row of its companion is for; 0 if none."""
    own = prod(view.shape[:-1]) if len(view.shape) > 1 else view.numel
    if view.numel == rows or own == rows:
        return 1
    return rows // own if own and not rows % own else 0


def _rows(view: View, start: int, count: int, width: int) -> View:
    return View(view.storage, view.dtype, view.offset + start * width, (count, width), (width, 1))


def runs_of(target: Target, there: View, a: Views) -> list[NamedRun]:
    """The rows of a target as rows of tensors of the first; nothing where it is not made of whole rows."""
    if len(there.shape) < 2:
        return []
    width = there.shape[-1]
    found: list[NamedRun] = []
    for copy in target.copies:
        old = a.get(copy.names[0]) if copy.names else None
        if old is None or len(copy.terms) != 1 or old.shape[-1:] != (width,) or not old.is_contiguous:
            return []
        made = _of_copy(copy, old, width)
        if made is None or len(found) + len(made) > MAX_RUNS:
            return []
        found += made
    return _joined(sorted(found, key=lambda run: run.to))


def _of_copy(copy: Copy, old: View, width: int) -> list[NamedRun] | None:
    """The rows of one copy; None where it has parts of rows."""
    here, there = copy.destination, copy.source
    axes = list(zip(here.shape, here.strides, there.strides, strict=True))
    inner = [axis for axis in axes if axis[1] < width and axis[0] > 1]
    outer = [axis for axis in axes if axis not in inner and axis[0] > 1]
    count, run = prod(axis[0] for axis in inner), 1
    begin = there.offset - old.offset
    if len(inner) == 1 and count % width == 0:
        run, count = count // width, width  # several rows as one axis
    if count != width or any(axis[1] != axis[2] for axis in inner) or here.offset % width or begin % width:
        return None
    if len(inner) > 1 or any(axis[1] % width or axis[2] % width for axis in outer) or (inner and inner[0][1] != 1):
        return None
    if prod(axis[0] for axis in outer) > MAX_RUNS:
        return None
    found = []
    for index in product(*(range(axis[0]) for axis in outer)):
        to = here.offset + sum(k * axis[1] for k, axis in zip(index, outer, strict=True))
        start = begin + sum(k * axis[2] for k, axis in zip(index, outer, strict=True))
        found.append(NamedRun(copy.names[0], start // width, run, to // width))
    return found


def _joined(runs: Iterable[NamedRun]) -> list[NamedRun]:
    """Runs that continue each other as one."""
    found: list[NamedRun] = []
    for run in runs:
        last = found[-1] if found else None
        if last and (last.old, last.start + last.length, last.to + last.length) == (run.old, run.start, run.to):
            found[-1] = last._replace(length=last.length + run.length)
        else:
            found.append(run)
    return found
