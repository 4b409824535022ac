"""A window as its row-major bytes, read at any positions, wherever they are in the source."""

from __future__ import annotations

from paramtool.engine.read.elements import PAGE_NBYTES, Array
from paramtool.engine.read.source import Source
from paramtool.model.view import View


class RowMajorBytes:
    """The row-major bytes of a window whose elements are whole bytes; only what is asked for is read.

    Positions and lengths are in bytes, and multiples of the element size.
    """

    def __init__(self, source: Source, view: View) -> None:
        self._source = source
        self._view = view

    def take(self, starts: Array, nbytes: int) -> Array:
        """`nbytes` bytes from each start on, one row for each; starts must ascend."""
        view, storage = self._view, self._view.number
        if view.is_contiguous:
            places = view.byte_start + starts
            if len(places) < 2 or int(places[-1] - places[0]) > len(places) * PAGE_NBYTES:
                self._source.will_read(storage, map(int, places), nbytes)
            return self._source.take(storage, places, nbytes)
        import numpy as np

        width = view.dtype.block_bytes
        elements = starts[:, None] // width + np.arange(nbytes // width)
        index = np.unravel_index(elements.reshape(-1), view.shape)
        index_of = view.offset + sum(at * stride for at, stride in zip(index, view.strides, strict=True))
        return self._source.take(storage, np.asarray(index_of) * width, width).reshape(len(starts), nbytes)

    def part(self, start: int, stop: int) -> bytes:
        """The bytes from one position to another."""
        view = self._view
        if view.is_contiguous:
            return self._source.read(view.number, view.byte_start + start, stop - start)
        import numpy as np

        return self.take(np.array([start]), stop - start).tobytes()
