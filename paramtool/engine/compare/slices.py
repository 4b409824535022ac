"""Which tensors are slices of a larger tensor: contained in it row by row, at an unknown place.

Of a tensor of r rows, the beginnings of the first k rows are read, and of the larger tensor the beginnings of every
k-th row: wherever the slice is, one of its first k rows is a row that was read.  With k near the square root of r,
little is read if nothing matches.  Possible places are checked at a few more positions, and finally all bytes are
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from paramtool.engine.read.elements import Array
from paramtool.engine.read.sampling import RowMajorBytes
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool, same_window
from paramtool.engine.read.threads import CORES
from paramtool.grouping import grouped
from paramtool.model.dtype import DTYPES
from paramtool.model.match import Match, Rows
from paramtool.model.view import View, Views, contiguous

Advance = Callable[[int], None]
KEY_NBYTES = 32
"""The most bytes of a row that are read; all rows but rows of zeros differ in these."""
MAX_RATIO = 1024
"""A slice is searched for in tensors of at most this many times its size: reading more rows would cost more than a
match could save."""
PROBES = 6
"""How many further positions are compared before all bytes are."""
MANY_STARTS = 1 << 16
"""If a slice could begin at more places than this, its rows are not distinctive; see `_by_distinctive_bytes`."""
MAX_STARTS = 256
"""How many places are compared in full; content that repeats more often is not searched further."""
DISTINCTIVE_NBYTES = 512
CHUNK_NBYTES = 1 << 20
KEYS_AT_ONCE = 1 << 16
MAX_FEW = 1 << 14
"""The most first elements of a vector that are read."""


def slices(pool: Pool, groups: Sequence[tuple[list[Rows], list[Rows]]], advance: Advance) -> Iterator[Match]:
    """Tensors that are slices of larger tensors; each group is (possible slices, tensors that may hold them).

    All rows of a group have one pitch and one dtype.  Each slice is found once, in the first tensor that holds it.
    """
    done: set[str] = set()
    for small, large in groups:
        heads = Heads(pool.source, pool.memory // 4)
        wanted = {rows.name: (rows, rows.view.nbytes, looked_at(rows)) for rows in small if rows.name not in done}
        for owner in large:
            size = owner.view.nbytes
            sought = [one for one in wanted.values() if one[1] < size <= MAX_RATIO * one[1]]
            for rows, row in _found(pool, owner, sought, heads, advance=advance):
                del wanted[rows.name]
                done.add(rows.name)
                dtype = rows.view.dtype
                window = contiguous(owner.name, dtype, rows.view.shape, row * owner.pitch // dtype.block_bytes)
                yield Match(rows.name, owner.name, window, "slice")


def proved(pool: Pool, views: Views, guesses: Iterable[Match], advance: Advance) -> Iterator[Match]:
    """The matches that the bytes prove, one for each name; `views` are the windows on the source."""
    listed = [guess for guess in guesses if views[guess.owner].is_contiguous]
    places = [guess.window.on(views[guess.owner].storage, _start(guess, views)) for guess in listed]
    pairs = [(place, views[guess.name]) for place, guess in zip(places, listed, strict=True)]
    answers = pool.map(lambda source, pair: _alike(source, *pair), ((pair, pair) for pair in pairs))
    done: set[str] = set()
    for guess, equal in zip(listed, answers, strict=True):
        if equal and guess.name not in done:
            done.add(guess.name)
            advance(views[guess.name].nbytes)
            yield guess


def _start(guess: Match, views: Views) -> int:
    return views[guess.owner].byte_start + guess.window.byte_start


def _alike(source: Source, a: View, b: View) -> bool:
    """Whether two windows hold the same bytes: the first element, then all."""
    one, other = source.array(a), source.array(b)
    first = (0,) * len(a.shape)
    return bool(one[first] == other[first]) and same_window(source, a, source, b)


_Sought = tuple[Rows, int, tuple[int, int]]
"""A tensor that could be a slice, its bytes, and what is looked at of it."""


def _found(
    pool: Pool, owner: Rows, sought: list[_Sought], heads: Heads, *, advance: Advance
) -> Iterator[tuple[Rows, int]]:
    """(tensor, first row) for each of `sought` that is a slice of `owner`."""
    kinds = grouped((kind, rows) for rows, _, kind in sought)
    tasks = [
        ((owner, rows, starts), [owner.view, rows.view])
        for kind, some in kinds.items()
        for rows, starts in _candidates(pool.source, owner, some, kind, heads=heads)
    ]
    size = pool.block_nbytes(2)
    if len(tasks) < CORES:  # so that every thread has work
        found = [_first(pool.source, *task, size=size, threads=CORES) for task, _ in tasks]
    else:
        found = list(pool.map(lambda source, task: _first(source, *task, size=size, threads=1), tasks))
    for (task, _), row in zip(tasks, found, strict=True):
        if row is not None:
            advance(task[1].view.nbytes)
            yield task[1], row


def looked_at(rows: Rows) -> tuple[int, int]:
    """(number of first rows of a tensor to read, a power of two, which is also the step in the larger tensor; bytes of
    each row)."""
    few = int(rows.count**0.5) if rows.pitch >= 64 else min(rows.count // 64, MAX_FEW)
    step = 1 << max(few, 1).bit_length() - 1
    return step, min(KEY_NBYTES, rows.view.nbytes - (step - 1) * rows.pitch)


class Heads:
    """The beginnings of the first rows of tensors, each as one number; read once, for as many as the budget allows."""

    def __init__(self, source: Source, memory: int) -> None:
        self._source = source
        self._room = memory
        self._known: dict[str, Array] = {}

    def of(self, rows: Rows) -> Array:
        """A number for each row that is read."""
        if rows.name in self._known:
            return self._known[rows.name]
        step, width = looked_at(rows)
        found = _keys(self._source, rows, step, 1, width=width)
        if found.nbytes <= self._room:
            self._room -= found.nbytes
            self._known[rows.name] = found
        return found


def _candidates(
    source: Source, owner: Rows, some: list[Rows], kind: tuple[int, int], *, heads: Heads
) -> Iterator[tuple[Rows, list[int]]]:
    """(tensor, the places in `owner` where it could begin, by samples) where there are any; at most MAX_STARTS."""
    import numpy as np

    step, width = kind
    last = (owner.view.nbytes - width) // owner.pitch
    probed = np.arange(0, last + 1, step)
    there = _keys(source, owner, len(probed), step, width=width)
    order = np.argsort(there, kind="stable")
    there, probed = there[order], probed[order]
    for rows, low, high in _places(there, some, step, heads=heads):
        if int((high - low).sum()) > MANY_STARTS:  # rows that are not distinctive, such as zeros
            begin = _by_distinctive_bytes(source, owner, rows)
        else:
            parts = [probed[a:b] - k for k, (a, b) in enumerate(zip(low, high, strict=True)) if a < b]
            begin = np.unique(np.concatenate(parts))
        begin = begin[(begin >= 0) & (begin + rows.count <= owner.count)]
        starts = [int(row) for row in _probed(source, owner, rows, begin)[:MAX_STARTS]]
        if starts:
            yield rows, starts


def _places(there: Array, some: Sequence[Rows], step: int, *, heads: Heads) -> Iterator[tuple[Rows, Array, Array]]:
    """(tensor, where each of its first `step` rows begins and ends in sorted numbers) of those of which any is there.

    Many tensors are looked up at once: most are in no other, and a call for each would take most of the time.
    """
    import numpy as np

    many = max(1, KEYS_AT_ONCE // step)
    for at in range(0, len(some), many):
        part = some[at : at + many]
        keys = np.concatenate([heads.of(rows) for rows in part])
        low, high = np.searchsorted(there, keys, "left"), np.searchsorted(there, keys, "right")
        for k in map(int, np.flatnonzero((low < high).reshape(len(part), step).any(axis=1))):
            own = slice(k * step, (k + 1) * step)
            yield part[k], low[own], high[own]


def _by_distinctive_bytes(source: Source, owner: Rows, rows: Rows) -> Array:
    """Rows where a tensor could begin, found by searching all of `owner` for bytes that differ from its beginning.

    In a mask or a pruned matrix most rows are equal; bytes that differ are rare, so reading the larger tensor once
    finds them.
    """
    import numpy as np

    at = _first_different(source, rows.view)
    key = RowMajorBytes(source, rows.view).part(at, min(at + DISTINCTIVE_NBYTES, rows.view.nbytes))
    found: list[int] = []
    reach, row_major = owner.view.nbytes, RowMajorBytes(source, owner.view)
    more = len(key) - rows.view.dtype.block_bytes
    for start in range(0, reach, CHUNK_NBYTES):
        block = row_major.part(start, min(start + CHUNK_NBYTES + more, reach))
        place = block.find(key)
        while place >= 0 and len(found) < MANY_STARTS:
            begin, rest = divmod(start + place - at, owner.pitch)
            if not rest:
                found.append(begin)
            place = block.find(key, place + 1)
    return np.unique(np.array(found, np.int64))


def _first_different(source: Source, view: View) -> int:
    """The byte position of the first element that differs from element 0; constants, which have none, are left out."""
    import numpy as np

    width, row_major = view.dtype.block_bytes, RowMajorBytes(source, view)
    first = np.frombuffer(row_major.part(0, width), "u1")
    for start in range(0, view.nbytes, CHUNK_NBYTES):
        data = row_major.part(start, min(start + CHUNK_NBYTES, view.nbytes))
        unlike = (np.frombuffer(data, "u1").reshape(-1, width) != first).any(axis=1)
        if unlike.any():
            return start + int(unlike.argmax()) * width
    return 0


def _keys(source: Source, rows: Rows, count: int, step: int, *, width: int) -> Array:
    """The beginnings of every `step`-th row, each as one number; equal bytes give equal numbers."""
    import numpy as np

    row_major = RowMajorBytes(source, rows.view)
    key = np.zeros(count, "u8")
    for at in range(0, count, KEYS_AT_ONCE):
        places = np.arange(at, min(at + KEYS_AT_ONCE, count)) * (step * rows.pitch)
        lanes = np.zeros((len(places), -(-width // 8) * 8), "u1")
        lanes[:, :width] = row_major.take(places, width)
        part = key[at : at + len(places)]
        for lane in lanes.view("u8").T:
            part[:] = (part ^ lane) * np.uint64(0x9E3779B97F4A7C15)
            part ^= part >> np.uint64(29)
    return key


def _probed(source: Source, owner: Rows, rows: Rows, begin: Array) -> Array:
    """The first rows in `begin` at which some more positions agree."""
    element = rows.view.dtype.block_bytes
    width = min(max(8, element), rows.view.nbytes)
    elements = (rows.view.nbytes - width) // element
    for k in range(PROBES):
        begin = _agreeing(
            source, owner, rows, begin, at=elements * (k * 5 % PROBES) // (PROBES - 1) * element, width=width
        )
    if len(begin) > MAX_STARTS:
        at = _first_different(source, rows.view)
        begin = _agreeing(source, owner, rows, begin, at=at, width=min(DISTINCTIVE_NBYTES, rows.view.nbytes - at))
    return begin


def _agreeing(source: Source, owner: Rows, rows: Rows, begin: Array, *, at: int, width: int) -> Array:
    """The first rows in `begin` from which `owner` has the same bytes as the tensor at byte `at`."""
    import numpy as np

    if not len(begin):
        return begin
    mine, theirs = RowMajorBytes(source, rows.view).take(np.array([at]), width), RowMajorBytes(source, owner.view)
    parts = np.array_split(begin, len(begin) * width // CHUNK_NBYTES + 1)
    return np.concatenate([some[(theirs.take(some * owner.pitch + at, width) == mine).all(axis=1)] for some in parts])


def _first(source: Source, owner: Rows, rows: Rows, starts: list[int], *, size: int, threads: int) -> int | None:
    """The first of some rows of `owner` at which all bytes of a tensor begin."""
    nbytes = rows.view.nbytes
    one, other = RowMajorBytes(source, rows.view), RowMajorBytes(source, owner.view)
    for row in starts:
        at = row * owner.pitch
        if owner.view.is_contiguous and rows.view.is_contiguous:
            mine, there = _bytes(rows.view, 0, nbytes), _bytes(owner.view, at, at + nbytes)
            is_same = same_window(source, there, source, mine, threads=threads)
        else:
            is_same = all(
                one.part(k, min(k + size, nbytes)) == other.part(at + k, at + min(k + size, nbytes))
                for k in range(0, nbytes, size)
            )
        if is_same:
            return row
    return None


def _bytes(view: View, start: int, stop: int) -> View:
    """A part of a contiguous window, as bytes."""
    return contiguous(view.storage, DTYPES["uint8"], (stop - start,), view.byte_start + start)
