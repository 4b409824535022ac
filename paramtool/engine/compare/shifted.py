"""Whether a tensor is another plus or minus 1, as a norm's weight is that some programs store less 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paramtool.engine.compare.casts import converted
from paramtool.engine.compare.changes import number_types
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
    import numpy as np

    kinds = number_types(a, b)
    if kinds is None or a.shape != b.shape or not 0 < a.numel <= MAX_NUMEL or a.is_injective != b.is_injective:
        return 0
    if not all(dtype.name.startswith(("float", "bfloat")) for dtype in (a.dtype, b.dtype)):
        return 0
    with np.errstate(all="ignore"):
        x, y = (
            source.array(view).all().view(kind).reshape(-1).astype("f8")
            for source, view, kind in zip((a_source, b_source), (a, b), kinds, strict=True)
        )
        for shift in (1, -1):
            if _is_cast(x + shift, b.dtype, y) or _is_cast(y - shift, a.dtype, x):
                return shift
    return 0


def _is_cast(numbers: Array, dtype: DType, wanted: Array) -> bool:
    """Whether numbers are others, rounded to a type; NaN is never."""
    import numpy as np

    from paramtool.engine.read.elements import number_type

    found = converted(numbers, dtype).view(number_type(dtype)).astype("f8")
    return bool(np.array_equal(found, wanted))
