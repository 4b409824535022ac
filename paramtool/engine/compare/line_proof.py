"""A map of lines is proved: every byte of what it gives is compared.

Rows that are rows are gathered from where they are.  Where one side is stored across, both are read in strips, the
same elements of all lines: columns are then compared without reading any tensor against its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare import strips
from paramtool.engine.compare.line_hashes import BLOCK_NBYTES
from paramtool.engine.compare.lines import Claim, changed, raw_rows
from paramtool.engine.compare.runs import LineRun
from paramtool.engine.read.elements import ELEMENTS
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import same

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LONG_NBYTES = 64 << 10
"""Runs of this many bytes are read one by one; shorter ones are gathered."""
GATHERED_NBYTES = 16 << 20
"""The most bytes of rows that are gathered at a time."""
GATHERS = 16
"""Into how many parts the memory is divided, of which each gathered block is one."""


def is_proved(a_source: Source, b_source: Source, claim: Claim) -> bool:
    """Whether every byte of the lines is what the runs say."""
    b_source.prove_later(int(claim.way.lines.view.storage))
    for old in claim.olds.values():
        a_source.prove_later(int(old.view.storage))
    if claim.way.lines.is_across or any(old.is_across for old in claim.olds.values()):
        is_same = strips.are_same(a_source, b_source, claim)
    elif claim.runs.lines * claim.nbytes >= LONG_NBYTES * len(claim.runs):
        is_same = all(_is_run(a_source, b_source, claim, run) for run in _long(claim))
    else:
        is_same = all(_is_gathered(a_source, b_source, claim, some) for some in _gathered(claim))
    a_source.settle()
    b_source.settle()
    return is_same


def _long(claim: Claim) -> Iterator[LineRun]:
    """The runs, cut where they are longer than a block."""
    most = max(1, BLOCK_NBYTES // claim.nbytes)
    for run in claim.runs:
        for at in range(0, run.length, most):
            yield LineRun(run.tensor, run.start + at, min(most, run.length - at), run.to + at)


class Gather(NamedTuple):
    """Lines of the second from `to` on, and where each is in the first."""

    to: int
    tensor: Array
    line: Array


def _gathered(claim: Claim) -> Iterator[Gather]:
    """The lines in blocks, whatever runs they are in."""
    most = max(1, max(BLOCK_NBYTES, min(GATHERED_NBYTES, claim.memory // GATHERS)) // claim.nbytes)
    tensor, line = claim.runs.expanded()
    for at in range(0, len(line), most):
        few = slice(at, at + most)
        yield Gather(at, tensor[few], line[few])


def _is_run(a_source: Source, b_source: Source, claim: Claim, run: LineRun) -> bool:
    old = claim.olds[run.tensor].view
    here = changed(raw_rows(a_source, old, run.start, run.start + run.length), old.dtype, dtype=claim.way.made)
    return same(_bytes(here), _bytes(claim.way.rows(b_source, run.to, run.to + run.length)))


def _is_gathered(a_source: Source, b_source: Source, claim: Claim, gather: Gather) -> bool:
    """The same of lines that follow each other in the second only."""
    import numpy as np

    there = claim.way.rows(b_source, gather.to, gather.to + len(gather.line))
    for number in np.unique(gather.tensor).tolist():
        view = claim.olds[number].view
        here = np.flatnonzero(gather.tensor == number)
        pitch = view.strides[0] * view.dtype.block_bytes
        nbytes = view.shape[1] * view.dtype.block_bytes
        part = a_source.take(int(view.storage), view.byte_start + gather.line[here] * pitch, nbytes)
        part = changed(part.view(ELEMENTS[view.dtype.block_bytes]), view.dtype, dtype=claim.way.made)
        if not same(_bytes(part), _bytes(there if len(here) == len(there) else there[here])):
            return False
    return True


def _bytes(lines: Array) -> Array:
    return lines.reshape(-1).view("u1")
