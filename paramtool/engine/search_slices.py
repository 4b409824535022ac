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
MANY_STARTS = 1 << 16
"""Of more places than this where a tensor could begin, its rows say nothing; see `_by_telling_bytes`."""
MAX_STARTS = 256
"""So many places are compared in full; content that repeats itself more often is not followed further."""
TELLING_NBYTES = 512
CHUNK_NBYTES = 1 << 20
KEYS_AT_ONCE = 1 << 16


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
        ((owner, rows, starts), [owner.view, rows.view])
        for step, some in strides.items()
        for rows, starts in _candidates(pool.source, owner, some, step)
        if starts
    ]
    size = pool.block_nbytes(2)
    for (task, _), row in zip(tasks, pool.map(lambda source, task: _first(source, *task, size), tasks), strict=True):
        if row is not None:
            advance(task[1].view.nbytes)
            yield task[1], row


def stride(rows: Rows) -> int:
    """How many first rows of a tensor are looked at, a power of two, and so every which row of the larger one."""
    few = int(rows.count**0.5) if rows.pitch >= 64 else rows.count // 64
    return 1 << max(few, 1).bit_length() - 1


def _candidates(source: Source, owner: Rows, some: list[Rows], step: int) -> Iterator[tuple[Rows, list[int]]]:
    """Where in `owner` each of some tensors could begin, as far as samples say; at most MAX_STARTS places."""
    import numpy as np

    width = min(KEY_NBYTES, *(rows.view.nbytes - (step - 1) * rows.pitch for rows in some))
    last = (owner.view.nbytes - width) // owner.pitch
    probed = np.arange(0, last + 1, step)
    there = _keys(source, owner, len(probed), step, width)
    order = np.argsort(there, kind="stable")
    there, probed = there[order], probed[order]
    for rows in some:
        here = _keys(source, rows, step, 1, width)
        low, high = np.searchsorted(there, here, "left"), np.searchsorted(there, here, "right")
        if int((high - low).sum()) > MANY_STARTS:  # rows that say nothing, such as zeros
            begin = _by_telling_bytes(source, owner, rows)
        else:
            parts = [probed[a:b] - k for k, (a, b) in enumerate(zip(low, high, strict=True)) if a < b]
            begin = np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
        begin = begin[(begin >= 0) & (begin + rows.count <= owner.count)]
        yield rows, [int(row) for row in _probed(source, owner, rows, begin)[:MAX_STARTS]]


def _by_telling_bytes(source: Source, owner: Rows, rows: Rows) -> Array:
    """Rows where a tensor could begin, by a stretch of it that is not like its beginning, looked for in all of `owner`.

    Of a mask or a pruned matrix most rows are alike; what is not is rare, and found by reading the larger one once.
    """
    import numpy as np

    at = _telling(source, rows.view)
    key = source.read(int(rows.view.storage), rows.view.byte_start + at, min(TELLING_NBYTES, rows.view.nbytes - at))
    found: list[int] = []
    reach = owner.view.nbytes
    for start in range(0, reach, CHUNK_NBYTES):
        block = source.read(
            int(owner.view.storage), owner.view.byte_start + start, min(CHUNK_NBYTES + len(key) - 1, reach - start)
        )
        place = block.find(key)
        while place >= 0 and len(found) < MANY_STARTS:
            begin, rest = divmod(start + place - at, owner.pitch)
            if not rest:
                found.append(begin)
            place = block.find(key, place + 1)
    return np.unique(np.array(found, np.int64))


def _telling(source: Source, view: View) -> int:
    """Where the first element stands that is not like the first one; there is one, for constants are left out."""
    import numpy as np

    width = view.dtype.block_bytes
    first = np.frombuffer(source.read(int(view.storage), view.byte_start, width), "u1")
    step = CHUNK_NBYTES - CHUNK_NBYTES % width
    for start in range(0, view.nbytes, step):
        data = source.read(int(view.storage), view.byte_start + start, min(step, view.nbytes - start))
        unlike = (np.frombuffer(data, "u1").reshape(-1, width) != first).any(axis=1)
        if unlike.any():
            return start + int(unlike.argmax()) * width
    return 0


def _keys(source: Source, rows: Rows, count: int, step: int, width: int) -> Array:
    """The beginnings of every `step`-th row, each as one number; equal bytes give equal numbers."""
    import numpy as np

    raw = _bytes(source, rows.view)
    key = np.zeros(count, "u8")
    source.nbytes_read += count * width
    for at in range(0, count, KEYS_AT_ONCE):
        some = min(KEYS_AT_ONCE, count - at)
        heads = np.lib.stride_tricks.as_strided(raw[at * step * rows.pitch :], (some, width), (step * rows.pitch, 1))
        lanes = np.zeros((some, -(-width // 8) * 8), "u1")
        lanes[:, :width] = heads
        part = key[at : at + some]
        for lane in lanes.view("u8").T:
            part[:] = (part ^ lane) * np.uint64(0x9E3779B97F4A7C15)
            part ^= part >> np.uint64(29)
    return key


def _probed(source: Source, owner: Rows, rows: Rows, begin: Array) -> Array:
    """Those of the first rows where some more places agree."""
    width = min(8, rows.view.nbytes)
    span = rows.view.nbytes - width
    for k in range(PROBES):
        begin = _agreeing(source, owner, rows, begin, span * (k * 5 % PROBES) // (PROBES - 1), width)
    if len(begin) > MAX_STARTS:
        at = _telling(source, rows.view)
        begin = _agreeing(source, owner, rows, begin, at, min(TELLING_NBYTES, rows.view.nbytes - at))
    return begin


def _agreeing(source: Source, owner: Rows, rows: Rows, begin: Array, at: int, width: int) -> Array:
    """Those of the first rows from which on `owner` has the bytes that a tensor has at byte `at`."""
    import numpy as np

    mine, theirs = _bytes(source, rows.view)[at : at + width], _bytes(source, owner.view)
    source.nbytes_read += width * (len(begin) + 1)
    kept = [np.empty(0, np.int64)]
    for some in np.array_split(begin, len(begin) * width // CHUNK_NBYTES + 1):
        places = some[:, None] * owner.pitch + at + np.arange(width)
        kept.append(some[(theirs[places] == mine).all(axis=1)])
    return np.concatenate(kept)


def _bytes(source: Source, view: View) -> Array:
    """The bytes of a contiguous window, mapped and not read."""
    from paramtool.model.dtype import DTYPES

    return source.array(contiguous(view.storage, DTYPES["uint8"], (view.nbytes,), view.byte_start))


def _first(source: Source, owner: Rows, rows: Rows, starts: list[int], size: int) -> int | None:
    """The first of some rows of `owner` from which on all bytes of a tensor stand."""
    whole = contiguous(owner.view.storage, rows.view.dtype, rows.view.shape)
    for row in starts:
        there = whole.on(owner.view.storage, owner.view.byte_start + row * owner.pitch)
        if same_window(source, there, source, rows.view, size):
            return row
    return None
