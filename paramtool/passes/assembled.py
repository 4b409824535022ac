"""Copies from assembled tensors become copies from their parts, so that runs are copied where they are.

    target [ a a a b b ]   copy of the assembled tensor      target [ a a a | b b ]   copy of part 1, copy of part 2

The engine can read an assembled tensor as any other.  But of two shards that follow each other it then copies each run
in the kernel, and reads each byte once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from paramtool.model.plan import Copy, Plan, Target
from paramtool.model.storage import Assembled, Part, Ranges, Storage
from paramtool.model.tiling import within
from paramtool.model.view import View, contiguous, seen_through

MAX_PIECES = 1 << 14
"""The most copies that one copy becomes."""


def direct(plan: Plan, storages: Mapping[int, Storage]) -> Plan:
    """The plan with copies from the parts of assembled tensors, where strides can express them."""
    if not is_assembled(storages):
        return plan
    return replace(plan, targets=tuple(direct_target(target, storages) for target in plan.targets))


def is_assembled(storages: Mapping[int, Storage]) -> bool:
    """Whether a tensor is assembled from parts."""
    is_plain = isinstance(storages, Ranges)
    return not is_plain and any(isinstance(storage.backing, Assembled) for storage in storages.values())


def direct_target(target: Target, storages: Mapping[int, Storage]) -> Target:
    """The same for one target; the target itself if none of its copies changes."""
    copies = [piece for copy in target.copies for piece in _pieces(copy, storages)]
    is_same = all(one is other for one, other in zip(copies, target.copies, strict=False))
    return target if is_same and len(copies) == len(target.copies) else replace(target, copies=tuple(copies))


def _pieces(copy: Copy, storages: Mapping[int, Storage]) -> list[Copy]:
    """The copies from the parts, one for each box of a part; the copy itself if that is not possible."""
    if len(copy.terms) != 1:
        return [copy]
    ((sign, term),) = copy.terms
    backing = storages[int(term.storage)].backing
    if not isinstance(backing, Assembled) or (turned := _row_major(copy.destination, term)) is None:
        return [copy]
    destination, term = turned
    made: list[Copy] = []
    for part in _sorted(backing, term):
        for here, there in _inside(part, term.byte_start, term.byte_stop):
            window = here.on(here.storage, here.byte_start - term.byte_start)
            place = seen_through(window, destination)
            if place is None or len(made) == MAX_PIECES:
                return [copy]
            made.append(replace(copy, destination=place, terms=((sign, there),)))
    return made if sum(piece.destination.numel for piece in made) == copy.destination.numel else [copy]


def _row_major(destination: View, term: View) -> tuple[View, View] | None:
    """Both windows with their axes in the order in which the term is row-major; None if it is not in any order."""
    order = term.dense_axes
    if order is None or not term.numel:
        return None
    turned = (
        View(v.storage, v.dtype, v.offset, tuple(v.shape[k] for k in order), tuple(v.strides[k] for k in order))
        for v in (destination, term)
    )
    first, second = turned
    return first, second


def _sorted(backing: Assembled, term: View) -> Iterator[Part]:
    """The parts that have bytes of the term, in the order in which they begin."""
    parts = sorted((part for part in backing.parts if part.here.numel), key=lambda part: part.here.byte_start)
    reach = list(accumulate((part.here.byte_stop for part in parts), max))
    for part in parts[bisect_left(reach, term.byte_start + 1) :]:
        if part.here.byte_start >= term.byte_stop:
            return
        if part.here.byte_stop > term.byte_start:
            yield part


def _inside(part: Part, low: int, high: int) -> Iterator[tuple[View, View]]:
    """The boxes of a part that are in bytes `low` to `high` of the tensor: there, and where the elements are."""
    here, there = part.here, part.there
    if low <= here.byte_start and here.byte_stop <= high:
        yield here, there
    elif here.is_contiguous and there.is_contiguous:  # a run, also of a packed type
        start, stop = max(low, here.byte_start), min(high, here.byte_stop)
        count = (stop - start) // here.dtype.block_bytes * here.dtype.block_elements
        run = contiguous(here.storage, here.dtype, (count,))
        yield run.on(here.storage, start), run.on(there.storage, there.byte_start + start - here.byte_start)
    else:
        yield from ((_boxed(here, box), _boxed(there, box)) for box in within(here, low, high))


def _boxed(view: View, box: tuple[slice, ...]) -> View:
    """A box of a window."""
    start = view.offset + sum(at.start * stride for at, stride in zip(box, view.strides, strict=True))
    return View(view.storage, view.dtype, start, tuple(at.stop - at.start for at in box), view.strides)
