"""Which tensors are casts of others: in one file, and between two; every number is calculated and compared.

The bytes of a narrow tensor and a wide tensor of the same shape decide two questions:

    exact     the wide tensor equals the narrow one, number for number: either can be derived from the other
    rounded   the narrow tensor is the wide one, rounded to nearest even: it can be derived from the wide one
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from paramtool.engine.compare.changes import WindowPair, number_types
from paramtool.engine.compare.equal import Named
from paramtool.engine.read.elements import Array, converted, number_type, same
from paramtool.engine.read.sampling import RowMajorBytes
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool, Stream, squeezed
from paramtool.engine.write.casting import cast
from paramtool.grouping import grouped
from paramtool.model.diff import CAST, CHANGED, ROUNDED
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.match import Match
from paramtool.model.view import View, contiguous


class CastWay(NamedTuple):
    """How one of the two is calculated from the other."""

    is_back: bool = False
    """Whether the first is calculated from the second."""
    is_by_float32: bool = False
    """Whether float64 is rounded to float32 first, and that to the shorter type, as torch does."""


WAYS = tuple(CastWay(is_back, is_by_float32) for is_back in (False, True) for is_by_float32 in (False, True))


def _types(way: CastWay, pair: WindowPair) -> tuple[DType, DType]:
    """The type that is calculated from, and that of the result."""
    return (pair.b.dtype, pair.a.dtype) if way.is_back else (pair.a.dtype, pair.b.dtype)


def _ways(pair: WindowPair) -> set[CastWay]:
    """The ways that could differ: float64 that is rounded to a type shorter than float32 can be rounded twice."""

    def rounds_twice(old: DType, new: DType) -> bool:
        is_short = new.is_inexact and new.block_bytes < DTYPES["float32"].block_bytes
        return old.name == "float64" and is_short

    return {way for way in WAYS if not way.is_by_float32 or rounds_twice(*_types(way, pair))}


def cast_verdict(a_source: Source, b_source: Source, pairs: Sequence[WindowPair], *, block_nbytes: int) -> str:
    """CAST, ROUNDED or CHANGED: all pairs that make up a tensor together, since it is either the cast of others or
    their source.  `block_nbytes` of each are read at once.
    """
    ways = {*WAYS}
    results = {*WAYS}
    """Of which what is calculated is of types to which numbers are rounded; integers wrap around."""
    for pair in pairs:
        kinds = number_types(pair.a, pair.b)
        if kinds is None or not _may_be_cast(pair.a.dtype, pair.b.dtype):
            return CHANGED
        results = {way for way in results if is_rounding(_types(way, pair)[1])}
        ways &= _ways(pair)
        for x, y in _blocks((a_source, b_source), pair, kinds, block_nbytes):
            # integers wrap around, so they need the signs of the others; floats have their own
            if "i" in (x.dtype.kind, y.dtype.kind) and not ((x < 0) == (y < 0)).all():
                return CHANGED
            ways = {way for way in ways if _holds(way, x, y, pair)}
            if not ways:
                return CHANGED
    if {CastWay(), CastWay(is_back=True)} <= ways:
        return CAST
    return ROUNDED if ways & results else CHANGED


def _holds(way: CastWay, x: Array, y: Array, pair: WindowPair) -> bool:
    """Whether a block is calculated from the other one; a NaN is any NaN, since libraries cast its payload differently.

    float32 0x7fc00000 is bfloat16 0x7fc0 by ml_dtypes 0.5, and 0xffff by torch 2.13's vectorised kernel for x86.
    """
    import numpy as np

    old, new = (y, x) if way.is_back else (x, y)
    dtypes = _types(way, pair)
    dtype = dtypes[1]
    old = cast(old, DTYPES["float32"]) if way.is_by_float32 else old
    made = np.ascontiguousarray(cast(old, dtype))
    if same(made.view("u1"), new.view("u1")):
        return True
    if not all(one.is_floating for one in dtypes):
        return False
    numbers = np.ascontiguousarray(new).view(made.dtype)
    nans = np.isnan(made)
    raw = np.dtype(f"u{made.dtype.itemsize}")
    return bool(((made.view(raw) == numbers.view(raw)) | (nans & np.isnan(numbers))).all())


def _blocks(
    sources: tuple[Source, Source], pair: WindowPair, kinds: tuple[str, str], nbytes: int
) -> Iterator[tuple[Array, Array]]:
    """The numbers of both, block by block; the first with its sign.  FormatError where a CRC is wrong."""
    import numpy as np

    a, b = squeezed(pair.a, pair.b)
    for source, view in zip(sources, (a, b), strict=True):
        source.prove_later(view.number)
    step = max(1, nbytes // max(a.dtype.block_bytes, b.dtype.block_bytes))
    left, right = Stream(sources[0], a), Stream(sources[1], b)
    for at in range(0, a.numel, step):
        count = min(step, a.numel - at)
        x, y = (np.empty(count * view.dtype.block_bytes, "u1") for view in (a, b))
        left.into(x)
        right.into(y)
        numbers = x.view(kinds[0])
        yield np.negative(numbers) if pair.sign < 0 else numbers, y.view(kinds[1])
    for source in sources:
        source.settle()


def _may_be_cast(a: DType, b: DType) -> bool:
    """Whether numbers of one type can be those of the other: complex ones are cast to complex ones only."""
    return a.name.startswith("complex") == b.name.startswith("complex")


def is_rounding(dtype: DType) -> bool:
    """Whether numbers are rounded to a type: floats of whole bytes, and no packed ones."""
    return dtype.block_elements == 1 and dtype.is_inexact


def alike(x: Array, y: Array, pair: WindowPair) -> bool:
    """Whether raw elements of two windows can be casts of each other, either way; in one type, bytes are bytes.

    For samples: whether all numbers of a tensor are casts of one kind is for `cast_verdict` to say.
    """
    a, b = pair.a.dtype, pair.b.dtype
    if a == b:
        return bool(x.tobytes() == y.tobytes())
    if narrow(a, b) is None:
        return False
    numbers, others = x.view(number_type(a)), y.view(number_type(b))
    return any(_holds(way, numbers, others, pair) for way in _ways(pair))


def narrow(a: DType, b: DType) -> DType | None:
    """Of two types of which one is the shorter one, the shorter; None for one type, and for what is not rounded."""
    if not (is_rounding(a) and is_rounding(b) and _may_be_cast(a, b)) or a == b:
        return None
    return a if a.block_bytes < b.block_bytes else b


def sample_as(source: Source, view: View, dtype: DType) -> bytes:
    """Some numbers of a window, cast to a type, as bytes; a NaN is any NaN, as in verdicts."""
    import numpy as np

    made = np.array(cast(sample(source, view), dtype))
    made[np.isnan(made)] = np.nan
    return made.tobytes()


def cast_raw(elements: Array, old: DType, dtype: DType) -> Array:
    """Raw elements of a type as numbers of another."""
    return cast(elements.view(number_type(old)), dtype)


# --- Tensors of one file that can be derived from others by a cast ---------------------------------------------------


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
    calculated, needed = set[str](), {*done}  # no tensor may be derived from a derived tensor
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
            for (name, _), (owner, view) in ways:
                if name not in calculated | needed and owner not in calculated:
                    calculated.add(name)
                    needed.add(owner)
                    yield Match(name, owner, contiguous(owner, view.dtype, view.shape), "cast", exact)
                    break


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
    narrow, wide, size = task
    kinds = number_type(narrow.dtype), number_type(wide.dtype)
    exact, rounded = True, "float" in narrow.dtype.name
    for few, many in _blocks((source, source), WindowPair(narrow, wide), kinds, size):
        exact = exact and same(converted(few, wide.dtype).view("u1"), many.view("u1"))
        rounded = rounded and same(converted(many, narrow.dtype).view("u1"), few.view("u1"))
        if not (exact or rounded):
            break
    return exact, rounded
