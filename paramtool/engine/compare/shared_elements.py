"""Whether two tensors share the same elements in one checkpoint as in another, wherever their storages hold them.

    A   x = s[0:8], y = s[4:12]      y[k] is x[k + 4], for 4 elements
    B   x = t[0:8], y = t[2:10]      y[k] is x[k + 2], for 6 elements: other ties, though both overlap

No byte is read: where an element is follows from the windows.
"""

from __future__ import annotations

from typing import NamedTuple

from paramtool.engine.read.elements import Array
from paramtool.model.view import View, contiguous_strides

BLOCK_ELEMENTS = 1 << 18
MAX_SORTED = 1 << 22
"""The most elements of a window whose strides no digits undo that are sorted.  Larger ones, and those that contain an
element twice, count as tied otherwise where their places differ."""


class TiedPair(NamedTuple):
    """Two windows on one storage."""

    one: View
    other: View


def share_alike(a: TiedPair, b: TiedPair) -> bool:
    """Whether each element of the second window is the same element of the first one, or none, in both pairs.

    Windows of unequal types are compared by their places alone.
    """
    if _places(a) == _places(b):
        return True
    if a.one.shape != b.one.shape or a.other.shape != b.other.shape:
        return False
    if any(pair.one.dtype != pair.other.dtype for pair in (a, b)):
        return False
    if any(_repeats(x) != _repeats(y) for x, y in zip(a, b, strict=True)):
        return False
    first, second = (TiedPair(_once(pair.one), _once(pair.other)) for pair in (a, b))
    import numpy as np

    finders = [_Finder(pair.one) for pair in (first, second)]
    if not all(finder.has_each_once() for finder in finders):
        return False
    for start in range(0, first.other.numel, BLOCK_ELEMENTS):
        flat = np.arange(start, min(start + BLOCK_ELEMENTS, first.other.numel))
        mine, theirs = (
            finder.find(_addresses(pair.other, flat)) for finder, pair in zip(finders, (first, second), strict=True)
        )
        if not np.array_equal(mine, theirs):
            return False
    return True


def _places(pair: TiedPair) -> tuple[object, ...]:
    one, other = pair
    return one.shape, one.strides, other.shape, other.strides, other.byte_start - one.byte_start


def _repeats(view: View) -> list[bool]:
    """Which axes repeat their elements."""
    return [size > 1 and not stride for size, stride in view.axes]


def _once(view: View) -> View:
    """A window without its axes that repeat elements."""
    keep = [k for k, is_repeated in enumerate(_repeats(view)) if not is_repeated]
    shape, strides = (tuple(of[k] for k in keep) for of in (view.shape, view.strides))
    return view.with_axes(shape, strides)


def _addresses(view: View, flat: Array) -> Array:
    """Where elements are in the storage, by their row-major numbers."""
    import numpy as np

    index = np.unravel_index(flat, view.shape) if view.shape else ()
    found: Array = np.full(flat.shape, view.offset, "i8")
    for at, stride in zip(index, view.strides, strict=True):
        found = found + at * stride
    return found


class _Finder:
    """The row-major numbers of the elements of a window at some places in its storage; -1 where it has none."""

    def __init__(self, view: View) -> None:
        self.view = view
        axes = [k for k, size in enumerate(view.shape) if size > 1]
        self.axes = sorted(axes, key=lambda k: -view.strides[k])
        inner = 0
        self.is_nested = True
        for k in reversed(self.axes):
            self.is_nested = self.is_nested and view.strides[k] > inner
            inner += (view.shape[k] - 1) * view.strides[k]
        self._sorted: tuple[Array, Array] | None = None

    def has_each_once(self) -> bool:
        """Whether it is known that no two elements are at one place."""
        if self.is_nested or self.view.numel > MAX_SORTED:
            return self.is_nested
        own, _ = self._in_order()
        return bool((own[1:] != own[:-1]).all())

    def find(self, addresses: Array) -> Array:
        """Their numbers."""
        return self._by_digits(addresses) if self.is_nested else self._by_order(addresses)

    def _by_digits(self, addresses: Array) -> Array:
        import numpy as np

        rest = addresses - self.view.offset
        is_inside = rest >= 0
        numbers = np.zeros(addresses.shape, "i8")
        weights = contiguous_strides(self.view.shape)
        for k in self.axes:
            digit, rest = rest // self.view.strides[k], rest % self.view.strides[k]
            is_inside &= digit < self.view.shape[k]
            numbers += digit * weights[k]
        return np.where(is_inside & (rest == 0), numbers, -1)

    def _in_order(self) -> tuple[Array, Array]:
        """The places of all elements, ascending, and their numbers."""
        import numpy as np

        if self._sorted is None:
            own = _addresses(self.view, np.arange(self.view.numel))
            order = np.argsort(own, kind="stable")
            self._sorted = own[order], order
        return self._sorted

    def _by_order(self, addresses: Array) -> Array:
        import numpy as np

        own, order = self._in_order()
        place = np.minimum(np.searchsorted(own, addresses), len(own) - 1)
        return np.where(own[place] == addresses, order[place], -1)
