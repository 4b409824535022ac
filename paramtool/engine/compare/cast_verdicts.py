"""Whether a tensor of one checkpoint is a cast of those of another: every number is calculated and compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.casts import sample
from paramtool.engine.compare.changes import number_types
from paramtool.engine.read.elements import same
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Stream, squeezed
from paramtool.engine.write.casting import cast
from paramtool.model.diff import CAST, CHANGED, ROUNDED
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

REAL = ("float", "bfloat")
"""What the names of types of floating point begin with, that are not complex."""
ROUNDING = (*REAL, "complex")
"""What the names of types begin with to which numbers are rounded; integers wrap around."""


class CastPair(NamedTuple):
    """A window of the first checkpoint, and one of the second of its shape that could be its cast."""

    a: View
    b: View
    sign: int = 1
    """-1 where the second is the cast of the negated first."""


class CastWay(NamedTuple):
    """How one of the two is calculated from the other."""

    is_back: bool = False
    """Whether the first is calculated from the second."""
    is_by_float32: bool = False
    """Whether float64 is rounded to float32 first, and that to the shorter type, as torch does."""


class CastTypes(NamedTuple):
    """The types of the two."""

    a: DType
    b: DType

    def of(self, way: CastWay) -> tuple[DType, DType]:
        """The type that is calculated from, and that of the result."""
        return (self.b, self.a) if way.is_back else (self.a, self.b)

    def ways(self) -> set[CastWay]:
        """The ways that could differ."""
        every = {CastWay(back, wide) for back in (False, True) for wide in (False, True)}
        return {way for way in every if not way.is_by_float32 or _rounds_twice(*self.of(way))}


class CastTask(NamedTuple):
    """The pairs that make up a tensor, and how many bytes of each are read at once."""

    pairs: Sequence[CastPair]
    block_nbytes: int


def cast_verdict(a_source: Source, b_source: Source, task: CastTask) -> str:
    """CAST, ROUNDED or CHANGED: all pairs together, since one tensor is either the cast of others or their source."""
    ways = {CastWay(back, wide) for back in (False, True) for wide in (False, True)}
    results = dict.fromkeys(ways, True)
    """Whether what a way calculates is of types to which numbers are rounded; integers wrap around."""
    for pair in task.pairs:
        types, kinds = CastTypes(pair.a.dtype, pair.b.dtype), number_types(pair.a, pair.b)
        if kinds is None or not _may_be_cast(types):
            return CHANGED
        results = {way: is_all and is_rounding(types.of(way)[1]) for way, is_all in results.items()}
        ways &= types.ways()
        for x, y in _blocks((a_source, b_source), pair, kinds, task.block_nbytes):
            ways = {way for way in ways if _holds(way, x, y, types)} if _same_signs(x, y) else set()
            if not ways:
                return CHANGED
    if {CastWay(), CastWay(is_back=True)} <= ways:
        return CAST
    return ROUNDED if any(results[way] for way in ways) else CHANGED


def _rounds_twice(old: DType, new: DType) -> bool:
    return old.name == "float64" and new.name.startswith(ROUNDING) and new.block_bytes < DTYPES["float32"].block_bytes


def _holds(way: CastWay, x: Array, y: Array, types: CastTypes) -> bool:
    """Whether a block is calculated from the other one; a NaN is any NaN, since libraries cast its payload differently.

    float32 0x7fc00000 is bfloat16 0x7fc0 by ml_dtypes 0.5, and 0xffff by torch 2.13's vectorised kernel for x86.
    """
    import numpy as np

    old, new = (y, x) if way.is_back else (x, y)
    _, dtype = types.of(way)
    old = cast(old, DTYPES["float32"]) if way.is_by_float32 else old
    made = np.ascontiguousarray(cast(old, dtype))
    if same(made.view("u1"), new.view("u1")):
        return True
    if not (types.a.name.startswith(REAL) and types.b.name.startswith(REAL)):
        return False
    numbers = np.ascontiguousarray(new).view(made.dtype)
    nans = np.isnan(made)
    raw = np.dtype(f"u{made.dtype.itemsize}")
    return bool(((made.view(raw) == numbers.view(raw)) | (nans & np.isnan(numbers))).all())


def _blocks(
    sources: tuple[Source, Source], pair: CastPair, kinds: tuple[str, str], nbytes: int
) -> Iterator[tuple[Array, Array]]:
    """The numbers of both, block by block; the first with its sign.  FormatError where a CRC is wrong."""
    import numpy as np

    a, b = squeezed(pair.a, pair.b)
    for source, view in zip(sources, (a, b), strict=True):
        source.prove_later(int(view.storage))
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


def _may_be_cast(types: CastTypes) -> bool:
    """Whether numbers of one type can be those of the other: complex ones are cast to complex ones only."""
    return types.a.name.startswith("complex") == types.b.name.startswith("complex")


def _same_signs(x: Array, y: Array) -> bool:
    """Whether integers have the signs of the others, since they wrap around; floats have their own."""
    if "i" not in (x.dtype.kind, y.dtype.kind):
        return True
    return bool(((x < 0) == (y < 0)).all())


def is_rounding(dtype: DType) -> bool:
    """Whether numbers are rounded to a type: floats of whole bytes, and no packed ones."""
    return dtype.block_elements == 1 and dtype.name.startswith(ROUNDING)


def alike(x: Array, a: DType, y: Array, b: DType) -> bool:
    """Whether raw elements of two types can be casts of each other, in either direction; bytes are bytes in one type.

    For samples: whether all numbers of a tensor are casts of one kind is for `cast_verdict` to say.
    """
    from paramtool.engine.read.elements import number_type

    if a == b:
        return bool(x.tobytes() == y.tobytes())
    types = CastTypes(a, b)
    if not (is_rounding(a) and is_rounding(b) and _may_be_cast(types)):
        return False
    numbers, others = x.view(number_type(a)), y.view(number_type(b))
    return any(_holds(way, numbers, others, types) for way in types.ways())


def narrow(a: DType, b: DType) -> DType | None:
    """Of two types of which one is the shorter one, the shorter; None for one type, and for what is not rounded."""
    if not (is_rounding(a) and is_rounding(b) and _may_be_cast(CastTypes(a, b))) or a == b:
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
    from paramtool.engine.read.elements import number_type

    return cast(elements.view(number_type(old)), dtype)
