"""A map of rows is proved: every byte of what it gives is compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.row_hashes import BLOCK_NBYTES, changed, raw_rows
from paramtool.engine.read.elements import ELEMENTS
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import same
from paramtool.model.dtype import DType
from paramtool.model.rowmap import RowRun
from paramtool.model.view import View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LONG_NBYTES = 64 << 10
"""Runs of this many bytes are read one by one; shorter ones are gathered."""
GATHERED_NBYTES = 16 << 20
"""The most bytes of rows that are gathered at a time."""
GATHERS = 16
"""Into how many parts the memory is divided, of which each gathered block is one."""


class RowForm(NamedTuple):
    """How a tensor is cut into rows."""

    view: View
    """[rows, elements of a row]"""
    is_transposed: bool = False


class RowKind(NamedTuple):
    """What rows have to share to be equal."""

    dtype: str
    width: int


class RowWay(NamedTuple):
    """How the rows of a tensor are read, to be found."""

    form: RowForm
    sign: int = 1
    dtype: DType | None = None
    """The type they are cast to."""

    @property
    def kind(self) -> RowKind:
        """Of which rows they are looked for."""
        return RowKind((self.dtype or self.form.view.dtype).name, self.form.view.shape[1])

    def rows(self, source: Source, start: int, stop: int) -> Array:
        """Some rows, in one piece."""
        return changed(
            raw_rows(source, self.form.view, start, stop), self.form.view.dtype, sign=self.sign, dtype=self.dtype
        )


class Claim(NamedTuple):
    """Rows of a tensor of the second checkpoint, and which rows of the first they are."""

    way: RowWay
    olds: Mapping[int, View]
    """{number of a tensor: the tensor as rows}"""
    runs: Sequence[RowRun]
    memory: int
    """Of which a block may take its part, in bytes."""


def is_proved(a_source: Source, b_source: Source, claim: Claim) -> bool:
    """Whether every byte of the rows is what the runs say."""
    view = claim.way.form.view
    b_source.prove_later(int(view.storage))
    for old in claim.olds.values():
        a_source.prove_later(int(old.storage))
    is_same = all(
        same(_bytes(_taken(a_source, claim, runs)), _bytes(claim.way.rows(b_source, *_span(runs))))
        for runs in _blocks(claim)
    )
    a_source.settle()
    b_source.settle()
    return is_same


def _blocks(claim: Claim) -> Iterator[list[RowRun]]:
    """Runs in blocks, cut where they are longer; long ones are blocks of their own."""
    rows, width = claim.way.form.view.shape
    nbytes = width * claim.way.form.view.dtype.block_bytes
    is_long = nbytes * rows >= LONG_NBYTES * len(claim.runs)
    gathered = max(BLOCK_NBYTES, min(GATHERED_NBYTES, claim.memory // GATHERS))
    most = max(1, (BLOCK_NBYTES if is_long else gathered) // nbytes)
    block: list[RowRun] = []
    count = 0
    for run in claim.runs:
        for at in range(0, run.length, most):
            one = RowRun(run.tensor, run.start + at, min(most, run.length - at), run.to + at)
            if block and (is_long or count + one.length > most):
                yield block
                block, count = [], 0
            block.append(one)
            count += one.length
    if block:
        yield block


def _taken(source: Source, claim: Claim, runs: Sequence[RowRun]) -> Array:
    """The rows of the first that some runs name, in the type of the comparison."""
    if len(runs) == 1:
        (one,) = runs
        view = claim.olds[one.tensor]
        return _cast(raw_rows(source, view, one.start, one.start + one.length), view, claim)
    return _gathered(source, claim, runs)


def _gathered(source: Source, claim: Claim, runs: Sequence[RowRun]) -> Array:
    """The same of many short runs, of each tensor together."""
    import numpy as np

    tensors, starts, lengths = (np.array(column) for column in list(zip(*runs, strict=True))[:3])
    owner, ends = np.repeat(tensors, lengths), np.cumsum(lengths)
    row = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    width = claim.way.form.view.shape[1]
    made: Array | None = None
    for number in np.unique(tensors).tolist():
        view = claim.olds[number]
        here = np.flatnonzero(owner == number)
        nbytes = width * view.dtype.block_bytes
        part = source.take(int(view.storage), view.byte_start + row[here] * nbytes, nbytes)
        part = _cast(part.view(ELEMENTS[view.dtype.block_bytes]), view, claim).view("u1")
        if len(here) == len(row):
            return part
        made = np.empty((len(row), part.shape[1]), "u1") if made is None else made
        made[here] = part
    assert made is not None
    return made


def _cast(rows: Array, view: View, claim: Claim) -> Array:
    return changed(rows, view.dtype, dtype=claim.way.dtype or claim.way.form.view.dtype)


def _bytes(rows: Array) -> Array:
    return rows.reshape(-1).view("u1")


def _span(runs: Sequence[RowRun]) -> tuple[int, int]:
    """The rows of the second that runs give."""
    return runs[0].to, runs[-1].to + runs[-1].length
