"""Whether a tensor is another plus or minus 1, as a norm's weight is that some programs store less 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.changes import number_types
from paramtool.engine.read.elements import converted
from paramtool.engine.read.source import Source
from paramtool.model.dtype import DType
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_NUMEL = 1 << 20
"""Longer tensors are neither norms nor biases."""


def shift_between(a_source: Source, a: View, b_source: Source, b: View) -> int:
    """1 if the second tensor is the first plus 1, -1 if it is the first minus 1, 0 if neither.

    Either may have been calculated from the other, rounded once to its own type; calculating back can round again.
    """

    kinds = number_types(a, b)
    if kinds is None or a.shape != b.shape or not 0 < a.numel <= MAX_NUMEL or a.is_injective != b.is_injective:
        return 0
    if not is_floating(a.dtype) or not is_floating(b.dtype):
        return 0
    x, y = (
        source.array(view).all().view(kind).reshape(-1).astype("f8")
        for source, view, kind in zip((a_source, b_source), (a, b), kinds, strict=True)
    )
    return shift_of(x, y, a.dtype, b.dtype)


def is_floating(dtype: DType) -> bool:
    """Whether a type is one of real floating-point numbers."""
    return dtype.name.startswith(("float", "bfloat"))


def shift_of(x: Array, y: Array, a: DType, b: DType) -> int:
    """As `shift_between`, of float64 numbers of the types `a` and `b`, which may be sums that are not rounded yet."""
    import numpy as np

    with np.errstate(all="ignore"):
        for shift in (1, -1):
            if are_one(x + shift, y, b) or are_one(y - shift, x, a):
                return shift
    return 0


def are_one(x: Array, y: Array, dtype: DType) -> bool:
    """Whether float64 numbers are the same ones, rounded to a type; NaN is never."""
    import numpy as np

    return bool(np.array_equal(rounded(x, dtype), rounded(y, dtype)))


def rounded(numbers: Array, dtype: DType) -> Array:
    """Float64 numbers, rounded to a type."""
    import numpy as np

    with np.errstate(all="ignore"):
        return converted(numbers, dtype).astype("f8")
