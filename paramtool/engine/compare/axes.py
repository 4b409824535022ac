"""Whether a tensor of one checkpoint is one of the other with its axes in another order.

Kernels of convolutions have four common orders of axes, and stacks of experts two.  Axes may be merged or split
beside that, [kh, kw, in, out] as [out, in * kh * kw], and some may run backwards: a convolution is a correlation with
the kernel rotated.  Samples decide which orders are compared in full.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations, permutations, product
from typing import NamedTuple

from paramtool.engine.compare.casts import alike, cast_raw
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.equal import Named, split
from paramtool.engine.read.blocks import spread
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool, same_window
from paramtool.engine.read.threads import CORES
from paramtool.model.dtype import DType
from paramtool.model.match import Match
from paramtool.model.view import Shape, View, contiguous, reshaped

MAX_AXES = 5
"""Axes longer than 1 that are tried in every order: 120 orders."""
PROBES = 24
"""How many elements are compared before all are."""
SHARES = 16
"""Into how many parts the memory is divided, of which what is read of each side at once is one."""
TILE = 1 << 15
"""Elements that are compared at once."""

Order = tuple[int, ...]


class AxesWay(NamedTuple):
    """How a tensor of the second could be one of the first."""

    a: View
    """The first, with the axes that are moved."""
    b: View
    """The second, with the same axes as they are after that."""
    order: Order
    """Which axis of the first each axis of the second is."""
    reversed: Order = ()
    """The axes of the second that run backwards."""

    @property
    def moved(self) -> View:
        """The first with its axes in the order of the second; those that run backwards run forwards."""
        shape, strides = ([of[k] for k in self.order] for of in (self.a.shape, self.a.strides))
        return self.a.with_axes(tuple(shape), tuple(strides))

    @property
    def is_moved(self) -> bool:
        """Whether axes longer than 1 change places, or run backwards."""
        long = [k for k in self.order if self.a.shape[k] > 1]
        return bool(self.reversed) or long != sorted(long)


def ways(a: View, b: View) -> Iterator[AxesWay]:
    """The orders of axes that the shapes allow, also with axes merged or split; the first elements stay first.

    >>> from paramtool.model.dtype import DTYPES
    >>> from paramtool.model.view import contiguous
    >>> a, b = (contiguous(0, DTYPES["float32"], shape) for shape in ((3, 2, 5), (5, 6)))
    >>> [way.order for way in ways(a, b)]
    [(2, 0, 1), (2, 1, 0)]
    """
    if sum(size > 1 for size in a.shape) > MAX_AXES or sum(size > 1 for size in b.shape) > MAX_AXES:
        return
    if sorted(a.shape) == sorted(b.shape):
        yield from (AxesWay(a, b, order) for order in _orders(a.shape) if _permuted(a.shape, order) == b.shape)
        return
    a, b = _long(a), _long(b)
    if len(a.shape) >= len(b.shape):
        for order in permutations(range(len(a.shape))):
            if _merges(shape := _permuted(a.shape, order), b.shape) and (there := reshaped(b, shape)):
                yield AxesWay(a, there, order)
        return
    for places in permutations(range(len(b.shape))):
        if _merges(shape := _permuted(b.shape, places), a.shape) and (here := reshaped(a, shape)):
            yield AxesWay(here, b, tuple(places.index(k) for k in range(len(places))))


def backwards(a: View, b: View) -> Iterator[AxesWay]:
    """The same orders with all axes but two running backwards, of tensors with the same axes, at least three."""
    long = [k for k, size in enumerate(b.shape) if size > 1]
    if not 3 <= len(long) <= MAX_AXES or sorted(a.shape) != sorted(b.shape):
        return
    for order in _orders(a.shape):
        if _permuted(a.shape, order) == b.shape:
            for kept in combinations(long, 2):
                yield AxesWay(a, b, order, tuple(k for k in long if k not in kept))


def along(way: AxesWay, a: View, b: View) -> Iterator[AxesWay]:
    """How a tensor could be along axes of the first as another one is along the same axes of the second: their biases.

    Nothing for axes that run backwards.

    >>> from paramtool.model.dtype import DTYPES
    >>> from paramtool.model.view import contiguous
    >>> kernel, weight, bias, other = (
    ...     contiguous(0, DTYPES["float32"], shape) for shape in ((32, 4, 8), (32, 32), (4, 8), (32,))
    ... )
    >>> [(one.a.shape, one.order) for one in along(next(ways(kernel, weight)), bias, other)]
    [((4, 8), (0, 1))]
    """
    mine, theirs = _long(a), _long(b)
    length = len(way.order)
    for start, stop in combinations(range(length + 1), 2):
        shape = way.a.shape[start:stop]
        places = [place for place, axis in enumerate(way.order) if start <= axis < stop]
        are_together = places == list(range(places[0], places[-1] + 1)) and not set(places) & set(way.reversed)
        order = tuple(way.order[place] - start for place in places)
        if are_together and _merges(shape, mine.shape) and _merges(_permuted(shape, order), theirs.shape):
            here, there = reshaped(mine, shape), reshaped(theirs, _permuted(shape, order))
            if here is not None and there is not None:
                yield AxesWay(here, there, order)


def _permuted(shape: Sequence[int], order: Order) -> Shape:
    return tuple(shape[k] for k in order)


def _orders(shape: Sequence[int]) -> Iterator[Order]:
    """The orders of axes; of those that differ only in axes of length 1 the first."""
    for order in permutations(range(len(shape))):
        short = [k for k in order if shape[k] == 1]
        if short == sorted(short):
            yield order


def _long(view: View) -> View:
    """A window without its axes of length 1."""
    axes = [axis for axis in view.axes if axis[0] > 1]
    return view.with_axes(tuple(n for n, _ in axes), tuple(step for _, step in axes))


def _merges(fine: Sequence[int], coarse: Sequence[int]) -> bool:
    """Whether axes that follow each other, merged, have other lengths.

    >>> _merges((4, 2, 3), (4, 6)), _merges((2, 4, 3), (4, 6))
    (True, False)
    """
    rest = list(fine)
    for size in coarse:
        made = 1
        while rest and made < size:
            made *= rest.pop(0)
        if made != size:
            return False
    return not rest


def ends(source: Source, view: View, dtype: DType) -> bytes:
    """The first and the last element, in a type: they stay where they are in any order of axes."""
    places = [tuple(0 for _ in view.shape), tuple(size - 1 for size in view.shape)]
    return b"".join(_element(source, view, place, dtype) for place in places)


def corners(source: Source, view: View) -> tuple[bytes, ...]:
    """The elements at the corners, sorted: those of any order of axes, also of axes that run backwards."""
    places = product(*(sorted({0, size - 1}) for size in view.shape))
    return tuple(sorted(_element(source, view, place, view.dtype) for place in places))


def _element(source: Source, view: View, place: Shape, dtype: DType) -> bytes:
    found = source.array(view)[place].reshape(1)
    source.nbytes_read += view.dtype.block_bytes
    return found.tobytes() if dtype == view.dtype else cast_raw(found, view.dtype, dtype).tobytes()


def may_be(a_source: Source, b_source: Source, way: AxesWay) -> bool:
    """Whether samples agree; those of two types where either can be the cast of the other."""
    pair = WindowPair(way.moved, way.b)
    a, b = a_source.array(pair.a), b_source.array(pair.b)
    for source, view in ((a_source, way.a), (b_source, way.b)):
        source.nbytes_read += PROBES * view.dtype.block_bytes
    for place in probes(way.b.shape):
        there = tuple(way.b.shape[k] - 1 - at if k in way.reversed else at for k, at in enumerate(place))
        if not alike(a[there].reshape(1), b[place].reshape(1), pair):
            return False
    return True


def are_same(a_source: Source, b_source: Source, task: tuple[AxesWay, int]) -> bool:
    """Whether all bytes agree, of two tensors of one type; read in boxes that take a part of the memory."""
    way, memory = task
    a_source.prove_later(way.a.number)
    b_source.prove_later(way.b.number)
    a, b = a_source.array(way.moved), b_source.array(way.b)
    a_source.nbytes_read += way.a.nbytes
    b_source.nbytes_read += way.b.nbytes
    most = max(TILE, memory // SHARES // way.b.dtype.block_bytes)
    turned = tuple(slice(None, None, -1 if k in way.reversed else 1) for k in range(len(way.b.shape)))

    def is_equal(box: tuple[slice, ...]) -> bool:
        place = (
            slice(size - one.stop, size - one.start) if k in way.reversed else one
            for k, (one, size) in enumerate(zip(box, way.b.shape, strict=True))
        )
        here, there = a[tuple(place)][turned], b[box]
        return all((here[tile] == there[tile]).all() for tile in spread((here, there), there.shape, TILE))

    is_same = all(is_equal(box) for box in spread((a, b), way.b.shape, most))
    a_source.settle()
    b_source.settle()
    return is_same


def probes(shape: Sequence[int]) -> Iterator[Shape]:
    """Indices spread over a shape; always the same for one shape."""
    for k in range(1, PROBES + 1):
        yield tuple((k * (2654435761 + 40503 * axis) >> 7) % size for axis, size in enumerate(shape))


def transposes(
    pool: Pool, groups: Sequence[Sequence[Named]], done: Collection[str], advance: Callable[[int], None]
) -> Iterator[Match]:
    """Tensors of one file that are transposes of an earlier tensor in their group, each of the first that fits.

    The windows of a group have one dtype and the same lengths of axes, in any order.  Tensors in `done` may hold
    transposes and are not searched for.
    """
    source = pool.source
    for some in (part for group in groups for part in split(group, lambda one: ends(source, one[1], one[1].dtype))):
        stay = [one for one in some if one[0] in done]
        for name, view in some:
            if name in done:
                continue
            every = ((owner, way) for owner, whole in stay for way in ways(whole, view))
            likely = [(owner, way) for owner, way in every if way.is_moved and may_be(source, source, way)]
            same = (one for one in likely if same_window(source, one[1].moved, source, view, threads=CORES))
            owner, way = next(same, ("", None))
            advance(view.nbytes)
            if way is None:
                stay.append((name, view))
            else:
                whole = contiguous(owner, view.dtype, way.a.shape)
                yield Match(name, owner, way._replace(a=whole).moved, "transpose")
