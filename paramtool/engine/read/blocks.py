"""Cutting windows into blocks of bounded size, in row-major order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

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
