"""Which tensors stand, row after row, somewhere in a larger one.

Nothing is known of where.  Of a tensor of r rows, the beginnings of its first k rows are looked at, and of the larger
one the beginnings of every k-th row: wherever the small one stands, one of its first k rows falls on a row that was
looked at.  With k near the square root of r, little is read where nothing matches.  What meets is looked at in a few
more places, and at last all bytes are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paramtool.engine.source import Source
from paramtool.engine.streams import Pool, same_window
from paramtool.model.match import Match, Rows
from paramtool.model.view import View, contiguous

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Advance = Callable[[int], None]
KEY_NBYTES = 32
"""What is looked at of a row, at most; all but rows of zeros differ in so much."""
MAX_RATIO = 1024
"""Tensors are looked for in others of at most so many times their size: more rows would have to be looked at than
the find could save."""
PROBES = 6
"""Further places that are looked at before all bytes are."""


def slices(pool: Pool, groups: Sequence[tuple[list[Rows], list[Rows]]], advance: Advance) -> Iterator[Match]:
    """Tensors that stand in larger ones: of each group, the small ones that may stand in the large ones.

    All rows of a group have one pitch and one dtype.  Each small one is found once, in the first large one that has it.
    """
    for small, large in groups:
        wanted = {rows.name: rows for rows in small}
        for owner in large:
            sought = [r for r in wanted.values() if r.view.nbytes < owner.view.nbytes <= MAX_RATIO * r.view.nbytes]
            for rows, row in _found(pool, owner, sought, advance):
                del wanted[rows.name]
                dtype = rows.view.dtype
                window = contiguous(owner.name, dtype, rows.view.shape, row * owner.pitch // dtype.block_bytes)
                yield Match(rows.name, owner.name, window, "slice")


def proved(pool: Pool, views: Mapping[str, View], guesses: Iterable[Match], advance: Advance) -> Iterator[Match]:
    """Those of some matches that the bytes bear out, one for each name; `views` are the windows on the source."""
    size = pool.block_nbytes(2)
    listed = [guess for guess in guesses if views[guess.owner].is_contiguous]
    places = [guess.window.on(views[guess.owner].storage, _start(guess, views)) for guess in listed]
    pairs = [(place, views[guess.name]) for place, guess in zip(places, listed, strict=True)]
    answers = pool.map(lambda source, pair: _alike(source, *pair, size), ((pair, pair) for pair in pairs))
    done: set[str] = set()
    for guess, equal in zip(listed, answers, strict=True):
        if equal and guess.name not in done:
            done.add(guess.name)
            advance(views[guess.name].nbytes)
            yield guess


def _start(guess: Match, views: Mapping[str, View]) -> int:
    return views[guess.owner].byte_start + guess.window.byte_start


def _alike(source: Source, a: View, b: View, size: int) -> bool:
    """Whether two windows hold the same bytes: the first element, then all."""
    one, other = source.array(a), source.array(b)
    first = (0,) * len(a.shape)
    return bool(one[first] == other[first]) and same_window(source, a, source, b, size)


def _found(pool: Pool, owner: Rows, sought: list[Rows], advance: Advance) -> Iterator[tuple[Rows, int]]:
    """(tensor, first row) of those of `sought` that stand in `owner`."""
    strides: dict[int, list[Rows]] = {}
    for rows in sought:
        strides.setdefault(stride(rows), []).append(rows)
    tasks = [
        ((owner, rows, row), [owner.view, rows.view])
        for step, some in strides.items()
        for rows, row in _candidates(pool.source, owner, some, step)
    ]
    done: set[str] = set()
    size = pool.block_nbytes(2)
    for (task, _), equal in zip(tasks, pool.map(lambda s, t: _is_slice(s, *t, size), tasks), strict=True):
        rows, row = task[1], task[2]
        if equal and rows.name not in done:
            done.add(rows.name)
            advance(rows.view.nbytes)
            yield rows, row


def stride(rows: Rows) -> int:
    """How many first rows of a tensor are looked at, a power of two, and so every which row of the larger one."""
    few = int(rows.count**0.5) if rows.pitch >= 64 else rows.count // 64
    return 1 << max(few, 1).bit_length() - 1


def _candidates(source: Source, owner: Rows, some: list[Rows], step: int) -> Iterator[tuple[Rows, int]]:
    """Where in `owner` each of some tensors could begin, as far as samples say."""
    import numpy as np

    width = min(KEY_NBYTES, *(rows.view.nbytes - (step - 1) * rows.pitch for rows in some))
    last = (owner.view.nbytes - width) // owner.pitch
    probed = np.arange(0, last + 1, step)
    there = _keys(source, owner, 0, len(probed), step, width)
    order = np.argsort(there, kind="stable")
    there, probed = there[order], probed[order]
    for rows in some:
        here = _keys(source, rows, 0, step, 1, width)
        low, high = np.searchsorted(there, here, "left"), np.searchsorted(there, here, "right")
        starts = [probed[a:b] - k for k, (a, b) in enumerate(zip(low, high, strict=True)) if a < b]
        if starts:
            begin = np.unique(np.concatenate(starts))
            begin = begin[(begin >= 0) & (begin + rows.count <= owner.count)]
            yield from ((rows, int(row)) for row in _probed(source, owner, rows, begin))


def _keys(source: Source, rows: Rows, first: int, count: int, step: int, width: int) -> Array:
    """The beginnings of rows, each as one number; equal bytes give equal numbers."""
    import numpy as np

    raw = _bytes(source, rows.view)
    heads = np.lib.stride_tricks.as_strided(raw[first * rows.pitch :], (count, width), (step * rows.pitch, 1))
    lanes = np.zeros((count, -(-width // 8) * 8), "u1")
    lanes[:, :width] = heads
    source.nbytes_read += count * width
    key = np.zeros(count, "u8")
    for lane in lanes.view("u8").T:
        key = (key ^ lane) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return key


def _probed(source: Source, owner: Rows, rows: Rows, begin: Array) -> Array:
    """Those of the first rows where some more places agree."""
    import numpy as np

    width = min(8, rows.view.nbytes)
    mine, theirs = _bytes(source, rows.view), _bytes(source, owner.view)
    span = rows.view.nbytes - width
    for k in range(PROBES):
        if not len(begin):
            break
        at = span * (k * 5 % PROBES) // (PROBES - 1) if span else 0
        places = begin[:, None] * owner.pitch + at + np.arange(width)
        source.nbytes_read += width * (len(begin) + 1)
        begin = begin[(theirs[places] == mine[at : at + width]).all(axis=1)]
    return begin


def _bytes(source: Source, view: View) -> Array:
    """The bytes of a contiguous window, mapped and not read."""
    from paramtool.model.dtype import DTYPES

    return source.array(contiguous(view.storage, DTYPES["uint8"], (view.nbytes,), view.byte_start))


def _is_slice(source: Source, owner: Rows, rows: Rows, row: int, size: int) -> bool:
    """Whether all bytes of a tensor stand in another from one of its rows on."""
    raw = contiguous(owner.view.storage, rows.view.dtype, rows.view.shape, 0)
    there = raw.on(owner.view.storage, owner.view.byte_start + row * owner.pitch)
    return same_window(source, there, source, rows.view, size)
