"""Casts of numbers to another floating point type, and what they lose, counted block by block while they are written.

Numbers are rounded once, to nearest, ties to even (IEEE 754).  NaNs stay NaNs; their payload is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from paramtool.engine.read.elements import Array, converted
from paramtool.lazy_dataclass import frozen
from paramtool.model.dtype import DType

THROUGH_FLOAT32 = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Types that ml_dtypes casts float64 to in two steps, by way of float32, which would round twice."""


SMALLEST_NORMAL = {
    "float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022,
    "float8_e4m3fn": 2.0**-6, "float8_e5m2": 2.0**-14,
}  # fmt: skip
"""{type: its smallest number that has all its digits}: IEEE 754, and OCP's 8-bit types (arXiv:2209.05433)."""
PIECE = 1 << 16
"""How many numbers are counted at once."""


@frozen
class Losses:
    """What casting a tensor did to its elements."""

    elements: int = 0
    rounded: int = 0
    """Finite numbers that changed and are still finite; those that became zero or subnormal are among them."""
    overflow: int = 0
    """Finite numbers that became infinite, or NaN where the type has no infinity, and infinities that became NaN."""
    to_zero: int = 0
    """Numbers that became zero."""
    subnormal: int = 0
    """Numbers that changed and are now smaller than the type's smallest normal number, and not zero."""
    nan: int = 0
    """NaNs, which stay NaNs."""

    def __add__(self, other: Losses) -> Losses:
        """The losses of two parts of a tensor."""
        return Losses(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


class Counts(dict[str, Losses]):
    """{stored tensor: what its cast did}, filled while it is written, or read for a dry run."""

    def add(self, name: str, before: Array, after: Array) -> None:
        """Count one block."""
        self.merge({name: losses(before, after)})

    def merge(self, more: Mapping[str, Losses]) -> None:
        """Add what was counted apart."""
        for name, lost in more.items():
            self[name] = self.get(name, Losses()) + lost


def cast(numbers: Array, dtype: DType) -> Array:
    """Numbers in another type, rounded once, to nearest, ties to even."""
    import numpy as np

    if numbers.dtype == np.dtype("f8") and dtype.name in THROUGH_FLOAT32:
        with np.errstate(all="ignore"):
            # float64 as float32, rounded to odd: a further rounding to a type of at most 22 bits is then as if it was
            # alone
            import numpy as np

            found = numbers.astype("f4")
            wide = found.astype("f8")
            changed = (wide != numbers) & ~np.isnan(numbers)
            bits = found.view("u4")
            bits -= changed & (np.abs(wide) > np.abs(numbers))  # to the neighbour that is nearer to zero
            bits |= changed
            numbers = found
    return converted(numbers, dtype)


def losses(before: Array, after: Array) -> Losses:
    """What a cast did to a block of numbers; piece by piece, so that they stay in a processor's cache."""
    count = _integer_losses if before.dtype.kind in "iub" else _float_losses
    before, after = before.reshape(-1), after.reshape(-1)
    total = Losses()
    for at in range(0, before.size, PIECE):
        total += count(before[at : at + PIECE], after[at : at + PIECE])
    return total


def _float_losses(before: Array, after: Array) -> Losses:
    """The losses of one piece of floating point numbers."""
    import numpy as np

    wide = before if before.dtype.name in ("float32", "float64") else before.astype("f4")
    with np.errstate(all="ignore"):
        back = after.astype(wide.dtype if after.dtype.itemsize <= wide.dtype.itemsize else "f8")
        changed = back != wide
        if not changed.any():
            return Losses(before.size)
        nan = overflow = 0
        if not np.isfinite(back).all():
            was, now = np.isnan(wide), np.isnan(back)
            nan = int(np.count_nonzero(was))
            overflow = int(np.count_nonzero((np.isinf(back) & np.isfinite(wide)) | (now & ~was)))
        small = changed & (np.abs(back) < back.dtype.type(SMALLEST_NORMAL[after.dtype.name]))
        small_count = int(np.count_nonzero(small))
        to_zero = int(np.count_nonzero(small & (back == 0))) if small_count else 0
    rounded = int(np.count_nonzero(changed)) - nan - overflow
    return Losses(before.size, rounded, overflow, to_zero, small_count - to_zero, nan)


def _integer_losses(before: Array, after: Array) -> Losses:
    """The losses of one piece of integers or truth values: which of them the floating point type does not hold."""
    import numpy as np

    with np.errstate(all="ignore"):
        back = after.astype("f8")
        low, high = (0.0, 2.0**64) if before.dtype.kind == "u" else (-(2.0**63), 2.0**63)
        held = (back >= low) & (back < high)
        kind = "u8" if before.dtype.kind == "u" else "i8"
        changed = ~held | (np.where(held, back, 0).astype(kind) != before.astype(kind))
        overflow = int(np.count_nonzero(~np.isfinite(back)))
    return replace(Losses(before.size), rounded=int(np.count_nonzero(changed)) - overflow, overflow=overflow)
