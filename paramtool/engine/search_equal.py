"""Which windows hold equal bytes, and which repeat one value: samples first, then the bytes, each read once.

Many windows are compared in one pass: block after block, a set of windows falls apart into those that are still alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from paramtool.engine.source import Source
from paramtool.engine.streams import Pool, Stream, same
from paramtool.model.match import Equal
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Named = tuple[str, View]
Advance = Callable[[int], None]
Mark = TypeVar("Mark")


def equal_classes(pool: Pool, groups: Sequence[Sequence[Named]], advance: Advance) -> Iterator[Equal]:
    """Classes of two or more equal windows among groups of one dtype and shape each.

    A window without a partner of the same samples is never read further.
    """
    sets = [part for group in groups for part in sampled(pool.source, group)]
    tasks = [((part, pool.block_nbytes(len(part) + 1)), [view for _, view in part]) for part in sets]
    for part, classes in zip(sets, pool.map(_compared, tasks), strict=True):
        advance(sum(view.nbytes for _, view in part))
        yield from classes


def split(group: Sequence[Named], key: Callable[[Named], Mark]) -> list[list[Named]]:
    """The subsets of two or more that have one key."""
    found: dict[Mark, list[Named]] = {}
    for named in group:
        found.setdefault(key(named), []).append(named)
    return [subset for subset in found.values() if len(subset) > 1]


def sampled(source: Source, group: Sequence[Named]) -> list[list[Named]]:
    """The subsets that agree in a few bytes of the middle, then of the beginning and the end.

    One place after the other: weights part at the first, and the others are then never read.
    """
    subsets = [list(group)]
    for place in (1, 0, 2):
        subsets = [part for one in subsets for part in split(one, partial(_sample, source, place))]
    return subsets


def _sample(source: Source, place: int, named: Named) -> bytes:
    """A few bytes from the beginning (0), the middle (1) or the end (2): one in two hundred of a long window."""
    view = named[1]
    width = view.dtype.block_bytes
    count = min(view.nbytes, max(16, min(512, view.nbytes // 200)))
    if view.is_contiguous:
        start = place * (view.nbytes - count) // 2
        return source.read(int(view.storage), view.byte_start + start - start % width, count)
    count = min(view.numel, max(1, count // width))
    start = place * (view.numel - count) // 2
    source.nbytes_read += count * width
    return source.array(view).flat[start : start + count].tobytes()


def _compared(source: Source, task: tuple[Sequence[Named], int]) -> list[Equal]:
    """The classes of equal windows in a set, with the digest of each."""
    import numpy as np
    from blake3 import blake3

    names, size = task
    views = dict(names)
    nbytes = names[0][1].nbytes
    streams = {name: Stream(source, view) for name, view in names}
    element = names[0][1].dtype.block_bytes if names[0][1].dtype.block_elements == 1 else 0
    alike = [_Alike([name for name, _ in names], blake3(), element)]
    buffers = [np.empty(min(size, nbytes), "u1") for _ in range(2)]
    for at in range(0, nbytes, size):
        count = min(size, nbytes - at)
        alike = [part for one in alike for part in _parted(one, streams, buffers, count)]
    order = {name: k for k, name in enumerate(views)}
    return [
        Equal(tuple(sorted(one.names, key=order.__getitem__)), one.digest.hexdigest(), one.is_constant)
        for one in sorted(alike, key=lambda one: order[one.names[0]])
    ]


class _Alike:
    """Names whose bytes agree so far."""

    def __init__(self, names: list[str], digest: Any, element: int, first: Array | None = None) -> None:
        self.names = names
        self.digest = digest
        self.element = element
        self.first = first
        """The first element, for as long as all are like it; None before the first block."""
        self.is_constant = element > 0

    def take(self, block: Array) -> None:
        """Note one more block that all of them have."""
        self.digest.update(block.data)
        if self.is_constant:
            values = block.view(f"V{self.element}" if self.element > 8 else f"u{self.element}")
            self.first = values[:1].copy() if self.first is None else self.first
            self.is_constant = bool((values == self.first).all())


def _parted(one: _Alike, streams: dict[str, Stream], buffers: list[Array], count: int) -> Iterator[_Alike]:
    """What a set falls apart into at the next block: those of two or more."""
    kinds: list[tuple[Array, list[str]]] = []
    for name in one.names:
        if len(buffers) <= len(kinds):
            buffers.append(buffers[0].copy())
        block = buffers[len(kinds)][:count]
        streams[name].into(block)
        found = next((names for known, names in kinds if same(known, block)), None)
        if found is None:
            kinds.append((block, [name]))
        else:
            found.append(name)
    parts = [(block, names) for block, names in kinds if len(names) > 1]
    for k, (block, names) in enumerate(parts):
        last = k == len(parts) - 1
        part = _Alike(names, one.digest if last else one.digest.copy(), one.element, one.first)
        part.is_constant = one.is_constant
        part.take(block)
        yield part


def constants(pool: Pool, windows: Sequence[Named], advance: Advance) -> dict[str, bytes]:
    """{name: its one element} of the windows that repeat one value; only those that look so are read."""
    tasks = [((view, pool.block_nbytes(1)), [view]) for _, view in windows]
    found = {}
    for (name, view), element in zip(windows, pool.map(_constant, tasks), strict=True):
        advance(view.nbytes)
        if element:
            found[name] = element
    return found


def _constant(source: Source, task: tuple[View, int]) -> bytes:
    """The one element of a window, or nothing."""
    import numpy as np

    view, size = task
    width = view.dtype.block_bytes
    if view.dtype.block_elements != 1 or not view.numel:
        return b""
    first = _sample(source, 0, ("", view))[:width]
    for place in (1, 0, 2):
        sample = _sample(source, place, ("", view))
        if sample[: len(sample) // width * width] != first * (len(sample) // width):
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
