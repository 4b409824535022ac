"""How far two windows differ: the largest difference of their numbers, block by block; and digests of windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.changes import WindowPair, measured, number_types
from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.read.elements import Elements, number_type
from paramtool.engine.read.pairs import same_bytes
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import squeezed
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def format_difference(difference: float | None) -> str:
    """The largest difference of two tensors whose bytes differ, in words; an empty string if it was not measured.

    >>> print(format_difference(0.25), format_difference(0.0), sep="\\n")
    largest difference 0.25
    largest difference 0: equal numbers with different bits, such as 0.0 and -0.0
    """
    if difference is None:
        return ""
    alike = "" if difference else ": equal numbers with different bits, such as 0.0 and -0.0"
    return f"largest difference {difference:.3g}{alike}"


def largest(source_a: Source, a: View, source_b: Source, b: View) -> float | None:
    """The largest absolute difference of two windows, element by element; 0.0 if there are no elements.

    Elements that are equal, both NaN, or infinities of one sign, do not differ.  `inf` if one element is NaN or
    infinite and the other is not.
    None if the windows cannot be compared: the shapes differ, or a type has no numbers (packed, quantised).
    """
    if a.shape != b.shape or number_types(a, b) is None:
        return None
    return measured(source_a, source_b, [WindowPair(a, b)]).largest


Pair = tuple[View, View]


def agree(source: Source, found: Pair, places: Pair) -> bool:
    """Whether two windows of a file have equal values wherever their places in an alias set overlap.

    `places` are windows on that alias set, with the shapes of `found`.  Values are compared as bytes: if the alias set
    has another dtype than the file, as bytes of that dtype.  If the two places are equal, blocks are compared;
    otherwise the span of the alias set is filled with each window in turn.
    """
    for view in found:
        source.prove_later(int(view.storage))
    source.settle()
    if places[0] == places[1]:
        place = places[0]
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
    # Fill the span of an alias set with one window, then with the other; both must be unchanged afterwards
    import numpy as np

    start = min(place.byte_start for place in places)
    span = np.zeros(max(place.byte_stop for place in places) - start, "u1")
    try:
        values = [_cast(_numbers(source, view).all(), place) for view, place in zip(found, places, strict=True)]
        windows = [_window(span, place, start) for place in places]
    except (TypeError, ValueError):
        return False
    for window, value in zip(windows, values, strict=True):
        window[...] = value
    return all(w.tobytes() == v.tobytes() for w, v in zip(windows, values, strict=True))


def _numbers(source: Source, view: View) -> Elements:
    """A window as numbers; TypeError or ValueError for a type that NumPy has none for."""
    return source.array(view).view(number_type(view.dtype))


def _window(span: Array, place: View, start: int) -> Array:
    import numpy as np

    size = place.dtype.block_bytes
    strides = [stride * size for stride in place.strides]
    return np.ndarray(place.shape, number_type(place.dtype), span.data, place.byte_start - start, strides)


def _cast(array: Array, place: View) -> Array:
    import numpy as np

    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array.astype(number_type(place.dtype)))


def _bytes(array: Array, place: View) -> bytes:
    return _cast(array, place).tobytes()


Advance = Callable[[int], None]


def digest(source: Source, view: View, advance: Advance = lambda nbytes: None) -> str:
    """blake3 of a window's elements in row-major order, in hexadecimal.

    A window that repeats elements (stride 0) may be endless.  Its digest is that of the word `span`, its shape and
    strides, and the bytes of its span; the result is marked as such.
    """
    from blake3 import blake3

    made = blake3()
    span = view.byte_stop - view.byte_start
    if view.nbytes > span:
        made.update(f"span {list(view.shape)} {list(view.strides)} ".encode())
        for part in source.chunks(int(view.storage), view.byte_start, view.byte_stop):
            made.update(part)
        return f"span:{made.hexdigest()}"
    for chunk in source.row_major(view):
        made.update(chunk)
        advance(len(chunk))
    return made.hexdigest()
