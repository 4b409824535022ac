"""Which numbers of a view are NaN or infinite: counted block by block, by the bits of each type.

The bits are those of IEEE 754 for float16, float32 and float64, of bfloat16 (the upper half of a float32), of the OCP
8-bit floating point specification for float8_e4m3fn and float8_e5m2, of https://arxiv.org/abs/2206.02915 for the types
whose names end with fnuz, and of the OCP microscaling specification for float8_e8m0fnu.  float4 and float6 have
neither.  A test compares all of them with ml_dtypes.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from paramtool.engine.read.elements import Array
from paramtool.engine.read.source import Source
from paramtool.model.dtype import DType
from paramtool.model.view import Shape, View


class Bits(NamedTuple):
    """Which bit patterns of a type are not finite."""

    mask: int
    value: int
    """A number is not finite if its bits under `mask` are these."""
    infinity: int | None
    """The bits of an infinity, without its sign; None for a type that has none."""


BITS = {
    "float16": Bits(0x7C00, 0x7C00, 0x7C00),
    "bfloat16": Bits(0x7F80, 0x7F80, 0x7F80),
    "float32": Bits(0x7F800000, 0x7F800000, 0x7F800000),
    "float64": Bits(0x7FF0 << 48, 0x7FF0 << 48, 0x7FF0 << 48),
    "float8_e5m2": Bits(0x7C, 0x7C, 0x7C),
    "float8_e4m3fn": Bits(0x7F, 0x7F, None),
    "float8_e4m3fnuz": Bits(0xFF, 0x80, None),
    "float8_e5m2fnuz": Bits(0xFF, 0x80, None),
    "float8_e8m0fnu": Bits(0xFF, 0xFF, None),
}
"""{name of a real type: its bits}; all other types are integers, bits, or finite."""


class NotFinite(NamedTuple):
    """How many numbers of a view are not finite, and where the first is."""

    nan: int = 0
    infinite: int = 0
    first: int = 0
    """Its place in row-major order."""

    @property
    def total(self) -> int:
        """Numbers that are not finite."""
        return self.nan + self.infinite

    def place(self, shape: Shape) -> list[int]:
        """The index of the first.

        >>> NotFinite(1, 0, 5).place((2, 3))
        [1, 2]
        """
        rest, found = self.first, []
        for size in reversed(shape):
            rest, at = divmod(rest, size)
            found.append(at)
        return found[::-1]

    def __str__(self) -> str:
        words = [f"{self.nan} NaN" if self.nan else "", f"{self.infinite} infinite" if self.infinite else ""]
        return " and ".join(filter(None, words))


def has_nonfinite(dtype: DType) -> bool:
    """Whether a type has a NaN or an infinity."""
    return (dtype.component or dtype).name in BITS


class Counter:
    """Counts the numbers of a type that are not finite, in bytes that come in order.

    A complex number counts as not finite if a part of it is.
    """

    def __init__(self, dtype: DType) -> None:
        self.found = NotFinite()
        self._part, self._per = dtype.component or dtype, 2 if dtype.component else 1
        self._done, self._rest = 0, b""

    def update(self, block: memoryview | bytes, /) -> None:
        """Take the next bytes."""
        data = memoryview(block) if not self._rest else memoryview(self._rest + bytes(block))
        size = self._part.block_bytes * self._per
        whole = len(data) // size * size
        counts = _block(data[:whole], BITS[self._part.name], f"u{self._part.block_bytes}", self._per)
        if counts.total:
            first = self.found.first if self.found.total else self._done + counts.first
            self.found = NotFinite(self.found.nan + counts.nan, self.found.infinite + counts.infinite, first)
        self._done, self._rest = self._done + whole // size, bytes(data[whole:])


def counted(source: Source, view: View) -> NotFinite:
    """Read a view once, in blocks.  CRCs are checked."""
    counter = Counter(view.dtype)
    for block in source.row_major(view) if prod(view.shape) else ():
        counter.update(block)
    return counter.found


def _block(data: memoryview, bits: Bits, kind: str, per: int) -> NotFinite:
    """The same of whole numbers in memory."""
    import numpy as np

    array: Array = np.frombuffer(data, kind)
    bad = (array & array.dtype.type(bits.mask)) == bits.value
    if not bad.any():
        return NotFinite()
    infinite = np.zeros_like(bad)
    if bits.infinity is not None:
        sign = array.dtype.type(1 << (array.dtype.itemsize * 8 - 1))
        infinite = bad & ((array & ~sign) == bits.infinity)
    nan = (bad & ~infinite).reshape(-1, per).any(1)
    both = infinite.reshape(-1, per).any(1) & ~nan
    return NotFinite(int(nan.sum()), int(both.sum()), int(np.flatnonzero(nan | both)[0]))
