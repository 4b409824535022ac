"""How two checkpoints differ, tensor by tensor: one verdict each, and how far numbers are apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from paramtool.errors import plural
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import GRAPH
from paramtool.model.view import Shape


class VerdictWords(NamedTuple):
    """What is said of a tensor."""

    kind: str
    """The word in JSON and in Python."""
    label: str
    """In front of a line."""
    words: str
    """Behind a number of tensors."""
    meaning: str


VERDICTS = (
    VerdictWords("same", "same", "the same", "the same bytes under the same name"),
    VerdictWords("renamed", "renamed", "the same under another name", "the same bytes under another name"),
    VerdictWords("layout", "layout", "the same in another layout",
            "the same numbers in other places: in another layout, or as parts of another tensor"),
    VerdictWords("cast", "cast", "cast without loss", "another type, and casting back gives the same bytes"),
    VerdictWords("dequantised", "dequantised", "dequantised",
            "codes and scales on one side, and on the other what they stand for, as its record says"),
    VerdictWords("rounded", "rounded", "cast and rounded",
            "another type, and the one is the other rounded to nearest even"),
    VerdictWords("changed", "changed", "changed", "other numbers"),
    VerdictWords("removed", "only in A", "only in A", "only the first checkpoint has it"),
    VerdictWords("added", "only in B", "only in B", "only the second checkpoint has it"),
    VerdictWords("undecided", "undecided", "undecided",
            "it could not be proved within the memory that was allowed, or a tensor cannot be read"),
    VerdictWords(GRAPH, "graph", "constants of a graph",
            "a constant of a graph that is no weight, such as a shape, and differs or is in one of the two only"),
)  # fmt: skip
KINDS = tuple(one.kind for one in VERDICTS)
SAME, RENAMED, LAYOUT, CAST, DEQUANTISED, ROUNDED, CHANGED, REMOVED, ADDED, UNDECIDED, _ = KINDS
LED_BACK = (SAME, RENAMED, LAYOUT, CAST, DEQUANTISED, ROUNDED)
"""Verdicts of tensors whose numbers both checkpoints have."""
RECORD = "record"
"""What a map is of, in place of a layout, that the record of one side says and `verify` proves."""
SAME_BYTES = "the same bytes, and what they stand for is in one of the two only"
"""Why a tensor is undecided that no byte shows the values of."""
LABELS: Mapping[str, str] = {one.kind: one.label for one in VERDICTS}
WORDS: Mapping[str, str] = {one.kind: one.words for one in VERDICTS}


class RowSpan(NamedTuple):
    """Rows that follow each other: from `start` to before `stop`."""

    start: int
    stop: int


class LinePlace(NamedTuple):
    """Where rows or columns of a tensor begin."""

    start: int
    of: int
    """How many rows or columns the tensor has: rows of a stack of matrices are counted together."""
    is_column: bool = False


class LineMove(NamedTuple):
    """Rows or columns of a tensor of the first checkpoint, and where they are in one of the second."""

    old: str
    length: int
    """How many follow each other in both."""
    here: LinePlace
    there: LinePlace


class Distance(NamedTuple):
    """How far the numbers of two tensors are apart; NaN equals NaN, and infinities equal those of their sign."""

    elements: int
    """How many elements differ."""
    numel: int
    """How many there are."""
    largest: float | None = None
    """The largest absolute difference; `inf` where one is not finite.  None where the type has no numbers."""
    mean: float | None = None
    """The mean absolute difference of all elements."""
    relative: float | None = None
    """The norm of the difference, divided by the norm of the first tensor; None also where that is 0."""
    rows: tuple[RowSpan, ...] = ()
    """The rows, along the first axis of the second tensor, with an element that differs; the first spans of many."""
    row_count: int = 0
    """How many rows differ."""
    nan_only_a: int = 0
    """How many elements are NaN in the first tensor only."""
    nan_only_b: int = 0
    """How many elements are NaN in the second tensor only."""
    beyond: float | None = None
    """The largest of what differences are more than `rtol * |b|`, where that was asked for."""

    def is_close(self, atol: float) -> bool:
        """Whether no element is further than `atol + rtol * |b|`, as of numpy.allclose."""
        most = self.largest if self.beyond is None else self.beyond
        return most is not None and most <= atol

    @property
    def is_finite(self) -> bool:
        """Whether the largest difference is a number."""
        return self.largest is None or isfinite(self.largest)

    @property
    def finite(self) -> Distance:
        """The same without the numbers that are infinite or NaN."""
        largest, mean, relative = (
            one if one is not None and isfinite(one) else None for one in (self.largest, self.mean, self.relative)
        )
        return self._replace(largest=largest, mean=mean, relative=relative)


@frozen
class FoundPlaces:
    """Where the numbers of a tensor are found, as documents have it."""

    map: str
    layout: str
    unique: bool
    _members = "map layout! unique"


@frozen
class TensorDiff:
    """One tensor of the first checkpoint, of the second, or what became of some tensors of the first in the second."""

    kind: str
    """One of KINDS."""
    a: tuple[str, ...] = ()
    """Names in the first checkpoint."""
    b: tuple[str, ...] = ()
    """Names in the second."""
    dtypes: tuple[str, str] = ("", "")
    shapes: tuple[Shape | None, Shape | None] = (None, None)
    how: str = ""
    """The map from the first to the second in words, for `layout`; what explains a change."""
    layout: str = ""
    """The layout or dialect that the map is of; empty where bytes alone showed it."""
    is_unique: bool = True
    """False where several maps give the same bytes."""
    change: Distance | None = None
    moves: tuple[LineMove, ...] = ()
    """The map by rows and columns, where it is one of at most 512 moves; rows of constants are in none.

    Empty for what `how` says in a word, such as a transpose of the whole.
    """
    nbytes: int = 0
    """Of the tensors of the second checkpoint; of the first for what was removed."""
    _members = (
        "kind a b dtypes=known_dtypes shapes *places change?(elements numel finite=is_finite largest=finite.largest "
        "mean=finite.mean relative=finite.relative rows row_count nan_only_a nan_only_b)"
    )

    @property
    def known_dtypes(self) -> tuple[str | None, str | None]:
        """The types, None for a side that has no such tensor."""
        a, b = self.dtypes
        return a or None, b or None

    @property
    def places(self) -> FoundPlaces | None:
        """Where its numbers are, if it has a map."""
        return FoundPlaces(self.how, self.layout, self.is_unique) if self.how else None


def counts(found: Iterable[TensorDiff]) -> Mapping[str, int]:
    """{kind: how many tensors}, in the order of KINDS, without those that there are none of."""
    every: dict[str, int] = dict.fromkeys(KINDS, 0)
    for one in found:
        every[one.kind] += max(1, len(one.b or one.a))
    return {kind: count for kind, count in every.items() if count}


def far(changes: Sequence[Distance]) -> list[str]:
    """How far tensors are apart, in words: NaNs that only one of the two has, else the largest difference.

    >>> far([Distance(2, 8, 0.5), Distance(1, 8, 0.25)])
    ['largest difference 0.5']
    >>> far([Distance(3, 8, float("inf"), nan_only_b=3)])
    ['3 elements are NaN only in B']
    """
    nans = ((sum(one.nan_only_a for one in changes), "A"), (sum(one.nan_only_b for one in changes), "B"))
    words = [f"{plural(count, 'element is', 'elements are')} NaN only in {side}" for count, side in nans if count]
    largest = [one.largest for one in changes if one.largest is not None]
    return words or ([f"largest difference {max(largest):.3g}"] if largest else [])


def spans(rows: Sequence[int]) -> list[RowSpan]:
    """Ascending row numbers as spans.

    >>> spans([0, 1, 2, 7])
    [RowSpan(start=0, stop=3), RowSpan(start=7, stop=8)]
    """
    found: list[RowSpan] = []
    for row in rows:
        if found and found[-1].stop == row:
            found[-1] = RowSpan(found[-1].start, row + 1)
        else:
            found.append(RowSpan(row, row + 1))
    return found
