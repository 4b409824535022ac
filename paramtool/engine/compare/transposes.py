"""Which tensors are others with their axes in another order.

In any order of the axes the first element stays first, the last stays last, and every element whose indices are all
equal keeps its indices: such elements show which tensors could be transposes of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice, permutations, product
from math import isqrt
from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.equal import Named, split
from paramtool.engine.read.blocks import blocks
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import THREADS, Pool
from paramtool.model.match import Match
from paramtool.model.view import View, contiguous_strides

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Advance = Callable[[int], None]
DIAGONAL = 6
"""How many elements of equal indices are compared."""
PROBES = 24
"""How many elements at other places are compared before all are."""
TILE = 128
"""Edge of the squares that are compared at once: both sides stay in a processor's cache, and NumPy is called so rarely
that threads run in parallel."""
READ = 512
"""Edge of the squares that are read at once: a row is long enough for a read call."""
BOX = 1 << 16
"""Elements that are compared at once if the last axis stays last."""
MAX_AXES = 5
"""Axes longer than 1 that are tried in every order: 120 orders."""

Order = tuple[int, ...]


def transposes(
    pool: Pool, groups: Sequence[Sequence[Named]], done: Collection[str], advance: Advance
) -> Iterator[Match]:
    """Tensors that are transposes of an earlier tensor in their group.

    The windows of a group have one dtype and the same lengths of axes, in any order.  Tensors in `done` may hold
    transposes and are not searched for.
    """
    for group in groups:
        for some in split(group, lambda named: _invariant(pool.source, named[1])):
            yield from _among(pool, some, done, advance)


def _among(pool: Pool, some: Sequence[Named], done: Collection[str], advance: Advance) -> Iterator[Match]:
    """The transposes among windows whose elements of equal indices agree; each is matched to the first that fits."""
    stay = [(name, view) for name, view in some if name in done]
    for name, view in some:
        if name in done:
            continue
        pairs = [(owner, order) for owner in stay for order in _orders(pool.source, owner[1], view)]
        tasks = [((owner[1], view, order, k), [owner[1], view]) for owner, order in pairs for k in range(THREADS)]
        parts = list(pool.map(_is_transpose, tasks))
        answers = [all(parts[k : k + THREADS]) for k in range(0, len(parts), THREADS)]
        advance(view.nbytes)
        if True in answers:
            owner, order = pairs[answers.index(True)]
            yield Match(name, owner[0], _window(owner, order), "transpose")
        else:
            stay.append((name, view))


def _window(owner: Named, order: Order) -> View:
    """A window on the row-major elements of a tensor, with the axes in another order."""
    name, view = owner
    strides = contiguous_strides(view.shape)
    return View(name, view.dtype, 0, tuple(view.shape[k] for k in order), tuple(strides[k] for k in order))


def _invariant(source: Source, view: View) -> bytes:
    """Elements that stay where they are in any order of the axes."""
    array = source.array(view)
    long = [size for size in view.shape if size > 1]
    least = min(long, default=1)
    same = [k * (least - 1) // (DIAGONAL - 1) for k in range(DIAGONAL)]
    places = [tuple(min(k, size - 1) if size > 1 else 0 for size in view.shape) for k in same]
    last = tuple(size - 1 for size in view.shape)
    source.nbytes_read += (len(places) + 1) * view.dtype.block_bytes
    return b"".join(array[place].tobytes() for place in [*places, last])


def _orders(source: Source, a: View, b: View) -> Iterator[Order]:
    """The orders of a's axes that give b's shape, and b's elements at the sampled places."""
    if sum(size > 1 for size in a.shape) > MAX_AXES:
        return
    one, other = source.array(a), source.array(b)
    moved = [k for k, size in enumerate(a.shape) if size > 1]
    for order in permutations(range(len(a.shape))):
        long = [k for k in order if a.shape[k] > 1]
        if tuple(a.shape[k] for k in order) != b.shape or long == moved or not _is_first(order, a.shape):
            continue
        if all(one.transpose(order)[place] == other[place] for place in probes(b.shape)):
            source.nbytes_read += 2 * PROBES * a.dtype.block_bytes
            yield order


def _is_first(order: Order, shape: Sequence[int]) -> bool:
    """Whether an order is the first of those that differ only in axes of length 1."""
    short = [k for k in order if shape[k] == 1]
    return short == sorted(short)


def probes(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Indices spread over a shape; always the same for one shape."""
    for k in range(1, PROBES + 1):
        yield tuple((k * (2654435761 + 40503 * axis) >> 7) % size for axis, size in enumerate(shape))


def _is_transpose(source: Source, task: tuple[View, View, Order, int]) -> bool:
    """Whether b equals a with its axes in that order, in one thread's share of the boxes."""
    a, b, order, part = task
    one, other = source.array(a).transpose(order), source.array(b)
    source.nbytes_read += 2 * b.nbytes // THREADS
    boxes = islice(_boxes(b.shape, order, READ), part, None, THREADS)
    return all(_is_equal(one[box], other[box], order) for box in boxes)


def _is_equal(one: Array, other: Array, order: Order) -> bool:
    return all(bool((one[box] == other[box]).all()) for box in _boxes(one.shape, order, TILE))


def _boxes(shape: tuple[int, ...], order: Order, tile: int) -> Iterator[tuple[slice, ...]]:
    """Boxes that tile a shape and are squares in the two axes that are fastest in source and target."""
    long = [k for k, size in enumerate(shape) if size > 1]
    if not long:
        yield tuple(slice(0, 1) for _ in shape)
        return
    here = long[-1]
    there = max(long, key=lambda k: order[k])
    if here == there:
        yield from blocks(shape, BOX)
        return
    whole = 1
    kept = set()
    for k in sorted(set(long) - {here, there}, key=lambda k: shape[k]):
        if whole * shape[k] <= 16:
            whole *= shape[k]
            kept.add(k)
    edge = max(TILE, tile // isqrt(whole))
    edges = [
        [slice(at, min(at + edge, size)) for at in range(0, size, edge)]
        if k in (here, there)
        else [slice(0, size)]
        if k in kept or size == 1
        else [slice(at, at + 1) for at in range(size)]
        for k, size in enumerate(shape)
    ]
    yield from product(*edges)
