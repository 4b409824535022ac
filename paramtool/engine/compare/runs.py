"""Maps between lines (rows, or columns): which lines of which tensors follow each other in another tensor.

[q 0-15; k 0-3; v 0-3; q 16-31; k 4-7; v 4-7]    six runs

A map of a million lines that do not follow each other is four arrays, and no million objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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
