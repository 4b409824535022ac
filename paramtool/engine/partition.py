"""Which of many windows, of any checkpoints, hold the same bytes: all are read together, block by block.

After each block a group is split into those that agreed in it, and who is alone is not read further.  So every window
is read at most once, what differs early is hardly read at all, and what is left at the end is equal, byte by byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from paramtool.engine.source import Source
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

Advance = Callable[[int], None]
SAMPLE_NBYTES = 512
"""Compared of the middle, the beginning and the end, before anything is read in full."""
MAX_BLOCK_NBYTES = 1 << 20
MIN_BLOCK_NBYTES = 1 << 16
HELD_NBYTES = 64 << 20
"""About what the blocks of one group may take together, as long as they are not smaller than the least."""


class Window(NamedTuple):
    """A window of an open checkpoint."""

    source: Source
    view: View

    def read(self, start: int, stop: int) -> bytes:
        """Elements (blocks, of packed types) `start` to `stop`, row by row."""
        size = self.view.dtype.block_bytes
        if self.view.is_contiguous:
            place = self.view.byte_start + start * size
            return self.source.read(int(self.view.storage), place, (stop - start) * size)
        import numpy as np

        self.source.nbytes_read += (stop - start) * size
        return np.ascontiguousarray(self.source.array(self.view).flat[start:stop]).tobytes()


def partition(windows: Sequence[Window], advance: Advance = lambda nbytes: None) -> list[list[int]]:
    """The positions of equal windows, in classes of two or more; all are of one dtype and shape.

    FormatError where a file turns out damaged.
    """
    places = _places(windows)
    groups = [[positions[0] for positions in places]]
    for start, stop in _samples(windows[0].view):
        groups = _split_all(windows, groups, start, stop, advance)
    _prove(windows, groups)
    for start, stop in _blocks(windows[0].view, len(places)):
        groups = _split_all(windows, groups, start, stop, advance)
    for window in windows:
        window.source.settle()
    twins = {positions[0]: positions for positions in places}
    found = [sorted(p for head in group for p in twins.pop(head)) for group in groups if len(group) > 1]
    return sorted([*found, *(positions for positions in twins.values() if len(positions) > 1)])


def _places(windows: Sequence[Window]) -> list[list[int]]:
    """Positions by where the bytes stand: a file that has two names is not compared with itself."""
    found: dict[object, list[int]] = {}
    for position, (source, view) in enumerate(windows):
        storage = source.checkpoint.storages[int(view.storage)]
        place: object = position
        if isinstance(storage.backing, ByteRange):
            file, start = source.place(storage.id)
            status = os.fstat(file.fileno())
            place = (status.st_dev, status.st_ino, start + view.byte_start, view.strides)
        found.setdefault(place, []).append(position)
    return list(found.values())


def _prove(windows: Sequence[Window], groups: list[list[int]]) -> None:
    """Begin to compare what the containers say of the bytes that are now read in full."""
    for position in (position for group in groups if len(group) > 1 for position in group):
        windows[position].source.prove_later(int(windows[position].view.storage))


def _samples(view: View) -> Iterator[tuple[int, int]]:
    """A few elements of the middle, the beginning and the end; none of a window that is hardly longer."""
    count = view.nbytes // view.dtype.block_bytes
    few = max(1, SAMPLE_NBYTES // view.dtype.block_bytes)
    if count > 8 * few:
        for start in ((count - few) // 2, 0, count - few):
            yield start, start + few


def _blocks(view: View, many: int) -> Iterator[tuple[int, int]]:
    """All elements, so many at once that the blocks of all windows can be held together."""
    count = view.nbytes // view.dtype.block_bytes
    nbytes = min(MAX_BLOCK_NBYTES, max(MIN_BLOCK_NBYTES, HELD_NBYTES // many))
    step = max(1, nbytes // view.dtype.block_bytes)
    return ((start, min(start + step, count)) for start in range(0, count, step))


def _split_all(
    windows: Sequence[Window], groups: list[list[int]], start: int, stop: int, advance: Advance
) -> list[list[int]]:
    """Every group, split into those that agree in some elements."""
    found = []
    for group in groups:
        if len(group) > 1:
            found += _split(windows, group, start, stop)
            advance((stop - start) * windows[group[0]].view.dtype.block_bytes * len(group))
    return found


def _split(windows: Sequence[Window], group: list[int], start: int, stop: int) -> list[list[int]]:
    kinds: dict[bytes, list[tuple[bytes, list[int]]]] = {}
    for position in group:
        data = windows[position].read(start, stop)
        like = kinds.setdefault(data[:32] + data[-32:], [])
        for known, members in like:
            if known == data:
                members.append(position)
                break
        else:
            like.append((data, [position]))
    return [members for like in kinds.values() for _, members in like]
