"""Which windows hold equal bytes, in whatever shape, and which repeat one value.

Samples first, then the bytes, each read once: block after block, a set of windows falls apart into those that are still
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from paramtool.engine.compare.refine import refined
from paramtool.engine.read.sampling import RowMajorBytes
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool, Stream, same
from paramtool.model.match import Equal, Match
from paramtool.model.view import View, contiguous

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Named = tuple[str, View]
Advance = Callable[[int], None]
Thing = TypeVar("Thing")


def equal_classes(pool: Pool, groups: Sequence[Sequence[Named]], advance: Advance) -> Iterator[Equal]:
    """Classes of two or more equal windows among groups of one dtype and size each.

    A window without a partner of the same samples is never read further.
    """
    sets = [part for group in groups for part in sampled(pool.source, group)]
    tasks = [((part, pool.block_nbytes(len(part) + 1)), [view for _, view in part]) for part in sets]
    for part, classes in zip(sets, pool.map(_compared, tasks), strict=True):
        advance(sum(view.nbytes for _, view in part))
        yield from classes


def reshaped(pool: Pool, groups: Sequence[Sequence[tuple[Named, bool]]], advance: Advance) -> Iterator[Match]:
    """Tensors that hold the row-major elements of another in another shape; no two of one shape are equal.

    Groups have one dtype and size each; with every window, whether it may stand on others.
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
    """The subsets of two or more that have one key."""
    found: dict[Hashable, list[Thing]] = {}
    for one in group:
        found.setdefault(key(one), []).append(one)
    return [subset for subset in found.values() if len(subset) > 1]


SAMPLE_NBYTES = 512
"""At most so much of a window is looked at in each place."""
SAMPLED = (1, 0, 2)
"""Where samples are taken, one place after the other: in the middle (1), where weights part first, at the beginning (0)
and at the end (2).  What parts at one is not read at the next."""


def sampled(source: Source, group: Sequence[Named]) -> list[list[Named]]:
    """The subsets that agree in a few bytes of each place."""
    subsets = [list(group)]
    for place in SAMPLED:
        for view in (view for one in subsets for _, view in one if view.is_contiguous):
            source.will_read(int(view.storage), [view.byte_start + _sampled_at(view, place)[0]], SAMPLE_NBYTES)
        subsets = [part for one in subsets for part in split(one, partial(_sample, source, place))]
    return subsets


def _sample(source: Source, place: int, named: Named) -> bytes:
    return sample(source, named[1], place)


def sample(source: Source, view: View, place: int) -> bytes:
    """A few bytes of a window, from a whole element on."""
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
    first = sample(source, view, 0)[:width]
    for place in SAMPLED:
        found = sample(source, view, place)
        if found != first * (len(found) // width):
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
