"""Whether two windows of a file can fill one memory: they hold one value wherever they meet there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.digest import same_bytes, squeezed
from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.read.elements import Elements
from paramtool.engine.read.source import Source, number_type
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Pair = tuple[View, View]


def agree(source: Source, found: Pair, places: Pair) -> bool:
    """Whether two windows of a file hold one value wherever their places in a memory meet.

    `places` are windows on that memory, of the shapes of `found`.  Values are compared as bytes, where the memory has
    another dtype than the file as bytes of that dtype.  Of places that are one, blocks are compared; else the memory's
    span is filled once with each window.
    """
    for view in found:
        source.prove_later(int(view.storage))
    source.settle()
    if places[0] == places[1]:
        return _same(source, found, places[0])
    return _fits(source, found, places)


def _same(source: Source, found: Pair, place: View) -> bool:
    a, b = found
    if a.dtype == b.dtype and same_bytes(source, a, source, b):
        return True
    if a.dtype == b.dtype == place.dtype:
        return False
    a, b = squeezed(a, b)
    boxes = blocks(a.shape, BLOCK_NBYTES // max(view.dtype.block_bytes for view in (a, b, place)))
    try:
        x, y = _numbers(source, a), _numbers(source, b)
        return all(_bytes(x[box], place) == _bytes(y[box], place) for box in boxes)
    except (TypeError, ValueError):  # a type without numbers: packed or quantised
        return False


def _fits(source: Source, found: Pair, places: Pair) -> bool:
    """Fill the span of a memory with one window, then with the other; both must still be there."""
    import numpy as np

    start = min(place.byte_start for place in places)
    memory = np.zeros(max(place.byte_stop for place in places) - start, "u1")
    try:
        values = [_cast(_numbers(source, view).all(), place) for view, place in zip(found, places, strict=True)]
        windows = [_window(memory, place, start) for place in places]
    except (TypeError, ValueError):
        return False
    for window, value in zip(windows, values, strict=True):
        window[...] = value
    return all(w.tobytes() == v.tobytes() for w, v in zip(windows, values, strict=True))


def _numbers(source: Source, view: View) -> Elements:
    """A window as numbers; TypeError or ValueError for a type that NumPy has none for."""
    return source.array(view).view(number_type(view.dtype))


def _window(memory: Array, place: View, start: int) -> Array:
    import numpy as np

    size = place.dtype.block_bytes
    strides = [stride * size for stride in place.strides]
    return np.ndarray(place.shape, number_type(place.dtype), memory.data, place.byte_start - start, strides)


def _cast(array: Array, place: View) -> Array:
    import numpy as np

    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array.astype(number_type(place.dtype)))


def _bytes(array: Array, place: View) -> bytes:
    return _cast(array, place).tobytes()
