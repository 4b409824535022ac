"""How far two windows of one shape are apart: elements, the largest and the mean difference, the norm, the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, prod, sqrt
from typing import NamedTuple

from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.read.elements import ELEMENTS, Array, Elements, converted, number_type
from paramtool.engine.read.pairs import same_bytes
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import squeezed
from paramtool.model.diff import Distance, RowSpan, spans
from paramtool.model.dtype import DType
from paramtool.model.view import View

BLOCK_ELEMENTS = 1 << 18
"""Elements that are compared at a time: eight arrays of float64 are 16 MB."""
EXACT = 1 << 53
"""From here on not every integer is a float64."""
MAX_SPANS = 64
"""The most spans of rows that are kept of one tensor; all rows are counted."""


class WindowPair(NamedTuple):
    """A window of the first checkpoint, and one of the second, of one shape."""

    a: View
    b: View
    sign: int = 1
    """-1 where the second is the negated first."""


class Measure:
    """Adds up how far pairs of windows are apart; the pairs are parts of one tensor."""

    def __init__(self, rtol: float = 0.0) -> None:
        self.rtol, self.beyond = rtol, -inf
        self.elements = self.numel = self.nan_only_a = self.nan_only_b = 0
        self.largest = self.total = self.squares = self.norm = 0.0
        self.has_numbers = True
        self._rows: list[RowSpan] = []
        self.row_count = 0

    def add(self, a_source: Source, a: View, b_source: Source, b: View) -> None:
        """Two windows of one shape; those of types without numbers are compared as bytes, packed ones as one row."""
        if any(size > 1 and not s and not t for size, s, t in zip(a.shape, a.strides, b.strides, strict=True)):
            a, b = squeezed(a, b)  # both repeat their elements, without an end perhaps
        if not a.shape:
            a, b = (one.with_axes((1,), (1,)) for one in (a, b))
        kinds = number_types(a, b)
        self.has_numbers = self.has_numbers and kinds is not None
        x, y = (source.array(view) for source, view in ((a_source, a), (b_source, b)))
        if kinds is not None:
            x, y = x.view(kinds[0]), y.view(kinds[1])
        self._add(x, y, kinds is not None)

    def add_numbers(self, x: Array, y: Array) -> None:
        """Two arrays of one shape."""
        shape = x.shape or (1,)
        self._add(x.reshape(shape), y.reshape(shape), True)

    def _add(self, x: Array | Elements, y: Array | Elements, are_numbers: bool) -> None:
        import numpy as np

        for box in blocks(x.shape, BLOCK_ELEMENTS):
            differs = self._compared(x[box], y[box], are_numbers)
            rows = np.flatnonzero(differs.reshape(differs.shape[0], -1).any(1)) + box[0].start
            for one in spans(rows.tolist()):
                self._add_span(one)
        self.numel += prod(x.shape)

    def _compared(self, x: Array, y: Array, are_numbers: bool) -> Array:
        """Which elements differ, counted and measured."""
        import numpy as np

        if not are_numbers:
            differs = x != y
            self.elements += int(differs.sum())
            return np.asarray(differs)
        differs, apart, p, q = differences(x, y)
        with np.errstate(all="ignore"):
            self.nan_only_a += int((np.isnan(p) & ~np.isnan(q)).sum())
            self.nan_only_b += int((np.isnan(q) & ~np.isnan(p)).sum())
            self.largest = max(self.largest, float(apart.max(initial=0.0)))
            if self.rtol:
                room = self.rtol * np.where(np.isfinite(q), np.abs(q), 0)
                self.beyond = max(self.beyond, float((apart - room).max(initial=-inf)))
            self.total += float(apart.sum())
            self.squares += float((apart * apart).sum())
            size = np.abs(p[np.isfinite(p)])
            self.norm += float((size * size).sum())
        self.elements += int(differs.sum())
        return np.asarray(differs)

    def _add_span(self, one: RowSpan) -> None:
        if self._rows and one.start < self._rows[-1].stop:  # another block of the same row
            one = RowSpan(self._rows[-1].stop, max(one.stop, self._rows[-1].stop))
        self.row_count += one.stop - one.start
        if self._rows and one.start == self._rows[-1].stop:
            self._rows[-1] = RowSpan(self._rows[-1].start, one.stop)
        elif one.stop > one.start and len(self._rows) < MAX_SPANS:
            self._rows.append(one)

    def change(self) -> Distance:
        """What was found."""
        if not self.has_numbers:
            return Distance(self.elements, self.numel, rows=tuple(self._rows), row_count=self.row_count)
        relative = sqrt(self.squares) / sqrt(self.norm) if self.norm else None
        mean = self.total / self.numel if self.numel else 0.0
        return Distance(
            self.elements,
            self.numel,
            self.largest,
            mean,
            relative,
            tuple(self._rows),
            self.row_count,
            self.nan_only_a,
            self.nan_only_b,
            self.beyond if self.rtol else None,
        )


def differences(x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """Which elements of two arrays of numbers differ, how far, and both as float64 or complex128.

    0.0 differs from -0.0, and a NaN from one of other bits, where the types are the same.  How far is float64, rounded
    once: 0 for two NaNs, and `inf` where one alone is not finite.
    """
    import numpy as np

    x, y = np.asarray(x), np.asarray(y)
    with np.errstate(all="ignore"):
        wide = "c16" if "c" in (x.dtype.kind, y.dtype.kind) else "f8"
        p, q = x.astype(wide), y.astype(wide)
        apart = np.asarray(np.abs(p - q))
        _measure_exactly(x, y, p, q, apart=apart)
        equal = ((p == q) & (np.isinf(p) | (apart == 0))) | (np.isnan(p) & np.isnan(q))
        apart[equal] = 0
        apart[np.isnan(apart)] = inf
        differs = np.asarray(~equal)
        if x.dtype == y.dtype:
            kind = ELEMENTS[x.dtype.itemsize]  # `ascontiguousarray` gives a scalar an axis
            differs |= np.asarray(x, order="C").view(kind) != np.asarray(y, order="C").view(kind)
    return differs, apart, p, q


def _measure_exactly(x: Array, y: Array, p: Array, q: Array, *, apart: Array) -> None:
    """The differences of integers, and of integers and floating point, that float64 has no room for.

    `p` and `q` are float64.  Such a number of a floating-point type is a whole one.
    """
    import numpy as np

    kinds = {x.dtype.kind, y.dtype.kind}
    if p.dtype.kind == "c" or not kinds & {*"iu"}:
        return
    if kinds in ({"i"}, {"u"}):
        whole = "i8" if kinds == {"i"} else "u8"
        one, other = x.astype(whole), y.astype(whole)
        apart[...] = (np.maximum(one, other) - np.minimum(one, other)).view("u8")  # exact: it wraps at 2**64
        return
    large = (np.abs(p) >= EXACT) & (np.abs(q) >= EXACT) & np.isfinite(p) & np.isfinite(q)
    pairs = zip((x if x.dtype.kind in "iu" else p)[large].tolist(), (y if y.dtype.kind in "iu" else q)[large].tolist(),
                strict=True)  # fmt: skip
    apart[large] = [float(abs(int(one) - int(other))) for one, other in pairs]


def number_types(a: View, b: View) -> tuple[str, str] | None:
    """The types in which two windows are numbers; None if one is packed or quantised."""
    if a.dtype.block_elements != 1 or b.dtype.block_elements != 1:
        return None
    try:
        return number_type(a.dtype), number_type(b.dtype)
    except (TypeError, ValueError):
        return None


def measured(a_source: Source, b_source: Source, pairs: Iterable[WindowPair], *, rtol: float = 0.0) -> Distance:
    """How far pairs of windows are apart, which are the parts of one tensor."""
    found = Measure(rtol)
    for pair in pairs:
        found.add(a_source, pair.a, b_source, pair.b)
    return found.change()


# --- Whether a tensor is another plus or minus 1, as a norm is that some programs store less 1 -----------------------


MAX_NUMEL = 1 << 20
"""Longer tensors are neither norms nor biases."""


def shift_between(a_source: Source, a: View, b_source: Source, b: View) -> int:
    """1 if the second tensor is the first plus 1, -1 if it is the first minus 1, 0 if neither.

    Either may have been calculated from the other, rounded once to its own type; calculating back can round again.
    """

    if (
        number_types(a, b) is None
        or a.shape != b.shape
        or not 0 < a.numel <= MAX_NUMEL
        or a.is_injective != b.is_injective
    ):
        return 0
    if not (a.dtype.is_floating and b.dtype.is_floating):
        return 0
    x, y = (source.numbers(one).all().reshape(-1).astype("f8") for source, one in ((a_source, a), (b_source, b)))
    return shift_of(x, y, a.dtype, b.dtype)


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


# --- How far two windows differ: the largest difference of their numbers, block by block; and digests of windows ------


def format_difference(difference: float | None) -> str:
    """The largest difference of two tensors whose bytes differ, in words; an empty string if it was not measured.

    >>> print(format_difference(0.25), format_difference(0.0), sep="\\n")
    largest difference 0.25
    largest difference 0: equal numbers with different bits, such as 0.0 and -0.0
    """
    if difference is None:
        return ""
    alike = "" if difference else ": equal numbers with different bits, such as 0.0 and -0.0"
    return f"largest difference {difference:.3g}{alike}"


def largest(source_a: Source, a: View, source_b: Source, b: View) -> float | None:
    """The largest absolute difference of two windows, element by element; 0.0 if there are no elements.

    Elements that are equal, both NaN, or infinities of one sign, do not differ.  `inf` if one element is NaN or
    infinite and the other is not.
    None if the windows cannot be compared: the shapes differ, or a type has no numbers (packed, quantised).
    """
    if a.shape != b.shape or number_types(a, b) is None:
        return None
    return measured(source_a, source_b, [WindowPair(a, b)]).largest


Pair = tuple[View, View]


def agree(source: Source, found: Pair, places: Pair) -> bool:
    """Whether two windows of a file have equal values wherever their places in an alias set overlap.

    `places` are windows on that alias set, with the shapes of `found`.  Values are compared as bytes: if the alias set
    has another dtype than the file, as bytes of that dtype.  If the two places are equal, blocks are compared;
    otherwise the span of the alias set is filled with each window in turn.
    """
    for view in found:
        source.prove_later(view.number)
    source.settle()
    if places[0] == places[1]:
        place = places[0]
        a, b = found
        if a.dtype == b.dtype and same_bytes(source, a, source, b):
            return True
        if a.dtype == b.dtype == place.dtype:
            return False
        a, b = squeezed(a, b)
        boxes = blocks(a.shape, BLOCK_NBYTES // max(view.dtype.block_bytes for view in (a, b, place)))
        try:
            x, y = source.numbers(a), source.numbers(b)
            return all(_cast(x[box], place).tobytes() == _cast(y[box], place).tobytes() for box in boxes)
        except (TypeError, ValueError):  # a type without numbers: packed or quantised
            return False
    # Fill the span of an alias set with one window, then with the other; both must be unchanged afterwards
    import numpy as np

    start = min(place.byte_start for place in places)
    span = np.zeros(max(place.byte_stop for place in places) - start, "u1")
    try:
        values = [_cast(source.numbers(view).all(), place) for view, place in zip(found, places, strict=True)]
        windows = [_window(span, place, start) for place in places]
    except (TypeError, ValueError):
        return False
    for window, value in zip(windows, values, strict=True):
        window[...] = value
    return all(w.tobytes() == v.tobytes() for w, v in zip(windows, values, strict=True))


def _window(span: Array, place: View, start: int) -> Array:
    import numpy as np

    size = place.dtype.block_bytes
    strides = [stride * size for stride in place.strides]
    return np.ndarray(place.shape, number_type(place.dtype), span.data, place.byte_start - start, strides)


def _cast(array: Array, place: View) -> Array:
    import numpy as np

    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array.astype(number_type(place.dtype)))


Advance = Callable[[int], None]


def digest(source: Source, view: View, advance: Advance = lambda nbytes: None) -> str:
    """blake3 of a window's elements in row-major order, in hexadecimal.

    A window that repeats elements (stride 0) may be endless.  Its digest is that of the word `span`, its shape and
    strides, and the bytes of its span; the result is marked as such.
    """
    from blake3 import blake3

    made = blake3()
    span = view.byte_stop - view.byte_start
    if view.nbytes > span:
        made.update(f"span {list(view.shape)} {list(view.strides)} ".encode())
        for part in source.chunks(view.number, view.byte_start, view.byte_stop):
            made.update(part)
        return f"span:{made.hexdigest()}"
    for chunk in source.row_major(view):
        made.update(chunk)
        advance(len(chunk))
    return made.hexdigest()
