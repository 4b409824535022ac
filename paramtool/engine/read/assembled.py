"""Bytes of an assembled tensor, collected from its parts when they are asked for; nothing is stored in between.

    the tensor, row-major      0 1 2 3 | 4 5 6 7        here   boxes of it: columns 0-1, and columns 2-3
    asked: bytes of 2 to 5         2 3   4 5            there  each box in a storage of its own

The elements that are asked for are boxes of each part, and each box is read from the storage where it is.  Where the
parts are runs of bytes, as shards of rows are, a writer asks for the runs and copies each from its file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from paramtool.model.dtype import DTYPES
from paramtool.model.storage import Assembled, Part
from paramtool.model.tiling import within
from paramtool.model.view import View, contiguous

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BYTE = DTYPES["uint8"]
Fill = Callable[[int, int, memoryview], None]
"""Fills a buffer with the bytes of a storage: its number, where they begin, and the buffer."""
Take = Callable[[View, tuple[slice, ...]], "Array"]
"""The elements of a box of a window, as an array of raw elements."""


class Assembly:
    """The parts of an assembled tensor, in the order in which they begin."""

    __slots__ = ("_parts", "_reach", "_starts")

    def __init__(self, backing: Assembled) -> None:
        self._parts = sorted((part for part in backing.parts if part.here.numel), key=lambda part: part.here.byte_start)
        self._starts = [part.here.byte_start for part in self._parts]
        self._reach = list(accumulate((part.here.byte_stop for part in self._parts), max))
        """For each part, the last byte of it and of all before it."""

    def storages(self) -> list[int]:
        """The numbers of the storages that it is read from, each once."""
        return list(dict.fromkeys(int(part.there.storage) for part in self._parts))

    def runs(self, start: int, stop: int) -> list[View]:
        """Windows of bytes on other storages that are bytes `start` to `stop` of the tensor, in order.

        An empty list if a part that is asked for is not a run of bytes.
        """
        found: list[View] = []
        at = start
        for part in self._near(start, stop):
            here, there = part.here, part.there
            if not here.is_contiguous or not there.is_contiguous or here.byte_start > at:
                return []
            end = min(stop, here.byte_stop)
            found.append(contiguous(there.storage, BYTE, (end - at,), there.byte_start + at - here.byte_start))
            at = end
        return found if at == stop else []

    def fill(self, start: int, buffer: memoryview, fill: Fill, take: Take) -> None:
        """Fill a buffer with the bytes of the tensor from byte `start` on."""
        stop = start + len(buffer)
        for part in self._near(start, stop):
            here, there = part.here, part.there
            if here.is_contiguous and there.is_contiguous:
                low, high = max(start, here.byte_start), min(stop, here.byte_stop)
                fill(int(there.storage), there.byte_start + low - here.byte_start, buffer[low - start : high - start])
            else:
                _fill_boxes(part, start, buffer, take)

    def _near(self, start: int, stop: int) -> Iterator[Part]:
        """The parts that can have bytes from `start` to `stop`."""
        for k in range(bisect_right(self._reach, start), bisect_left(self._starts, stop)):
            if self._parts[k].here.byte_stop > start:
                yield self._parts[k]


def _fill_boxes(part: Part, start: int, buffer: memoryview, take: Take) -> None:
    """Fill the elements of a part that are in a buffer; those that cross its ends are read whole."""
    import numpy as np

    here, size = part.here, part.here.dtype.block_bytes
    low, high = start - start % size, start + len(buffer) + -(start + len(buffer)) % size
    is_whole = (low, high) == (start, start + len(buffer))
    room = np.frombuffer(buffer if is_whole else bytearray(high - low), "u1")
    if not is_whole:
        room[start - low : start - low + len(buffer)] = np.frombuffer(buffer, "u1")
    for box in within(here, low, high):
        values = take(part.there, box)
        at = here.byte_start - low + size * sum(a.start * s for a, s in zip(box, here.strides, strict=True))
        out = np.ndarray(values.shape, values.dtype, room.data, at, [stride * size for stride in here.strides])
        out[...] = values
    if not is_whole:
        buffer[:] = room[start - low : start - low + len(buffer)].data
