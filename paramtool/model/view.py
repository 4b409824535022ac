"""The one idea of this program: a named tensor is a strided view of a storage.

torch, NumPy and DLPack agree on it.  A tied weight is two names with one view, a slice is a smaller view, a
transposed tie is a view with other strides, a fused RNN vector is one storage with many views:

    storage 0   [ 0  1  2  3  4  5 ]
    w           View(0, float32, offset=0, shape=(2, 3), strides=(3, 1))   0 1 2 / 3 4 5
    w.T         View(0, float32, offset=0, shape=(3, 2), strides=(1, 3))   0 3 / 1 4 / 2 5
    w[1]        View(0, float32, offset=3, shape=(3,),   strides=(1,))     3 4 5

Everything is counted in elements, except what is called `byte_...` or `nbytes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd, prod
from operator import index

from paramtool.lazy_dataclass import frozen
from paramtool.model.dtype import DType

Shape = tuple[int, ...]
"""The lengths of the axes of a tensor."""
Shapes = Mapping[str, Shape]
"""{tensor: its shape}"""
StorageId = int | str
"""A storage of the source is given by a number, a tensor that a plan will store by its name."""

MAX_AXES = 64
"""As NumPy 2 and torch allow."""
MAX_EXTENT = 2**63 - 1
"""Sizes, strides and offsets are signed 64-bit numbers in every format read here."""


@frozen
class View:
    """A strided view of a storage, in elements of `dtype`.

    It is in normal form: the stride of an axis of length 1 has no meaning and is set to the contiguous stride; a view
    without elements is contiguous at offset 0.  So views of the same elements compare equal.

    >>> from paramtool.model.dtype import DTYPES
    >>> View(0, DTYPES["float32"], 0, (1, 3), (99, 1)) == View(0, DTYPES["float32"], 0, (1, 3), (3, 1))
    True
    """

    storage: StorageId
    """The storage: its number in the source, or the name of a stored tensor in a plan."""
    dtype: DType
    """The type of its elements."""
    offset: int
    """Its first element, counted from the start of the storage, in elements."""
    shape: Shape
    """The length of each axis."""
    strides: Shape
    """How many elements one step along each axis moves."""
    _members = "dtype=dtype.name shape strides offset storage nbytes"

    def __init__(self, storage: StorageId, dtype: DType, offset: int, shape: Shape, strides: Shape) -> None:
        """Check the numbers and bring the strides into normal form; ValueError if a number is out of range."""
        try:
            shape, strides = _geometry(shape, strides)
            if not 0 <= offset <= MAX_EXTENT:
                raise OverflowError
        except OverflowError:
            raise ValueError(
                f"offset {offset}, shape {_short(shape)}, strides {_short(strides)}: "
                "every number must be from 0 to 2**63-1"
            ) from None
        if offset and 0 in shape:
            offset = 0
        _set_storage(self, storage)
        _set_dtype(self, dtype)
        _set_offset(self, offset)
        _set_shape(self, shape)
        _set_strides(self, strides)
        if dtype.block_elements != 1:
            if not self.is_contiguous:
                raise ValueError(f"{dtype.name} is packed: only contiguous windows are possible")
            dtype.nbytes(offset)
            dtype.nbytes(self.numel)

    @property
    def number(self) -> int:
        """The number of its storage, of a view of what a file has."""
        return int(self.storage)

    @property
    def axes(self) -> list[tuple[int, int]]:
        """(length, stride) of each axis."""
        return list(zip(self.shape, self.strides, strict=True))

    @property
    def numel(self) -> int:
        """The number of elements, by the shape."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements when stored row by row; with stride 0, more than the view spans."""
        return self.dtype.nbytes(self.numel)

    @property
    def extent(self) -> int:
        """Elements from the first to the last that the view can touch: sum of (size - 1) * stride, plus one."""
        return _extent(self.shape, self.strides)

    @property
    def byte_start(self) -> int:
        """Where the view begins in its storage."""
        return self.dtype.nbytes(self.offset)

    @property
    def byte_stop(self) -> int:
        """Where the view ends in its storage: after the last byte that it can touch."""
        if self.dtype.block_elements != 1:
            return self.dtype.nbytes(self.offset + self.numel)
        return (self.offset + self.extent) * self.dtype.block_bytes

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are stored row by row without a gap."""
        return self.strides == contiguous_strides(self.shape)

    @property
    def dense_axes(self) -> Shape | None:
        """The axes from the outermost in memory to the innermost, those of length 1 first; None where there are gaps.

        `(0, 2, 3, 1)` for a PyTorch tensor in channels_last format.
        """
        if self.dtype.block_elements > 1:
            return tuple(range(len(self.shape))) if self.is_contiguous else None
        long = [k for k, size in enumerate(self.shape) if size > 1]
        found = [k for k in range(len(self.shape)) if k not in long] + sorted(long, key=lambda k: -self.strides[k])
        dense = contiguous_strides(tuple(self.shape[k] for k in found))
        gaps = any(self.shape[k] > 1 and self.strides[k] != step for k, step in zip(found, dense, strict=True))
        return None if gaps else tuple(found)

    @property
    def is_injective(self) -> bool:
        """Whether no element occurs twice, as far as nested strides show it.

        True is certain.  False is certain for stride 0 and for sliding windows.  For strides that interleave in unusual
        ways False may be wrong, which only costs callers compactness.
        """
        reach = 0
        for stride, size in sorted((t, s) for s, t in self.axes if s > 1):
            if stride <= reach:
                return False
            reach += (size - 1) * stride
        return True

    def with_axes(self, shape: Shape, strides: Shape, offset: int | None = None) -> View:
        """Another view of the same storage and type, from the first element of this one, or from `offset`, on.

        >>> from paramtool.model.dtype import DTYPES
        >>> contiguous(0, DTYPES["float32"], (2, 3)).with_axes((3, 2), (1, 3)).strides
        (1, 3)
        """
        return View(self.storage, self.dtype, self.offset if offset is None else offset, shape, strides)

    def rows(self, start: int, stop: int) -> View:
        """The elements of some indexes along the first axis."""
        offset = self.offset + start * self.strides[0]
        return self.with_axes((stop - start, *self.shape[1:]), self.strides, offset)

    def on(self, storage: StorageId, byte_start: int) -> View:
        """The same view of another storage, from `byte_start` on.

        ValueError if that is not a whole number of elements.
        """
        blocks, rest = divmod(byte_start, self.dtype.block_bytes)
        if rest:
            size = self.dtype.block_bytes
            raise ValueError(f"byte {byte_start} is not a multiple of {size}, the size of {self.dtype.name}")
        return View(storage, self.dtype, blocks * self.dtype.block_elements, self.shape, self.strides)


Views = Mapping[str, View]
"""{tensor: the view that it is}"""

# A checkpoint may have a million names with a window or two each.  Setting the slots directly takes half the time of
# the setters of a frozen dataclass.
_set_storage, _set_dtype, _set_offset, _set_shape, _set_strides = (
    getattr(View, field).__set__ for field in ("storage", "dtype", "offset", "shape", "strides")
)


def inverse(window: View, shape: Sequence[int]) -> View | None:
    """The inverse of a transpose: a tensor of `shape` as a view of the row-major elements of `window`.

    `window` is a view of the row-major elements of that tensor; None unless it has all of them with its axes reordered.

    >>> from paramtool.model.dtype import DTYPES
    >>> transposed = View("w", DTYPES["float32"], 0, (4, 2, 3), (1, 12, 4))  # of a w of shape (2, 3, 4)
    >>> inverse(transposed, (2, 3, 4)).strides
    (3, 1, 6)
    """
    own = contiguous_strides(window.shape)
    known = {(size, stride): to for size, stride, to in zip(window.shape, window.strides, own, strict=True) if size > 1}
    there = list(zip(shape, contiguous_strides(shape), strict=True))
    if window.offset or prod(shape) != window.numel or any(axis not in known for axis in there if axis[0] > 1):
        return None
    return window.with_axes(tuple(shape), tuple(known.get(axis, 1) for axis in there), 0)


def reshaped(view: View, shape: Sequence[int]) -> View | None:
    """The view in another shape, its elements in the same row-major order; None where no strides can express it.

    >>> from paramtool.model.dtype import DTYPES
    >>> columns = View(0, DTYPES["float32"], 0, (3, 4), (1, 3))
    >>> reshaped(columns, (3, 2, 2)).strides, reshaped(columns, (12,))
    ((1, 6, 3), None)
    """
    if prod(shape) != view.numel:
        return None
    if view.is_contiguous:
        return contiguous(view.storage, view.dtype, shape, view.offset)
    # Axes that continue each other count as one; each must be a product of axes of the new shape.
    runs: list[list[int]] = []
    for size, stride in view.axes:
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    strides: list[int] = []
    rest, stride = runs.pop() if runs else [1, 1]
    for size in reversed(tuple(shape)):
        if rest == 1 and size != 1 and runs:
            rest, stride = runs.pop()
        if size != 1 and rest % size:
            return None
        strides.append(stride)
        if size != 1:
            rest //= size
            stride *= size
    return view.with_axes(tuple(shape), tuple(reversed(strides)))


def seen_through(window: View, place: View) -> View | None:
    """A view of a view: `window` on the row-major elements of a tensor that is itself the view `place` on another.

    None where no strides can express it: a row that continues into the next cannot be followed through a transpose.

    >>> from paramtool.model.dtype import DTYPES
    >>> columns = View("w", DTYPES["float32"], 0, (3, 4), (1, 3))
    >>> second_row = contiguous("v", DTYPES["float32"], (4,), offset=4)
    >>> seen_through(second_row, columns).offset, seen_through(second_row, columns).strides
    (1, (3,))
    """
    if place.is_contiguous:
        start = place.byte_start + window.byte_start
        return None if start % window.dtype.block_bytes else window.on(place.storage, start)
    if window.dtype != place.dtype or not window.numel:
        return None
    axes = contiguous_strides(place.shape)
    at, rest = [], window.offset
    for size, step in zip(place.shape, axes, strict=True):
        at.append(rest // step if size > 1 else 0)
        rest -= at[-1] * step
    strides = []
    reach = list(at)
    for size, stride in window.axes:
        if size == 1 or not stride:
            strides.append(0)
            continue
        axis = next((k for k, step in enumerate(axes) if place.shape[k] > 1 and stride % step == 0), None)
        if axis is None:
            return None
        times = stride // axes[axis]
        reach[axis] += times * (size - 1)
        strides.append(times * place.strides[axis])
    if any(last >= size for last, size in zip(reach, place.shape, strict=True)):
        return None
    offset = place.offset + sum(k * stride for k, stride in zip(at, place.strides, strict=True))
    return View(place.storage, window.dtype, offset, window.shape, tuple(strides))


def cut_at_axes(window: View, shape: Sequence[int]) -> View:
    """A window on the row-major elements of a tensor of `shape`, its axes cut where they go on along another axis.

    So each of them is along one axis of the tensor, where that is possible, and `seen_through` can follow it.

    >>> from paramtool.model.dtype import DTYPES
    >>> cut_at_axes(contiguous("w", DTYPES["float32"], (2, 12)), (2, 3, 4)).shape
    (2, 3, 4)
    """
    axes = list(zip(shape, contiguous_strides(shape), strict=True))
    cut: list[tuple[int, int]] = []  # (length, stride), the innermost first
    for size, stride in zip(reversed(window.shape), reversed(window.strides), strict=True):
        for length, step in reversed(axes):
            count, over = divmod(length * step, stride or 1)
            if length > 1 and stride % step == 0 and not over and 1 < count < size and size % count == 0:
                cut.append((count, stride))
                size, stride = size // count, stride * count
        cut.append((size, stride))
    sizes, steps = zip(*reversed(cut), strict=True) if cut else ((), ())
    return window.with_axes(sizes, steps)


def contiguous(storage: StorageId, dtype: DType, shape: Sequence[int], offset: int = 0) -> View:
    """The row-major view with that shape."""
    shape = tuple(shape)
    return View(storage, dtype, offset, shape, contiguous_strides(shape))


def contiguous_strides(shape: Sequence[int]) -> Shape:
    """Row-major strides; an axis of length 0 counts as 1.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    shape = tuple(shape)
    try:
        return _dense_strides(shape)
    except OverflowError:
        return _steps(shape)


def _steps(shape: Shape) -> Shape:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _normal_strides(shape: Shape, strides: Shape) -> Shape:
    """Set the strides of axes of length 1 to what they would be if the axes after them were contiguous."""
    normal: list[int] = []
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        chosen = step if size == 1 else stride
        normal.append(chosen)
        step = min(chosen * size, MAX_EXTENT)
    return tuple(reversed(normal))


# Most tensors of a checkpoint have one of a few shapes.  What follows from a shape alone is calculated once, and all
# windows of that shape hold the same tuples.  Numbers out of range are an OverflowError, so that they are not cached.
_MANY_SHAPES = 4096


@lru_cache(_MANY_SHAPES)
def _dense_strides(shape: Shape) -> Shape:
    found = _steps(shape)
    if found and found[0] > MAX_EXTENT:
        raise OverflowError
    return found


@lru_cache(_MANY_SHAPES)
def _geometry(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Shape and strides in normal form; OverflowError where a number is out of range, ValueError for the rest."""
    if len(shape) != len(strides) or len(shape) > MAX_AXES:
        raise ValueError(f"shape {_short(shape)}, strides {_short(strides)}: expected equally many, at most {MAX_AXES}")
    if not all(0 <= number <= MAX_EXTENT for number in (*shape, *strides)):
        raise OverflowError
    shape, strides = tuple(map(index, shape)), tuple(map(index, strides))  # True becomes 1: the two are the same key
    if 0 in shape:
        if prod(size for size in shape if size) > MAX_EXTENT:
            raise ValueError(f"shape {_short(shape)}: apart from axes of length 0 it has more than 2**63-1 elements")
        return shape, contiguous_strides(shape)
    return shape, _normal_strides(shape, strides) if 1 in shape else strides


@lru_cache(_MANY_SHAPES)
def _extent(shape: Shape, strides: Shape) -> int:
    if 0 in shape:
        return 0
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1


def _short(numbers: Shape) -> str:
    """The first numbers of a tuple that may be very long."""
    text = ", ".join(str(number) if abs(number) < 1 << 256 else "a huge number" for number in numbers[:8])
    return f"[{text}{', ...' if len(numbers) > 8 else ''}]"


_OVERLAP_STEPS = 2_000
"""How many partial sums `overlaps` tries before it gives up and answers True."""


def overlaps(a: View, b: View) -> bool:
    """Whether two views of one storage have a byte in common.

    Interleaved columns of one matrix have overlapping spans and share nothing, so the spans do not decide.  The
    question is whether `sum(i_k * stride_k) = d` has a solution within bounds, in bytes.  A search answers it, which
    prunes by range and by greatest common divisor.  Where it would take too long the answer is True, which only keeps
    names together that could be separate.

    >>> from paramtool.model.dtype import DTYPES
    >>> left = View(0, DTYPES["float32"], 0, (10, 4), (8, 1))
    >>> right = View(0, DTYPES["float32"], 4, (10, 4), (8, 1))
    >>> overlaps(left, right), overlaps(left, left)
    (False, True)
    """
    if a.storage != b.storage or 0 in a.shape or 0 in b.shape:
        return False
    if a.byte_start >= b.byte_stop or b.byte_start >= a.byte_stop:
        return False
    if a.is_contiguous and b.is_contiguous:
        return True
    # a's byte equals b's byte:  sum(i*s) + x - sum(j*t) - y = b.start - a.start; the subtracted terms are
    # reversed (j -> size-1-j), so that every coefficient is positive.
    axes = _byte_axes(a) + _byte_axes(b)
    target = b.byte_start - a.byte_start + sum(step * (size - 1) for step, size in _byte_axes(b))
    # Join axes of one step: i*s + j*s = (i+j)*s. Largest steps first
    lengths: dict[int, int] = {}
    for step, size in axes:
        lengths[step] = lengths.get(step, 0) + size - 1
    return _has_sum([(step, reach + 1) for step, reach in sorted(lengths.items(), reverse=True)], target)


def _byte_axes(view: View) -> list[tuple[int, int]]:
    """(step in bytes, length) of each axis with more than one position, and of the bytes inside one element."""
    if view.dtype.block_elements != 1:
        return [(1, view.nbytes)]
    size = view.dtype.block_bytes
    axes = [(t * size, s) for s, t in view.axes if s > 1 and t > 0]
    return axes + ([(1, size)] if size > 1 else [])


def _has_sum(axes: list[tuple[int, int]], target: int) -> bool:
    """Whether `sum(i_k * step_k) == target` with `0 <= i_k < size_k` can be solved."""
    reach = [0] * (len(axes) + 1)
    divisor = [0] * (len(axes) + 1)
    for k in range(len(axes) - 1, -1, -1):
        step, size = axes[k]
        reach[k] = reach[k + 1] + step * (size - 1)
        divisor[k] = gcd(divisor[k + 1], step)
    steps = 0
    todo = [(0, target)]
    while todo:
        k, rest = todo.pop()
        steps += 1
        if steps > _OVERLAP_STEPS:
            return True
        if rest < 0 or rest > reach[k] or (rest % divisor[k] if divisor[k] else rest):
            continue
        if k == len(axes):
            return True
        step, size = axes[k]
        least = max(0, -(-(rest - reach[k + 1]) // step))
        most = min(size - 1, rest // step)
        if most - least > _OVERLAP_STEPS:
            return True
        todo.extend((k + 1, rest - i * step) for i in range(least, most + 1))
    return False
