"""A map of lines is proved: every byte of what it gives is compared.

Rows that are rows are gathered from where they are.  Where one side is stored across, both are read in strips, the
same elements of all lines: columns are then compared without reading any tensor against its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.engine.compare.line_hashes import BLOCK_NBYTES
from paramtool.engine.compare.lines import Claim, LineRun, Lines, LineWay, changed, raw_rows
from paramtool.engine.read.elements import ELEMENTS, equal, same
from paramtool.engine.read.source import Source
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


def is_proved(a_source: Source, b_source: Source, claim: Claim) -> bool:
    """Whether every byte of the lines is what the runs say."""
    b_source.prove_later(int(claim.way.lines.view.storage))
    for old in claim.olds.values():
        a_source.prove_later(int(old.view.storage))
    if claim.way.lines.is_across or any(old.is_across for old in claim.olds.values()):
        is_same = are_same(a_source, b_source, claim)
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


# --- Lines that are stored across, in one of two checkpoints or in both, are compared strip by strip ------------------
#
# A strip has the same elements of all lines:
#
#     columns of columns    [elements, lines] on both sides: a few rows of each, read in order
#     columns of rows       one side is turned while parts of it are compared, in a processor's cache


SHARES = 16
"""Into how many parts the memory is divided, of which the strips of one comparison take one for each side."""
LONG = 64
"""Runs of this many lines on average are compared one by one; of shorter ones the lines are gathered."""


class StripPart(NamedTuple):
    """What is compared with lines of one tensor of the first."""

    lines: Lines
    """The lines of it that are read, from the first to the last that is wanted."""
    here: Array | slice
    """Which of these."""
    there: Array | slice
    """Which lines of the second they are."""


def _few(strip: Array, which: Array | slice) -> Array:
    """Some lines of a strip, in its order in memory."""
    import numpy as np

    if isinstance(which, slice):
        return strip[which]
    return np.take(strip, which, axis=0) if strip.flags.c_contiguous else np.take(strip.T, which, axis=1).T


def are_same(a_source: Source, b_source: Source, claim: Claim) -> bool:
    """Whether every byte of the lines is what the runs say."""
    parts = list(_parts(claim))
    way = claim.way
    is_turned = len({way.lines.is_across, *(part.lines.is_across for part in parts)}) > 1
    row = sum(one.total * one.view.dtype.block_bytes for one in (way.lines, *(part.lines for part in parts)))
    most = max(BLOCK_NBYTES, claim.memory // SHARES) if is_turned else BLOCK_NBYTES
    length = way.lines.view.shape[1]
    step = max(1, most // row)
    for start in range(0, length, step):
        stop = min(start + step, length)
        there = _strip(b_source, way, start, stop)
        known: dict[View, Array] = {}
        for part in parts:
            view = part.lines.view
            if view not in known:
                known.clear()
                known[view] = _strip(a_source, LineWay(part.lines, dtype=way.made), start, stop)
            if not equal(_few(known[view], part.here), _few(there, part.there)):
                return False
    return True


def _parts(claim: Claim) -> Iterator[StripPart]:
    """The lines by tensor: as runs where these are long."""
    import numpy as np

    is_long = claim.runs.lines >= LONG * len(claim.runs)
    tensor, line = claim.runs.expanded() if not is_long else (claim.runs.tensor, claim.runs.start)
    for number in claim.runs.tensors():
        here = np.flatnonzero(tensor == number)
        places = line[here]
        low = int(places.min())
        high = int((places + (claim.runs.length[here] if is_long else 1)).max())
        old = claim.olds[number]
        lines = Lines(old.part(low, high - low), old.is_columns)
        if not is_long:
            yield StripPart(lines, places - low, slice(None) if len(here) == len(line) else here)
            continue
        for k in here.tolist():
            start, to, length = int(line[k]) - low, int(claim.runs.to[k]), int(claim.runs.length[k])
            yield StripPart(lines, slice(start, start + length), slice(to, to + length))


def _strip(source: Source, way: LineWay, start: int, stop: int) -> Array:
    """Elements `start` to `stop` of all lines, [lines, elements], in memory as in the storage."""
    import numpy as np

    view, is_across = way.lines.view, way.lines.is_across
    block = source.array(view)[0 : view.shape[0], start:stop]
    source.nbytes_read += block.nbytes
    held = np.ascontiguousarray(block.T if is_across else block)
    made = changed(held, view.dtype, sign=way.sign, dtype=way.dtype)
    return made.T if is_across else made
