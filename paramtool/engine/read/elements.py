"""The elements of a window on a storage, each read from the file only when it is indexed.

No mapped memory is looked at: if another process truncates a mapped file, SIGBUS ends this process, and Python cannot
turn that into an error.  Elements near each other are read in one piece, with the bytes between them; others are copied
by the system, many pieces in a call (`formats/gather.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

from paramtool.engine.read.blocks import fastest, spread
from paramtool.formats.files import Placed
from paramtool.model.dtype import DType

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
else:
    Array = Any

Read = Callable[[int, memoryview], None]
"""Fills a buffer with the bytes of a storage, starting at a position."""
Index = int | slice
ELEMENTS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}
"""{element size in bytes: a NumPy type that copies elements unchanged}."""
PAGE_NBYTES = 4096
"""Bytes that are nearer to each other than this are read together with the bytes between them."""
GAP_NBYTES = 8 << 10
"""A gap of this many bytes between long pieces is read, too, if it is at most GAP_PIECES times a piece: another call
takes longer."""
GAP_PIECES = 8
SPAN_NBYTES = 1 << 20
"""The most bytes that are read in one piece if only a part of them is wanted, or if they go to other places."""
SAMPLE = 1 << 12
"""Boxes of at most so many elements are a look at a window; larger ones are read to go through all of it."""
TILE = 1 << 18
"""Elements are put in another order in tiles of this many, which stay in a processor's cache."""
LINE_NBYTES = 64
"""What a processor's cache fetches at once."""


def number_type(dtype: DType) -> str:
    """The NumPy type to calculate with; ValueError for types that NumPy cannot calculate with."""
    import ml_dtypes
    import numpy as np

    if dtype.block_bytes not in ELEMENTS:
        raise ValueError(f"NumPy cannot calculate with {dtype.name}")
    return np.dtype(dtype.name).str if not hasattr(ml_dtypes, dtype.name) else dtype.name


def converted(numbers: Array, dtype: DType) -> Array:
    """Numbers in another type, as NumPy and ml_dtypes cast them: to nearest, ties to even.

    float64 goes to the types of ml_dtypes by way of float32, as in torch, and can be rounded twice.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        return numbers.astype(number_type(dtype))


class Elements:
    """A window that is indexed like an array, by numbers and slices of step 1; each result is a new array."""

    __slots__ = ("_charge", "_kind", "_reader", "_start", "shape", "strides")

    def __init__(
        self, reader: Callable[[], Read], kind: str, start: int, shape: Sequence[int], *, strides: Sequence[int],
        charge: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """`reader` is asked for each box; `start` and `strides` are in bytes; `kind` is a NumPy type.

        `charge` is called before a box of more than SAMPLE elements is read, of a window that repeats its bytes.
        """
        self._reader = reader
        self._charge = charge
        self._kind = kind
        self._start = start
        self.strides = tuple(strides)
        self.shape = tuple(shape)

    def view(self, kind: str) -> Elements:
        """The same elements as another type of their size."""
        return Elements(self._reader, kind, self._start, self.shape, strides=self.strides, charge=self._charge)

    def transpose(self, order: Sequence[int]) -> Elements:
        """The same elements with the axes in another order."""
        shape, strides = ([of[k] for k in order] for of in (self.shape, self.strides))
        return Elements(self._reader, self._kind, self._start, shape, strides=strides, charge=self._charge)

    def all(self) -> Array:
        """Every element."""
        return self[tuple(slice(0, size) for size in self.shape)]

    def _located(self, index: tuple[Index, ...]) -> tuple[int, tuple[int, ...], list[int]]:
        """Where a box begins, its shape, and the strides of its axes."""
        start, shape, strides = self._start, [], []
        for at, size, stride in zip(index, self.shape, self.strides, strict=True):
            if isinstance(at, slice):
                low, high, _ = at.indices(size)
                start += low * stride
                shape.append(max(0, high - low))
                strides.append(stride)
            else:
                start += at * stride
        if self._charge is not None and prod(shape) > SAMPLE:
            self._charge()
        return start, tuple(shape), strides

    def __getitem__(self, index: tuple[Index, ...]) -> Array:
        """The elements of a box, with one axis for each slice."""
        return self.read(index, None)

    def read(self, index: tuple[Index, ...], held: Array | None) -> Array:
        """The elements of a box, in bytes that are there or in new ones."""
        import numpy as np

        start, shape, strides = self._located(index)
        once = [1 if not stride and size else size for size, stride in zip(shape, strides, strict=True)]
        order = sorted(range(len(once)), key=lambda k: (once[k] > 1, -strides[k]))
        ordered = [once[k] for k in order]  # in the storage's order: rows are read in place
        out: Array = np.empty(ordered, self._kind) if held is None else np.ndarray(ordered, self._kind, held.data)
        long = [k for k in order if once[k] > 1]
        if out.size:
            _fill(self._reader(), out.reshape([once[k] for k in long]), start, [strides[k] for k in long])
        found = out.transpose([order.index(k) for k in range(len(order))])
        return found if found.shape == shape else np.broadcast_to(found, shape)

    def into(self, index: tuple[slice, ...], out: Array) -> None:
        """Put the elements of a box into an array of its shape and of their type, whatever its strides."""
        start, shape, strides = self._located(index)
        if not out.size:
            return
        if any(not stride and size > 1 for size, stride in zip(shape, strides, strict=True)):
            out[...] = self[index]
            return
        order = sorted(range(len(shape)), key=lambda k: -strides[k])
        long = [k for k in order if shape[k] > 1]
        ordered = out.transpose(order)[(*(slice(None) if shape[k] > 1 else 0 for k in order), ...)]
        _spread(self._reader(), ordered, start, [strides[k] for k in long])


def _bytes(out: Array) -> memoryview:
    """The bytes of a contiguous array."""
    data: memoryview = out.reshape(-1).view("u1").data
    return data


def _spread(read: Read, out: Array, start: int, strides: Sequence[int]) -> None:
    """Fill an array as `_fill` does, of any strides: what is read is put in its places a span at a time."""
    if out.flags.c_contiguous:
        _fill(read, out, start, strides)
        return
    row = out.itemsize * prod(out.shape[1:])
    step = max(1, SPAN_NBYTES // row)
    for low in range(0, len(out), step):
        here = start + low * strides[0]
        if row > SPAN_NBYTES:
            _spread(read, out[low], here, strides[1:])
            continue
        part = out[low : low + step]
        with room(part.nbytes) as held:
            packed = held.view(out.dtype).reshape(part.shape)
            _fill(read, packed, here, strides)
            move(part, packed)


def move(out: Array, values: Array) -> None:
    """Copy an array into another of its shape."""
    for to, part in _tiles(out, values):
        to[...] = part


def equal(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape hold the same bytes, whatever they stand for."""
    if fastest(a) == fastest(b):
        return all(_equal(one, other) for one, other in _tiles(a, b))
    a, b = (a, b) if fastest(a) == a.ndim - 1 else (b, a)
    with room(b.nbytes) as held:
        turned = held.view(b.dtype).reshape(b.shape)
        move(turned, b)
        return all(_equal(one, other) for one, other in _tiles(a, turned))


def _equal(a: Array, b: Array) -> bool:
    """The same of a tile; where memory is short, NumPy ends the process unless both are plain rows of words."""
    import numpy as np

    if a.itemsize > 8 or not (a.flags.c_contiguous and b.flags.c_contiguous):
        return a.tobytes() == b.tobytes()
    with room(a.size) as held:
        return bool(np.equal(a.reshape(-1), b.reshape(-1), out=held.view("?")).all())


def same(a: Array, b: Array) -> bool:
    """Whether two buffers of bytes of one length are equal."""
    whole = a.nbytes - a.nbytes % 8
    one, other = a[:whole].view("u8"), b[:whole].view("u8")
    if not (one.flags.aligned and other.flags.aligned):
        return equal(a, b)
    return equal(one, other) and equal(a[whole:], b[whole:])


def _tiles(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Two arrays in parts that stay in a processor's cache.

    A part of the second that is transposed is copied to rows of an odd length first: where rows are as long as a power
    of two, a column falls on few lines of the cache, and all of it is fetched again for each element.
    """
    import numpy as np

    if a.size <= TILE >> 2:
        yield a, b
        return
    tiles = spread((a, b), a.shape, TILE)
    if fastest(a) == fastest(b):
        yield from ((a[tile], b[tile]) for tile in tiles)
        return
    order = sorted(range(b.ndim), key=lambda k: -b.strides[k])
    for tile in tiles:
        rows = b[tile].transpose(order)
        *outer, size = rows.shape
        whole = (*outer, size + LINE_NBYTES // b.itemsize)
        with room(b.itemsize * prod(whole)) as held:
            apart: Array = np.ndarray(whole, b.dtype, held.data)[..., :size]
            apart[...] = rows
            yield a[tile], apart.transpose([order.index(k) for k in range(b.ndim)])


_rooms: dict[int, Array] = {}
"""Memory that was worked in, for the next time; threads take it with one call, which needs no lock."""


@contextmanager
def room(nbytes: int) -> Iterator[Array]:
    """Bytes to work in: the smallest kept ones that are enough, else new ones in place of the largest."""
    import numpy as np

    kept = sorted((len(one), key) for key, one in list(_rooms.items()))
    taken = (_rooms.pop(key, None) for size, key in kept if size >= nbytes)
    found = next((one for one in taken if one is not None), None)
    if found is None:
        _rooms.pop(kept[-1][1] if kept else 0, None)
        found = np.empty(max(nbytes, SPAN_NBYTES), "u1")
    try:
        yield found[:nbytes]
    finally:
        _rooms[id(found)] = found


def forget_rooms() -> None:
    """Give back the memory that is kept."""
    _rooms.clear()


def _fill(read: Read, out: Array, start: int, strides: Sequence[int]) -> None:
    """Fill an array whose axes stand `strides` bytes apart in the storage, the widest first, none of length 1."""
    spans = [out.itemsize]
    for size, stride in zip(reversed(out.shape), reversed(strides), strict=True):
        spans.append(spans[-1] + (size - 1) * stride)
    spans.reverse()
    nbytes = [out.itemsize * prod(out.shape[k + 1 :]) for k in range(out.ndim)]
    most = [max(PAGE_NBYTES, min(GAP_NBYTES, GAP_PIECES * piece)) for piece in nbytes]
    near = [stride - span < gap for stride, span, gap in zip(strides, spans[1:], most, strict=True)]
    # Axes that are contiguous; overlapping windows can have as many bytes as their span, too.
    whole = [stride == span for stride, span in zip(strides, spans[1:], strict=True)]

    if out.size == 1:
        read(start, _bytes(out))
        return

    def part(out: Array, start: int, axis: int) -> None:
        span = (out.shape[0] - 1) * strides[axis] + spans[axis + 1]
        if all(whole[axis:]) or out.size == 1:
            read(start, _bytes(out))
        elif span <= SPAN_NBYTES and all(near[axis:]):
            _window(read, out, start, strides[axis:], span=span)
        else:
            step = (SPAN_NBYTES - spans[axis + 1]) // strides[axis] + 1 if all(near[axis:]) else 1
            if step <= 1 and all(whole[axis + 1 :]):
                data, size = _bytes(out), spans[axis + 1]
                if isinstance(read, Placed):
                    read.rows(start, strides[axis], data, size)
                    return
                for k in range(out.shape[0]):
                    read(start + k * strides[axis], data[k * size : (k + 1) * size])
                return
            step = max(step, 1)
            for low in range(0, out.shape[0], step):
                here = start + low * strides[axis]
                if step > 1:
                    part(out[low : low + step], here, axis)
                else:
                    part(out[low], here, axis + 1)

    part(out, start, 0)


def _window(read: Read, out: Array, start: int, strides: Sequence[int], *, span: int) -> None:
    """Read a whole span, and copy the wanted elements."""
    import numpy as np

    with room(span) as whole:
        read(start, whole.data)
        out[...] = np.ndarray(out.shape, out.dtype, whole.data, 0, tuple(strides))


def take(read: Read, starts: Array, nbytes: int) -> Array:
    """`nbytes` bytes of a storage from each position in `starts`: one row for each, in their order."""
    import numpy as np

    out = np.empty((len(starts), nbytes), "u1")
    order = np.argsort(starts, kind="stable")
    places = starts[order]
    cuts = np.flatnonzero(np.diff(places) > PAGE_NBYTES + nbytes) + 1
    rows = out.reshape(-1).data
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(places)], strict=True):
        if high - low == 1:
            row = int(order[low])
            read(int(places[low]), rows[row * nbytes : (row + 1) * nbytes])
            continue
        while low < high:
            stop = min(int(np.searchsorted(places[low:high], places[low] + SPAN_NBYTES)) + low, high)
            whole = np.empty(int(places[stop - 1] - places[low]) + nbytes, "u1")
            read(int(places[low]), whole.data)
            rows_there = np.lib.stride_tricks.sliding_window_view(whole, nbytes)
            out[order[low:stop]] = rows_there[places[low:stop] - places[low]]
            low = stop
    return out
