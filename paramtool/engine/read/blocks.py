"""Cutting windows into blocks of bounded size, in row-major order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import isqrt, prod
from typing import Protocol

from paramtool.model.view import Shape

BLOCK_NBYTES = 8 << 20
"""How many bytes of a tensor are held in memory at a time."""
RUN = 1 << 11
"""Runs of so many elements are read about as fast as longer ones."""


def blocks(shape: Shape, max_elements: int) -> Iterator[tuple[slice, ...]]:
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


def tiles(shape: Shape, axes: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most `most` elements that tile a shape, which have runs along both of two axes.

    They are as long along the first as they can be while they are long enough along the second.

    >>> [tuple((at.start, at.stop) for at in box) for box in tiles((4, 3), (0, 1), 4)]
    [((0, 2), (0, 2)), ((0, 2), (2, 3)), ((2, 4), (0, 2)), ((2, 4), (2, 3))]
    >>> len(list(tiles((5, 2, 100), (2, 1), 400)))
    3
    """
    here, there = axes[:2]
    steps = [1] * len(shape)
    steps[there] = min(shape[there], max(min(isqrt(most), RUN), most // max(shape[here], 1)))
    steps[here] = min(shape[here], max(1, most // max(steps[there], 1)))
    for k in reversed(range(len(shape))):
        if k not in (here, there):
            steps[k] = max(1, min(shape[k], most // max(1, prod(steps))))
    for corner in product(*(range(0, size, step) for size, step in zip(shape, steps, strict=True))):
        yield tuple(slice(k, min(k + s, n)) for k, s, n in zip(corner, steps, shape, strict=True))


class Strided(Protocol):
    """A window or an array."""

    @property
    def shape(self) -> Shape: ...
    @property
    def strides(self) -> tuple[int, ...]: ...


def spread(windows: Sequence[Strided], shape: Shape, most: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most `most` elements that tile a shape, each of which all windows hold in long runs.

    These are rows, or tiles where the windows have different fastest axes.
    """
    axes = list(dict.fromkeys(fastest(window) for window in windows))
    return tiles(shape, axes, most) if len(axes) > 1 and len(shape) > 1 else blocks(shape, most)


def fastest(view: Strided) -> int:
    """The axis along which neighbours are nearest."""
    steps = [(abs(step), -k) for k, (size, step) in enumerate(zip(view.shape, view.strides, strict=True)) if size > 1]
    return -min(steps)[1] if steps else 0
