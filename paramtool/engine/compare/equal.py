"""Which windows hold equal bytes, in any shape, and which repeat one value.

Samples are compared first, then all bytes, each read once: block by block, a set of windows is split into the windows
that are still equal.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from paramtool.engine.read.elements import Array, same
from paramtool.engine.read.sampling import RowMajorBytes
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool, Stream, block_nbytes
from paramtool.grouping import grouped
from paramtool.model.match import Equal, Match
from paramtool.model.storage import ByteRange
from paramtool.model.view import View, contiguous

Named = tuple[str, View]
Advance = Callable[[int], None]
Thing = TypeVar("Thing")


def equal_classes(pool: Pool, groups: Sequence[Sequence[Named]], advance: Advance) -> Iterator[Equal]:
    """Classes of two or more equal windows among groups of one dtype and size each.

    A window whose samples equal those of no other window is not read further.
    """
    sets = [part for group in groups for part in sampled(group, lambda named: Window(pool.source, named[1]))]
    tasks = [((part, pool.block_nbytes(len(part) + 1)), [view for _, view in part]) for part in sets]
    for part, classes in zip(sets, pool.map(_compared, tasks), strict=True):
        advance(sum(view.nbytes for _, view in part))
        yield from classes


def reshaped(pool: Pool, groups: Sequence[Sequence[tuple[Named, bool]]], advance: Advance) -> Iterator[Match]:
    """Tensors that hold the row-major elements of another tensor in another shape; no two of one shape are equal.

    Each group has one dtype and size; with every window comes whether it may become a view of another.
    """
    moves = {name: may for group in groups for (name, _), may in group}
    views = {name: view for group in groups for (name, view), _ in group}
    for equal in equal_classes(pool, [[named for named, _ in group] for group in groups], advance):
        owner = next((name for name in equal.names if not moves[name]), equal.names[0])
        for name in equal.names:
            if name != owner and moves[name]:
                view = views[name]
                yield Match(name, owner, contiguous(owner, view.dtype, view.shape), "view")


def split(group: Sequence[Thing], key: Callable[[Thing], Hashable]) -> list[list[Thing]]:
    """The subsets of two or more with the same key."""
    found = grouped((key(one), one) for one in group)
    return [subset for subset in found.values() if len(subset) > 1]


SAMPLE_NBYTES = 512
"""The most bytes of a window that are sampled at one place."""
SAMPLED = (1, 0, 2)
"""Where samples are taken, one place after the other: in the middle (1), where weights usually differ, at the beginning
(0) and at the end (2).  Windows that differ at one place are not read at the next."""


class Window(NamedTuple):
    """A window of an open checkpoint."""

    source: Source
    view: View


def sampled(group: Iterable[Thing], window: Callable[[Thing], Window]) -> list[list[Thing]]:
    """The subsets of two or more that have equal samples at every place."""
    subsets = [list(group)]
    for place in SAMPLED:
        for source, view in (window(thing) for one in subsets for thing in one):
            if view.is_contiguous:
                source.will_read(view.number, [view.byte_start + _sampled_at(view, place)[0]], SAMPLE_NBYTES)
        subsets = [part for one in subsets for part in split(one, partial(_sample, window, place))]
    return subsets


def _sample(window: Callable[[Thing], Window], place: int, thing: Thing) -> bytes:
    return sample(*window(thing), place)


def repeated(source: Source, view: View, places: Iterable[int] = SAMPLED) -> bytes | None:
    """The element that samples of a window repeat; None where they hold several."""
    width = view.dtype.block_bytes
    first = sample(source, view, 0)[:width]
    samples = (sample(source, view, place) for place in places)
    return first if all(one == first * (len(one) // width) for one in samples) else None


def is_constant(source: Source, view: View) -> bool:
    """Whether the samples of a window repeat one element, as those of fresh norms and biases do."""
    return repeated(source, view, sorted(SAMPLED)) is not None


def sample(source: Source, view: View, place: int) -> bytes:
    """A few bytes of a window, starting with a whole element."""
    start, count = _sampled_at(view, place)
    return RowMajorBytes(source, view).part(start, start + count)


def _sampled_at(view: View, place: int) -> tuple[int, int]:
    """Where a sample begins among the row-major bytes, and how long it is: one byte in two hundred of a long window."""
    width = view.dtype.block_bytes
    count = min(view.nbytes, max(16, min(SAMPLE_NBYTES, view.nbytes // 200)))
    count -= count % width
    start = place * (view.nbytes - count) // 2
    return start - start % width, count


def _compared(source: Source, task: tuple[Sequence[Named], int]) -> list[Equal]:
    """The classes of equal windows in a set, with the digest of each."""
    names, size = task
    view = names[0][1]
    element = view.dtype.block_bytes if view.dtype.block_elements == 1 else 0
    streams = {name: Stream(source, view) for name, view in names}
    alike = refined(streams, view.nbytes, size, marks=True, element=element)
    return [Equal(tuple(one.keys), one.digest, one.is_constant) for one in alike]


def constants(pool: Pool, windows: Sequence[Named], advance: Advance) -> dict[str, bytes]:
    """{name: its one element} of the windows that repeat one value; others are only sampled."""
    tasks = [((view, pool.block_nbytes(1)), [view]) for _, view in windows]
    found = {}
    for (name, view), element in zip(windows, pool.map(_constant, tasks), strict=True):
        advance(view.nbytes)
        if element:
            found[name] = element
    return found


def _constant(source: Source, task: tuple[View, int]) -> bytes:
    """The element that a window repeats; empty if its elements differ."""
    import numpy as np

    view, size = task
    width = view.dtype.block_bytes
    if view.dtype.block_elements != 1 or not view.numel:
        return b""
    first = repeated(source, view)
    if first is None:
        return b""
    stream = Stream(source, view)
    whole = min(view.nbytes, size - size % width)
    expected = np.frombuffer(first * (whole // width), "u1")
    block = np.empty(whole, "u1")
    for at in range(0, view.nbytes, whole):
        count = min(whole, view.nbytes - at)
        stream.into(block[:count])
        if not same(block[:count], expected[:count]):
            return b""
    return first


K = TypeVar("K")
MANY = 8
"""Up to this many different blocks are compared pairwise; beyond it, only blocks with equal CRCs are."""


class Alike(Generic[K]):
    """Streams whose bytes are equal so far."""

    def __init__(self, keys: list[K], made: Any, element: int, first: Array | None = None) -> None:
        self.keys = keys
        self.made = made
        """The digest of the bytes read so far; None if it is not wanted."""
        self.element = element
        self.first = first
        """The first element; None before the first block is read."""
        self.is_constant = element > 0
        """Whether all elements so far equal the first."""

    @property
    def digest(self) -> str:
        """blake3 of the bytes."""
        return str(self.made.hexdigest())

    def part(self, keys: list[K], block: Array) -> Alike[K]:
        """The streams of `keys`, which have the next block in common, too."""
        found = Alike(keys, self.made and self.made.copy(), self.element, self.first)
        if found.made is not None:
            found.made.update(block.data)
        if self.is_constant:
            values = block.view(f"V{self.element}" if self.element > 8 else f"u{self.element}")
            found.first = values[:1].copy() if self.first is None else self.first
            found.is_constant = bool((values == found.first).all())
        else:
            found.is_constant = False
        return found


def refined(
    streams: Mapping[K, Stream], nbytes: int, size: int, *, marks: bool = False, element: int = 0
) -> list[Alike[K]]:
    """The sets of two or more equal streams of `nbytes` bytes, in the order of their first members.

    Blocks have `size` bytes.  With `marks`, each set has a digest, and whether all of its elements, of `element` bytes
    each, are equal.
    """
    import numpy as np

    made = None
    if marks:
        from blake3 import blake3

        made = blake3()
    alike = [Alike(list(streams), made, element if marks else 0)]
    buffers = [np.empty(min(size, nbytes), "u1") for _ in range(2)]
    for at in range(0, nbytes, size):
        count = min(size, nbytes - at)
        alike = [part for one in alike for part in _parts(one, streams, buffers, count)]
    order = {key: k for k, key in enumerate(streams)}
    return sorted(alike, key=lambda one: order[one.keys[0]])


def _parts(one: Alike[K], streams: Mapping[K, Stream], buffers: list[Array], count: int) -> Iterator[Alike[K]]:
    """The sets of two or more into which the next block splits a set.

    The buffer of a block that equals an earlier one is used again, so only different blocks are held.
    """
    kinds: list[tuple[Array, list[K]]] = []
    marked: dict[int, list[tuple[Array, list[K]]]] = {}
    """The different blocks by CRC, once there are many."""
    for key in one.keys:
        if len(buffers) <= len(kinds):
            buffers.append(buffers[0].copy())
        block = buffers[len(kinds)][:count]
        streams[key].into(block)
        like = kinds if len(kinds) < MANY else marked.setdefault(zlib.crc32(block.data), [])
        found = next((keys for known, keys in like if same(known, block)), None)
        if found is not None:
            found.append(key)
            continue
        kinds.append((block, [key]))
        if like is not kinds:
            like.append(kinds[-1])
        elif len(kinds) == MANY:
            for kind in kinds:
                marked.setdefault(zlib.crc32(kind[0].data), []).append(kind)
    yield from (one.part(keys, block) for block, keys in kinds if len(keys) > 1)


HELD_NBYTES = 64 << 20
"""The most bytes that the blocks of one group may take together."""


def partition(windows: Sequence[Window], advance: Advance = lambda nbytes: None) -> list[list[int]]:
    """The positions of equal windows, in classes of two or more; all are of one dtype and shape.

    FormatError where a file turns out damaged.
    """
    places = _places(windows)
    groups = sampled((positions[0] for positions in places), windows.__getitem__)
    for position in (position for group in groups for position in group):
        windows[position].source.prove_later(windows[position].view.number)
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


def _places(windows: Sequence[Window]) -> list[list[int]]:
    """Positions grouped by where the bytes are: a file with two names is not compared with itself."""
    found: dict[object, list[int]] = {}
    for position, (source, view) in enumerate(windows):
        storage = source.checkpoint.storage_of(view)
        place: object = position
        if isinstance(storage.backing, ByteRange):
            file, start = source.place(storage.id)
            status = os.fstat(file.fileno())
            place = (status.st_dev, status.st_ino, start + view.byte_start, view.strides)
        found.setdefault(place, []).append(position)
    return list(found.values())
