"""A search for maps without a table: the rows and columns of tensors by 128-bit hashes.

A hash only proposes: what it finds is a map where every byte agrees, and all of them are compared.

Rows are hashed while they are read in order.  Of lines that are stored across, a few elements are read first, the
same of all lines, in whole rows of their tensor.  Where these samples are all different they are the map that has to
be proved; else the sums of whole lines decide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.line_content import is_sure
from paramtool.engine.compare.line_hashes import Hashed, LineHashes
from paramtool.engine.compare.line_proof import is_proved
from paramtool.engine.compare.line_table import LineMap, LineTable
from paramtool.engine.compare.lines import Claim, LineKind, LineWay
from paramtool.engine.read.source import Source

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LOOKED_AT = 8
"""How many lines are looked for before all are."""
ENTRY_NBYTES = 128
"""About what one line takes in the index while it is sorted, and in the maps that are found."""


class Among(NamedTuple):
    """Lines of the first checkpoint that can be equal to each other."""

    kind: LineKind
    is_across: bool


Parts = list[tuple[int, "Array"]]
"""(number of a tensor as lines, hashes)"""


class LineIndex:
    """The lines of many tensors by their hashes."""

    def __init__(self, memory: int) -> None:
        """`memory` is the most bytes that the index may take."""
        self.memory = memory
        self.hashes = LineHashes()
        self._parts: dict[Among, Parts] = {}
        self._samples: dict[Among, Parts] = {}
        self._tables: dict[Among, LineTable] = {}
        self._sample_tables: dict[Among, LineTable] = {}
        self._ways: dict[Among, dict[int, LineWay]] = {}
        self._left = memory // ENTRY_NBYTES
        self._lock = Lock()
        self.missed = 0
        """How many tensors did not fit into memory."""

    def has_room(self, lines: int) -> bool:
        """Whether this many more lines fit into memory; if so, they are counted."""
        if lines > self._left:
            self.missed += 1
            return False
        self._left -= lines
        return True

    def add(self, number: int, way: LineWay, hashed: Hashed) -> None:
        """The lines of a tensor, and their samples."""
        among = Among(way.kind, way.lines.is_across)
        self._ways.setdefault(among, {})[number] = way
        if hashed.whole is not None:
            self._parts.setdefault(among, []).append((number, hashed.whole))
        if hashed.samples is not None:
            self._samples.setdefault(among, []).append((number, hashed.samples))

    def sort(self) -> None:
        """Called after some were added, and before any is looked for."""
        for parts, tables in ((self._parts, self._tables), (self._samples, self._sample_tables)):
            while parts:
                among, some = parts.popitem()
                tables[among] = LineTable(some)

    def find(self, a_source: Source, b_source: Source, way: LineWay, own: Collection[int] = ()) -> LineMap | None:
        """The map that gives a tensor's lines as rows of the first, every byte compared; None if there is none.

        Of several maps, that of a tensor of `own`: the numbers of what has the same name.
        """
        among = Among(way.kind, is_across=False)
        table = self._tables.get(among)
        if table is None or not all(table.has(self.hashes.of_rows(row)) for row in _some_rows(b_source, way)):
            return None
        found = table.find(self.hashes.whole(b_source, way), own)
        return self._proved(a_source, b_source, self._claim(way, among, found))

    def find_across(
        self, a_source: Source, b_source: Source, way: LineWay, own: Collection[int] = ()
    ) -> LineMap | None:
        """The same of lines of which at least one side is stored across."""
        for is_across in (True, False) if way.lines.is_across else (True,):
            among = Among(way.kind, is_across)
            table = self._sample_tables.get(among)
            found = None if table is None else self._sampled(b_source, way, table)
            if found is not None and not found.is_unique:
                whole = self._whole(a_source, among)
                found = None if whole is None else whole.find(self.hashes.whole(b_source, way), own)
            proved = self._proved(a_source, b_source, self._claim(way, among, found))
            if proved is not None:
                return proved
        return None

    def _sampled(self, source: Source, way: LineWay, table: LineTable) -> LineMap | None:
        """The map that the samples of lines propose; without runs where a sample is in several places."""
        is_read = not way.lines.is_across  # as a whole
        if is_read and not all(table.has(self.hashes.of_samples(row)) for row in _some_rows(source, way)):
            return None
        return table.find_only(self.hashes.samples(source, way))

    def _whole(self, source: Source, among: Among) -> LineTable | None:
        """The whole lines of which the samples are in the index; None where they do not fit into memory."""
        with self._lock:
            if among not in self._tables:
                ways = self._ways[among]
                if not self.has_room(sum(way.lines.total for way in ways.values())):
                    return None
                self._tables[among] = LineTable((k, self.hashes.whole(source, way)) for k, way in ways.items())
        return self._tables[among]

    def _claim(self, way: LineWay, among: Among, found: LineMap | None) -> tuple[LineMap, Claim] | None:
        if found is None:
            return None
        olds = {number: self._ways[among][number].lines for number in found.runs.tensors()}
        return found, Claim(way, olds, found.runs, self.memory)

    def _proved(self, a_source: Source, b_source: Source, claimed: tuple[LineMap, Claim] | None) -> LineMap | None:
        if claimed is None:
            return None
        found, claim = claimed
        return found if is_sure(b_source, claim.way) and is_proved(a_source, b_source, claim) else None


def _some_rows(source: Source, way: LineWay) -> Iterator[Array]:
    """A few lines as rows, spread over the tensor."""
    count = way.lines.total
    return (way.rows(source, k, k + 1) for k in range(0, count, max(1, count // LOOKED_AT)))
