"""Which tensors are casts of others to a narrower or a wider type of number.

The bytes of a narrow tensor and a wide tensor of the same shape decide two questions:

    exact     the wide tensor equals the narrow one, number for number: either can be derived from the other
    rounded   the narrow tensor is the wide one, rounded to nearest even: it can be derived from the wide one
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.equal import Named
from paramtool.engine.read.elements import converted, number_type, same
from paramtool.engine.read.sampling import RowMajorBytes
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool, Stream
from paramtool.grouping import grouped
from paramtool.model.match import Match
from paramtool.model.view import View, contiguous

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Advance = Callable[[int], None]
SAMPLE = 32
"""How many elements are compared before all are."""


def casts(
    pool: Pool,
    groups: Sequence[tuple[Sequence[Named], Sequence[Named]]],
    done: Collection[str],
    advance: Advance,
) -> Iterator[Match]:
    """Tensors that can be derived from another by a cast; each group has the narrow and the wide windows of one shape.

    If the cast is exact, the narrow tensor is stored.  The wide tensor is stored if the cast rounds, or if the narrow
    tensor is in `done`, since it is derived from a third tensor.
    """
    taken = _Taken(set(done))
    for narrow, wide in groups:
        known = grouped((sample(pool.source, named[1]).tobytes(), named) for named in narrow)
        dtype = narrow[0][1].dtype
        pairs = [
            (small, large)
            for large in wide
            for small in known.get(converted(sample(pool.source, large[1]), dtype).tobytes(), ())
        ]
        size = pool.block_nbytes(4)
        tasks = [((small[1], large[1], size), [small[1], large[1]]) for small, large in pairs]
        for (small, large), (exact, rounded) in zip(pairs, pool.map(_compared, tasks), strict=True):
            advance(small[1].nbytes + large[1].nbytes)
            ways = [(large, small)] * exact + [(small, large)] * rounded
            name, owner = next((way for way in ways if taken.may(way[0][0], way[1][0])), (None, None))
            if name and owner:
                window = contiguous(owner[0], owner[1].dtype, owner[1].shape)
                yield Match(name[0], owner[0], window, "cast", exact)


@dataclass
class _Taken:
    """Which tensors are derived already: no tensor may be derived from a derived tensor."""

    done: set[str]
    calculated: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)

    def may(self, name: str, owner: str) -> bool:
        """Whether `name` may be derived from `owner`; if so, that is noted."""
        if name in self.done | self.calculated | self.needed or owner in self.calculated:
            return False
        self.calculated.add(name)
        self.needed.add(owner)
        return True


def sample(source: Source, view: View) -> Array:
    """Some numbers of a window, from the beginning, the middle and the end."""
    import numpy as np

    row_major, size = RowMajorBytes(source, view), view.dtype.block_bytes
    count = min(SAMPLE, view.numel)
    starts = [0, (view.numel - count) // 2, view.numel - count]
    raw = b"".join(row_major.part(start * size, (start + count) * size) for start in starts)
    return np.frombuffer(raw, number_type(view.dtype))


def _compared(source: Source, task: tuple[View, View, int]) -> tuple[bool, bool]:
    """(whether the wide window equals the narrow one exactly, whether the narrow window is the wide one rounded)."""
    import numpy as np

    narrow, wide, size = task
    step = size // wide.dtype.block_bytes
    few, many = (np.empty(step * view.dtype.block_bytes, "u1") for view in (narrow, wide))
    small, large = Stream(source, narrow), Stream(source, wide)
    exact, rounded = True, "float" in narrow.dtype.name
    for at in range(0, wide.numel, step):
        count = min(step, wide.numel - at)
        a, b = few[: count * narrow.dtype.block_bytes], many[: count * wide.dtype.block_bytes]
        small.into(a)
        large.into(b)
        exact = exact and same(converted(a.view(number_type(narrow.dtype)), wide.dtype).view("u1"), b)
        rounded = rounded and same(converted(b.view(number_type(wide.dtype)), narrow.dtype).view("u1"), a)
        if not (exact or rounded):
            break
    return exact, rounded
