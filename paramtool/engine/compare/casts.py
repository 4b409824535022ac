"""Which tensors are others in a smaller or a larger type of number.

Two questions are asked of a narrow tensor and a wide one of the same shape, and the bytes answer both:

    exact     the wide one is the narrow one, number for number: nothing was lost, either can be had from the other
    rounded   the narrow one is the wide one, rounded to nearest even: it can be had from the wide one
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.equal import Named
from paramtool.engine.read.sampling import RowMajorBytes
from paramtool.engine.read.source import Source, number_type
from paramtool.engine.read.streams import Pool, Stream, same
from paramtool.model.dtype import DType
from paramtool.model.match import Match
from paramtool.model.view import View, contiguous

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Advance = Callable[[int], None]
SAMPLE = 32
"""Elements that are looked at before all are."""


def casts(
    pool: Pool,
    groups: Sequence[tuple[Sequence[Named], Sequence[Named]]],
    done: Collection[str],
    advance: Advance,
) -> Iterator[Match]:
    """Tensors that can be had from another by a cast: of each group, narrow windows and wide ones of one shape.

    Where nothing was lost the narrow one is kept; otherwise, or where the narrow one is in `done` and had from yet
    another tensor, the wide one.
    """
    taken = _Taken(set(done))
    for narrow, wide in groups:
        known: dict[bytes, list[Named]] = {}
        for named in narrow:
            known.setdefault(_sample(pool.source, named[1]).tobytes(), []).append(named)
        dtype = narrow[0][1].dtype
        pairs = [
            (small, large)
            for large in wide
            for small in known.get(converted(_sample(pool.source, large[1]), dtype).tobytes(), ())
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
    """What is had from others already; what is calculated must not be what others are calculated from."""

    done: set[str]
    calculated: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)

    def may(self, name: str, owner: str) -> bool:
        """Whether `name` may be calculated from `owner`; if so, it is noted."""
        if name in self.done | self.calculated | self.needed or owner in self.calculated:
            return False
        self.calculated.add(name)
        self.needed.add(owner)
        return True


def converted(numbers: Array, dtype: DType) -> Array:
    """Numbers in another type, rounded to nearest even where it is narrower."""
    import numpy as np

    with np.errstate(all="ignore"):
        return numbers.astype(number_type(dtype))


def _sample(source: Source, view: View) -> Array:
    """Numbers from the beginning, the middle and the end."""
    import numpy as np

    line, size = RowMajorBytes(source, view), view.dtype.block_bytes
    count = min(SAMPLE, view.numel)
    starts = [0, (view.numel - count) // 2, view.numel - count]
    raw = b"".join(line.part(start * size, (start + count) * size) for start in starts)
    return np.frombuffer(raw, number_type(view.dtype))


def _compared(source: Source, task: tuple[View, View, int]) -> tuple[bool, bool]:
    """Whether the wide window is the narrow one exactly, and whether the narrow one is the wide one rounded."""
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
