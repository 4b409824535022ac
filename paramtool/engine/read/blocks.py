"""Cutting windows into blocks of bounded size, in row-major order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from paramtool.model.view import View

BLOCK_NBYTES = 8 << 20
"""How many bytes of a tensor are held in memory at a time."""


def blocks(shape: tuple[int, ...], max_elements: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most `max_elements` elements that tile a shape; read in sequence they give row-major order.

    >>> list(blocks((2, 3), 3))
    [(slice(0, 1, None), slice(0, 3, None)), (slice(1, 2, None), slice(0, 3, None))]
    >>> len(list(blocks((1, 1000), 10)))
    100
    """
    if 0 in shape:
        return
    axis = 0
    while axis < len(shape) and prod(shape[axis + 1 :]) > max_elements:
        axis += 1
    if axis == len(shape):
        axis = max(len(shape) - 1, 0)
    step = max(1, max_elements // max(prod(shape[axis + 1 :]), 1))
    inner = tuple(slice(0, size) for size in shape[axis + 1 :])
    for index in product(*(range(size) for size in shape[:axis])):
        outer = tuple(slice(i, i + 1) for i in index)
        if not shape:
            yield ()
            return
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, min(start + step, shape[axis])), *inner)


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
