"""Which of many windows, of any checkpoints, hold the same bytes: all are read together, block by block.

Samples first; then `refine` reads what still could be equal, every window at most once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from paramtool.engine.compare.equal import SAMPLED, sample, split
from paramtool.engine.compare.refine import refined
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Stream, block_nbytes
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

Advance = Callable[[int], None]
HELD_NBYTES = 64 << 20
"""What the blocks of one group may take together."""


class Window(NamedTuple):
    """A window of an open checkpoint."""

    source: Source
    view: View


def partition(windows: Sequence[Window], advance: Advance = lambda nbytes: None) -> list[list[int]]:
    """The positions of equal windows, in classes of two or more; all are of one dtype and shape.

    FormatError where a file turns out damaged.
    """
    places = _places(windows)
    groups = [[positions[0] for positions in places]]
    for place in SAMPLED:
        groups = [part for group in groups for part in split(group, partial(_sample, windows, place))]
    _prove(windows, groups)
    found = []
    for group in groups:
        size = block_nbytes(HELD_NBYTES, len(group) + 1)
        streams = {k: Stream(*windows[k]) for k in group}
        found += [one.keys for one in refined(streams, windows[group[0]].view.nbytes, size)]
        advance(sum(windows[k].view.nbytes for k in group))
    for window in windows:
        window.source.settle()
    twins = {positions[0]: positions for positions in places}
    equal = [sorted(p for head in keys for p in twins.pop(head)) for keys in found]
    return sorted([*equal, *(positions for positions in twins.values() if len(positions) > 1)])


def _sample(windows: Sequence[Window], place: int, number: int) -> bytes:
    return sample(*windows[number], place)


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
