"""How tensors are cut into lines, rows or columns, that can be found in others.

A tensor [d0, d1, d2] is cut at an axis: at 1 it has d0 rows of d1 * d2 elements and d1 * d2 columns of d0 elements, at
2 it has d0 * d1 rows and d2 columns.  So the columns of a cut show what was joined, or split, along an inner axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.read.elements import ELEMENTS, converted, number_type
from paramtool.engine.read.source import Source
from paramtool.model.dtype import DType
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_PERIOD = 64


class LineRun(NamedTuple):
    """Lines that follow each other in both tensors."""

    tensor: int
    start: int
    """The first line in the first checkpoint's tensor."""
    length: int
    to: int
    """Where they begin in the second's."""


class Runs:
    """The runs of one tensor of the second checkpoint, in its order and without a gap."""

    def __init__(self, tensor: Array, start: Array, length: Array, to: Array) -> None:
        """int64 arrays, an element for each run."""
        self.tensor, self.start, self.length, self.to = tensor, start, length, to

    @classmethod
    def of(cls, runs: Iterable[LineRun]) -> Runs:
        """Some runs.

        >>> list(Runs.of([LineRun(0, 2, 4, 0)]))
        [LineRun(tensor=0, start=2, length=4, to=0)]
        """
        import numpy as np

        made = np.array(list(runs), "i8").reshape(-1, 4)
        return cls(*made.T)

    @classmethod
    def of_lines(cls, tensor: Array, line: Array) -> Runs:
        """The runs of lines that are each in one place: `line` of `tensor`."""
        import numpy as np

        cuts = np.flatnonzero((tensor[1:] != tensor[:-1]) | (line[1:] != line[:-1] + 1)) + 1
        to = np.concatenate([[0], cuts])
        return cls(tensor[to], line[to], np.diff(to, append=len(line)), to)

    def __len__(self) -> int:
        return len(self.to)

    def __iter__(self) -> Iterator[LineRun]:
        return map(LineRun, *(one.tolist() for one in (self.tensor, self.start, self.length, self.to)))

    @property
    def lines(self) -> int:
        """How many lines the tensor has."""
        return int(self.length.sum())

    def part(self, low: int, high: int) -> Runs:
        """Some of the runs."""
        few = slice(low, high)
        return Runs(self.tensor[few], self.start[few], self.length[few], self.to[few])

    def first(self, count: int) -> list[LineRun]:
        """The first runs."""
        return list(self.part(0, count))

    def tensors(self) -> list[int]:
        """The numbers of the tensors, in the order in which they come."""
        import numpy as np

        numbers, first = np.unique(self.tensor, return_index=True)
        found: list[int] = numbers[np.argsort(first)].tolist()
        return found

    def expanded(self) -> tuple[Array, Array]:
        """(tensor, line) of each line of the second's tensor."""
        import numpy as np

        ends = np.cumsum(self.length)
        line = np.arange(self.lines) + np.repeat(self.start - (ends - self.length), self.length)
        return np.repeat(self.tensor, self.length), line

    def covered(self) -> Iterator[tuple[int, int, int]]:
        """(tensor, first line, lines) of what is read of the first checkpoint, neighbours together.

        >>> list(Runs.of([LineRun(0, 2, 2, 0), LineRun(0, 0, 2, 2), LineRun(1, 5, 1, 4)]).covered())
        [(0, 0, 4), (1, 5, 1)]
        """
        import numpy as np

        for number in np.unique(self.tensor).tolist():
            here = np.flatnonzero(self.tensor == number)
            here = here[np.argsort(self.start[here], kind="stable")]
            start = self.start[here]
            stop = np.maximum.accumulate(start + self.length[here])
            begin = np.concatenate([[0], np.flatnonzero(start[1:] > stop[:-1]) + 1])
            end = np.append(begin[1:], len(here)) - 1
            for low, high in zip(start[begin].tolist(), stop[end].tolist(), strict=True):
                yield number, low, high - low

    def period(self) -> int:
        """After how many runs tensors and lengths repeat, at most MAX_PERIOD; 0 if they do not.

        Each tensor has to go on where it ended.

        >>> Runs.of([LineRun(0, 0, 2, 0), LineRun(1, 0, 1, 2), LineRun(0, 2, 2, 3), LineRun(1, 1, 1, 5)]).period()
        2
        """
        count = len(self)
        for period in range(1, min(count // 2, MAX_PERIOD) + 1):
            if count % period == 0 and self._repeats(period):
                return period if self._goes_on() else 0
        return 0

    def _repeats(self, period: int) -> bool:
        return all(bool((one[period:] == one[:-period]).all()) for one in (self.tensor, self.length))

    def _goes_on(self) -> bool:
        """Whether each tensor goes on where it ended."""
        for number in self.tensors():
            here = self.tensor == number
            start, stop = self.start[here], self.start[here] + self.length[here]
            if not (start[1:] == stop[:-1]).all():
                return False
        return True

    def exchanged(self) -> tuple[int, int, int] | None:
        """The shape in which a whole tensor's runs are its last axis, and the other two are exchanged; else None.

        >>> Runs.of([LineRun(0, 8 * m + 2 * n, 2, 6 * n + 2 * m) for n in range(4) for m in range(3)]).exchanged()
        (3, 4, 2)
        """
        import numpy as np

        if len(self) < 4 or not self._repeats(1):
            return None
        length, step = int(self.length[0]), int(self.start[1] - self.start[0])
        outer, rest = divmod(step, length)
        if outer < 2 or rest or len(self) % outer:
            return None
        inner = len(self) // outer
        places = self.start.reshape(outer, inner).T.ravel()
        whole = (places == length * np.arange(len(self))).all()
        return (inner, outer, length) if whole else None

    def step(self) -> int:
        """How far apart the runs of one tensor begin, where all are equally long and far apart; else 0."""
        if len(self) < 3 or not self._repeats(1):
            return 0
        steps = self.start[1:] - self.start[:-1]
        return int(steps[0]) if bool((steps == steps[0]).all()) else 0


# --- How tensors are cut into lines ----------------------------------------------------------------------------------


MIN_NBYTES = 32
"""Shorter lines are equal by chance."""
SAMPLES = 16
"""How many elements of a line are its sample."""


class Lines(NamedTuple):
    """A tensor as lines of equal length."""

    view: View
    """[lines, elements of a line]"""
    is_columns: bool = False

    @property
    def total(self) -> int:
        """How many lines."""
        return self.view.shape[0]

    @property
    def is_across(self) -> bool:
        """Whether the storage has the first elements of all lines before the second ones."""
        (lines, length), (step, inner) = self.view.shape, self.view.strides
        return lines > 1 and length > 1 and step < inner

    @property
    def across(self) -> View:
        """[elements of a line, lines]"""
        return turned(self.view)

    def part(self, start: int, count: int) -> View:
        """Some of the lines."""
        view = self.view
        offset = view.offset + start * view.strides[0]
        return View(view.storage, view.dtype, offset, (count, view.shape[1]), view.strides)


class LineKind(NamedTuple):
    """What lines have to share to be equal."""

    dtype: str
    length: int


class LineWay(NamedTuple):
    """How the lines of a tensor are read, to be found."""

    lines: Lines
    sign: int = 1
    dtype: DType | None = None
    """The type they are cast to."""

    @property
    def kind(self) -> LineKind:
        """Of which lines they are looked for."""
        return LineKind(self.made.name, self.lines.view.shape[1])

    @property
    def made(self) -> DType:
        """The type in which they are compared."""
        return self.dtype or self.lines.view.dtype

    @property
    def nbytes(self) -> int:
        """Of one line, as it is compared."""
        return self.lines.view.shape[1] * self.made.block_bytes

    def read(self, source: Source, view: View, start: int, stop: int) -> Array:
        """Some rows of a window on the tensor, changed, in one piece."""
        return changed(raw_rows(source, view, start, stop), view.dtype, sign=self.sign, dtype=self.dtype)

    def rows(self, source: Source, start: int, stop: int) -> Array:
        """Some lines as rows."""
        return self.read(source, self.lines.view, start, stop)

    def samples(self, source: Source, start: int, stop: int) -> Array:
        """A few elements of some lines that are stored across, [lines, elements]."""
        import numpy as np

        view = turned(self.lines.part(start, stop - start))
        return np.concatenate([self.read(source, view, at, at + 1) for at in sampled(view.shape[0]).tolist()]).T


class Claim(NamedTuple):
    """Lines of a tensor of the second checkpoint, and which lines of the first they are."""

    way: LineWay
    olds: Mapping[int, Lines]
    """{number of a tensor: the tensor as lines}"""
    runs: Runs
    memory: int
    """Of which a block may take its part, in bytes."""

    @property
    def nbytes(self) -> int:
        """Of a line, in the wider of its types."""
        return max(self.way.nbytes, self.way.lines.view.shape[1] * self.way.lines.view.dtype.block_bytes)


def sampled(length: int) -> Array:
    """The positions of the elements that are the sample of a line; always the same for one length."""
    import numpy as np

    return np.unique(np.linspace(0, length - 1, min(SAMPLES, length)).astype("i8"))


def turned(view: View) -> View:
    """A matrix with its axes exchanged."""
    return View(view.storage, view.dtype, view.offset, view.shape[::-1], view.strides[::-1])


def rows(view: View) -> Iterator[Lines]:
    """A tensor as rows, cut at the last axis whose rows are long enough, and then at those before it.

    Nothing for one that has no rows, or is packed.  Of tensors that are not stored row by row, only matrices are cut.
    """
    for matrix in _matrices(view):
        if _nbytes(matrix.shape[1], view) >= MIN_NBYTES:
            yield Lines(matrix)


def columns(view: View) -> Iterator[Lines]:
    """The same as columns."""
    for matrix in _matrices(view):
        if _nbytes(matrix.shape[0], view) >= MIN_NBYTES:
            yield Lines(turned(matrix), is_columns=True)


def has_lines(view: View) -> bool:
    """Whether a tensor has rows or columns that are long enough."""
    return any(True for cut in (rows, columns) for _ in cut(view))


def elements(view: View) -> Lines | None:
    """A tensor that is stored row by row as its elements, each a row of its own; None for others."""
    if view.dtype.block_elements != 1 or not view.is_contiguous or not view.numel:
        return None
    return Lines(View(view.storage, view.dtype, view.offset, (view.numel, 1), (1, 1)))


def short_columns(view: View) -> Iterator[Lines]:
    """A tensor as columns that are too short to be found one by one."""
    for matrix in _matrices(view):
        if matrix.shape[0] > 1 and matrix.shape[1] > 1 and _nbytes(matrix.shape[0], view) < MIN_NBYTES:
            yield Lines(turned(matrix), is_columns=True)


def has_short_rows(view: View) -> bool:
    """Whether the rows of a tensor are too short to be found one by one; those of a vector are its elements."""
    return _nbytes(prod([size for size in view.shape if size > 1][1:]), view) < MIN_NBYTES


def _matrices(view: View) -> Iterator[View]:
    """A tensor as a matrix, cut at each of its axes, the last one first."""
    shape = view.shape
    if view.dtype.block_elements != 1 or len(shape) < 2 or not view.numel:
        return
    if view.is_contiguous:
        for axis in range(len(shape) - 1, 0, -1):
            count, width = prod(shape[:axis]), prod(shape[axis:])
            yield View(view.storage, view.dtype, view.offset, (count, width), (width, 1))
    elif len(shape) == 2 and 0 not in view.strides:
        yield view


def _nbytes(elements: int, view: View) -> int:
    return elements * view.dtype.block_bytes


def raw_rows(source: Source, view: View, start: int, stop: int) -> Array:
    """Rows `start` to `stop` of a matrix as raw elements, one behind the other."""
    import numpy as np

    block = source.array(view)[start:stop, 0 : view.shape[1]]
    source.nbytes_read += block.nbytes
    return np.ascontiguousarray(block)


def changed(elements: Array, kind: DType, *, sign: int = 1, dtype: DType | None = None) -> Array:
    """Raw elements of a type, negated for `sign` -1, and cast to another type; raw again, in one piece."""
    import numpy as np

    if sign == 1 and (dtype is None or dtype == kind):
        return elements
    found = elements.view(number_type(kind))
    found = np.negative(found) if sign < 0 else found
    made = converted(found, dtype) if dtype is not None else found
    return np.ascontiguousarray(made).view(ELEMENTS[(dtype or kind).block_bytes])
