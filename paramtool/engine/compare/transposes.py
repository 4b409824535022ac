"""Which tensors are others with their axes in another order.

In any order of the axes the first element stays first, the last stays last, and every element whose indices are all
equal keeps its indices: such elements show which tensors could be transposes of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import permutations

from paramtool.engine.compare.equal import Named, split
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool, same_window
from paramtool.engine.read.threads import CORES
from paramtool.model.match import Match
from paramtool.model.view import View, contiguous_strides

Advance = Callable[[int], None]
DIAGONAL = 6
"""How many elements of equal indices are compared."""
PROBES = 24
"""How many elements at other places are compared before all are."""
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
            # The transposes among windows whose elements of equal indices agree; each is matched to the first that
            # fits.
            stay = [(name, view) for name, view in some if name in done]
            for name, view in some:
                if name in done:
                    continue
                pairs = [(owner, order) for owner in stay for order in _orders(pool.source, owner[1], view)]
                same = (pair for pair in pairs if _is_transpose(pool.source, pair[0][1], view, pair[1]))
                found = next(same, None)
                advance(view.nbytes)
                if found is not None:
                    owner, order = found
                    yield Match(name, owner[0], _window(owner, order), "transpose")
                else:
                    stay.append((name, view))


def _is_transpose(source: Source, a: View, b: View, order: Order) -> bool:
    """Whether b equals a with its axes in that order."""
    shape, strides = (tuple(of[k] for k in order) for of in (a.shape, a.strides))
    return same_window(source, View(a.storage, a.dtype, a.offset, shape, strides), source, b, threads=CORES)


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
