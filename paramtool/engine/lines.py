"""A window as one line of its row-major elements, looked at here and there, wherever they stand in the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paramtool.engine.source import Source
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PAGE_NBYTES = 4096
"""Places that are farther apart are read page by page; of nearer ones all pages are needed."""


class Line:
    """The row-major bytes of a window, of a type whose elements are whole bytes; nothing is read unasked.

    Places and lengths are in bytes, and multiples of an element.
    """

    def __init__(self, source: Source, view: View) -> None:
        self._source = source
        self._view = view

    def take(self, starts: Array, nbytes: int) -> Array:
        """So many bytes from each start on, one row a start; starts ascend."""
        self._source.nbytes_read += len(starts) * nbytes
        far = len(starts) < 2 or int(starts[-1] - starts[0]) > len(starts) * PAGE_NBYTES
        if self._view.is_contiguous:
            return self._standing(starts, nbytes, far)
        return self._elements(starts, nbytes, far)

    def _standing(self, starts: Array, nbytes: int, far: bool) -> Array:
        import numpy as np

        view, storage = self._view, int(self._view.storage)
        if far:
            self._source.will_read(storage, (view.byte_start + int(start) for start in starts), nbytes)
        plain = contiguous(view.storage, DTYPES["uint8"], (view.nbytes,), view.byte_start)
        raw = self._source.array(plain, scattered=far)
        return np.lib.stride_tricks.sliding_window_view(raw, nbytes)[starts]

    def _elements(self, starts: Array, nbytes: int, far: bool) -> Array:
        import numpy as np

        width = self._view.dtype.block_bytes
        places = starts[:, None] // width + np.arange(nbytes // width)
        found: Array = self._source.array(self._view, scattered=far).flat[places.reshape(-1)]
        return found.view("u1").reshape(len(starts), nbytes)

    def part(self, start: int, stop: int) -> bytes:
        """The bytes from one place to another."""
        view, width = self._view, self._view.dtype.block_bytes
        if view.is_contiguous:
            return self._source.read(int(view.storage), view.byte_start + start, stop - start)
        self._source.nbytes_read += stop - start
        array = self._source.array(view, scattered=stop - start < PAGE_NBYTES)
        return bytes(array.flat[start // width : stop // width].tobytes())
