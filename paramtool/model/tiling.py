"""Windows on one storage: whether many are disjoint, and which elements are in a range.

Whether they are disjoint is told in time and memory that grow with their number and not their size.

Windows that follow each other are told apart by where they begin.  Those that take turns have their slowest axis in
common, as the gates and the ups of interleaved experts have; without that axis they follow each other, or take turns in
a smaller room:

    gate   start 0   (ffn, 2 * in) (in, 1)          start 0    (in, 1)
    up     start in  (ffn, 2 * in) (in, 1)    ->    start in   (in, 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from paramtool.model.view import View, overlaps

MANY = 64
"""The most windows that are compared in pairs where nothing else tells them apart; of more, every byte is marked."""


class _Box(NamedTuple):
    """A window in bytes, or what is left of it without its slowest axes."""

    start: int
    stop: int
    axes: tuple[tuple[int, int], ...]
    """(step, length) of the axes that are left, the slowest first"""
    view: View
    """The whole window."""


def are_disjoint(views: Iterable[View]) -> bool:
    """Whether no two windows on one storage have a byte in common.

    No window may contain an element twice.

    >>> from paramtool.model.dtype import DTYPES
    >>> left, right = (View(0, DTYPES["float32"], k, (10, 4), (8, 1)) for k in (0, 4))
    >>> are_disjoint([left, right]), are_disjoint([left, right, left])
    (True, False)
    """
    return _disjoint([_box(view) for view in views if view.numel])


def _box(view: View) -> _Box:
    if view.is_contiguous:
        return _Box(view.byte_start, view.byte_stop, (), view)
    size = view.dtype.block_bytes
    axes = sorted(((step * size, n) for n, step in view.axes if n > 1), reverse=True)
    return _Box(view.byte_start, view.byte_stop, tuple(axes), view)


def _disjoint(boxes: list[_Box]) -> bool:
    return all(_take_turns(near) for near in _near(boxes))


def _near(boxes: list[_Box]) -> Iterator[list[_Box]]:
    """The boxes whose spans meet, directly or by others, without those that stand alone."""
    found: list[_Box] = []
    stop = 0
    for box in sorted(boxes, key=lambda box: box.start):
        if found and box.start >= stop:
            if len(found) > 1:
                yield found
            found = []
        stop = max(stop, box.stop) if found else box.stop
        found.append(box)
    if len(found) > 1:
        yield found


def _take_turns(boxes: Sequence[_Box]) -> bool:
    """Whether boxes whose spans meet are disjoint all the same."""
    first = boxes[0].axes[:1]
    if not first or any(box.axes[:1] != first for box in boxes):
        return _compared(boxes)
    ((step, length),) = first
    inner = [_Box(box.start, box.stop - (length - 1) * step, box.axes[1:], box.view) for box in boxes]
    if max(box.stop for box in inner) - min(box.start for box in inner) > step:
        return _compared(boxes)
    return _disjoint(inner)


def _compared(boxes: Sequence[_Box]) -> bool:
    """The same for boxes that have no axis in common."""
    if not any(box.axes for box in boxes):  # runs whose spans meet
        return False
    views = [box.view for box in boxes]
    if len(views) <= MANY:
        return not any(overlaps(view, other) for k, view in enumerate(views) for other in views[:k])
    # Whether no byte is in two windows, found by marking every one.
    low = min(view.byte_start for view in views)
    marks = bytearray(max(view.byte_stop for view in views) - low)
    for view in views:
        for start, stop in _runs(view):
            run = slice(start - low, stop - low)
            if marks.count(1, run.start, run.stop):
                return False
            marks[run] = b"\1" * (stop - start)
    return True


def _runs(view: View) -> Iterator[Run]:
    """The bytes (start, stop) of each element of a window, or of each run of them."""
    box = _box(view)
    starts, size = [box.start], view.dtype.block_bytes
    axes = list(box.axes)
    if not axes:
        yield box.start, box.stop
        return
    if axes[-1][0] == size:
        size *= axes.pop()[1]
    for step, length in axes:
        starts = [start + k * step for start in starts for k in range(length)]
    for start in starts:
        yield start, start + size


def within(view: View, low: int, high: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of exactly those elements of a window that are in bytes `low` to `high` of its storage.

    No element may cross one of these bounds, no two may overlap, and the type must not be packed.

    >>> from paramtool.model.dtype import DTYPES
    >>> list(within(View(0, DTYPES["uint8"], 0, (4, 2), (10, 1)), 10, 31))
    [(slice(1, 3, None), slice(0, 2, None)), (slice(3, 4, None), slice(0, 1, None))]
    """
    size = view.dtype.block_bytes
    steps = [stride * size for stride in view.strides]
    order = sorted(range(len(view.shape)), key=lambda k: -steps[k])
    spans = [size]
    for axis in reversed(order):
        spans.append(spans[-1] + (view.shape[axis] - 1) * steps[axis])
    spans.reverse()

    def inside(start: int, depth: int, box: tuple[slice, ...]) -> Iterator[tuple[slice, ...]]:
        if low <= start and start + spans[depth] <= high:
            yield box
            return
        if depth == len(order):
            return
        axis, inner = order[depth], spans[depth + 1]
        step, count = max(steps[axis], 1), view.shape[axis]
        first = min(max(0, -((start - low) // step)), count)  # the first and the last that are wholly inside
        last = max(min(count, (high - inner - start) // step + 1), first)
        begin = max(0, (low - start - inner) // step + 1)  # those that are partly inside
        end = min(count, -((start - high) // step))
        for few in (range(begin, first), [slice(first, last)], range(last, end)):
            for one in few:
                place = one if isinstance(one, slice) else slice(one, one + 1)
                if place.start < place.stop:
                    cut = (*box[:axis], place, *box[axis + 1 :])
                    if isinstance(one, slice):
                        yield cut
                    else:
                        yield from inside(start + one * step, depth + 1, cut)

    if view.numel:
        yield from inside(view.byte_start, 0, tuple(slice(0, size) for size in view.shape))


def unread(view: View, windows: Iterable[View]) -> int:
    """How many elements of a window are in none of other windows on its storage; these can reach out of it.

    >>> from paramtool.model.dtype import DTYPES
    >>> whole, row = (View(0, DTYPES["uint8"], 0, shape, (2, 1)) for shape in ((3, 2), (1, 2)))
    >>> unread(whole, [row]), unread(whole, [row, row]), unread(whole, [whole]), unread(row, [whole, row])
    (4, 4, 0, 0)
    """
    begin, end = view.byte_start, view.byte_stop
    near = [one for one in dict.fromkeys(windows) if one.byte_start < end and begin < one.byte_stop]
    if any(one.byte_start <= begin and end <= one.byte_stop and one.dense_axes is not None for one in near):
        return 0
    count = sum(one.numel for one in near)
    are_inside = all(begin <= one.byte_start and one.byte_stop <= end for one in near)
    if are_inside and view.nbytes == end - begin and count <= view.numel and are_disjoint(near):
        return view.numel - count
    met = _meeting(_merged([view]), _merged(near))
    return view.numel - sum(max(0, min(one[1], other[1]) - max(one[0], other[0])) for one, other in met)


Run = tuple[int, int]


def _merged(views: Iterable[View]) -> list[Run]:
    """The elements of windows as runs in their order, none of which touches the next."""
    found: list[Run] = []
    for start, stop in sorted(run for one in views for run in _element_runs(one)):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _meeting(one: Sequence[Run], other: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """The pairs of runs of two ordered lists that can overlap."""
    j = k = 0
    while j < len(one) and k < len(other):
        yield one[j], other[k]
        if one[j][1] <= other[k][1]:
            j += 1
        else:
            k += 1


def _element_runs(view: View) -> Iterator[Run]:
    """The elements of a window as runs that follow each other in the storage: (the first, after the last)."""
    length, axis = 1, len(view.shape)
    while axis and (view.shape[axis - 1] == 1 or view.strides[axis - 1] == length):
        axis -= 1
        length *= view.shape[axis]
    for index in product(*map(range, view.shape[:axis])):
        start = view.offset + sum(k * stride for k, stride in zip(index, view.strides, strict=False))
        yield start, start + length
