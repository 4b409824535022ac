"""How far two windows are apart: the largest difference of their numbers, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from paramtool.engine.compare.digest import aligned, squeezed
from paramtool.engine.read.source import Buffer, Source, number_type
from paramtool.model.view import View


def format_difference(difference: float | None) -> str:
    """The largest difference of two tensors whose bytes differ, in words; nothing where it was not measured.

    >>> print(format_difference(0.25), format_difference(0.0), sep="\\n")
    largest difference 0.25
    largest difference 0: equal numbers in different bits, as 0.0 and -0.0 are
    """
    if difference is None:
        return ""
    alike = "" if difference else ": equal numbers in different bits, as 0.0 and -0.0 are"
    return f"largest difference {difference:.3g}{alike}"


def largest(source_a: Source, a: View, source_b: Source, b: View) -> float | None:
    """The largest absolute difference of two windows, element by element; 0.0 where there are no elements.

    Numbers of two types are compared as float64, integers of one type exactly.  Elements that are equal, both NaN, or
    infinities of one sign, do not differ.  `inf` where one is NaN or infinite and the other is not.
    None where that is no question: the shapes differ, or a type has no numbers (packed, quantised).
    """
    import numpy as np

    if a.shape != b.shape or a.dtype.block_elements != 1 or b.dtype.block_elements != 1:
        return None
    try:
        kinds = np.dtype(number_type(a.dtype)), np.dtype(number_type(b.dtype))
    except TypeError:
        return None
    a, b = squeezed(a, b)
    sizes = a.dtype.block_bytes, b.dtype.block_bytes
    found = 0.0
    for x, y in aligned(_whole(source_a.row_major(a), sizes[0]), _whole(source_b.row_major(b), sizes[1]), *sizes):
        found = max(found, _largest(np.frombuffer(x, kinds[0]), np.frombuffer(y, kinds[1])))
        if found == inf:
            break
    return found


def _whole(stream: Iterator[Buffer], size: int) -> Iterator[Buffer]:
    """The same bytes in blocks that end with an element."""
    left = b""
    for block in stream:
        data = left + bytes(block) if left else block
        stop = len(data) - len(data) % size
        left = bytes(data[stop:])
        if stop:
            yield data[:stop]


def _largest(x: Any, y: Any) -> float:
    """The largest difference of two rows of numbers."""
    import numpy as np

    if x.dtype == y.dtype and x.dtype.kind in "iub":
        unsigned = f"u{x.dtype.itemsize}"  # what is above 2**63 apart still fits
        return float((np.maximum(x, y).view(unsigned) - np.minimum(x, y).view(unsigned)).max())
    wide = "c16" if "c" in (x.dtype.kind, y.dtype.kind) else "f8"
    with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN is invalid in a cast, too
        x, y = x.astype(wide), y.astype(wide)
        apart = np.abs(x - y)
    apart[(x == y) | (np.isnan(x) & np.isnan(y))] = 0
    apart[np.isnan(apart)] = inf
    return float(apart.max())
