"""Pairs of windows of two checkpoints: whether both hold the same bytes, each side read once, on every core.

Where a window is all that a CRC was stated for, the CRC is made of the blocks that are compared.  Where both sides
state the same one, the CRC of one side proves that of the other, if their bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import BinaryIO, NamedTuple
from zlib import crc32

from paramtool.engine.read.elements import PAGE_NBYTES, room, same
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import MAX_BLOCK_NBYTES, same_window
from paramtool.engine.read.threads import CORES, threaded
from paramtool.formats.files import read_at
from paramtool.formats.zip.crc import crc32_joined
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

Advance = Callable[[int], None]
MOST_FILES = 8
"""How many files of each side are read at once."""
MOST_PIECES = 1 << 10
"""How many small pieces are compared together."""


def same_bytes(a_source: Source, a: View, b_source: Source, b: View) -> bool:
    """Whether two windows of one dtype and shape hold the same bytes; CRCs that their containers state are compared."""
    return same_windows((a_source, b_source), [(a, b)])[0]


def same_windows(
    sources: tuple[Source, Source], pairs: Sequence[tuple[View, View]], advance: Advance = lambda nbytes: None
) -> list[bool]:
    """Whether the windows of each pair, of one dtype and shape, hold the same bytes.

    FormatError where a CRC that a container states for any of them is wrong.
    """
    found = [True] * len(pairs)
    runs: list[_Run] = []
    files: set[tuple[int, str]] = set()
    for number, pair in enumerate(pairs):
        run = _run_of(sources, pair) if pair[0].numel else None
        if run is None:
            if pair[0].numel:
                # The same for windows that are no runs of bytes of two files
                (a, b), (mine, theirs) = sources, pair
                is_same = same_window(b, theirs, a, mine, threads=CORES, proves=True)
                a.settle()
                b.settle()
                found[number] = is_same
            advance(pair[1].nbytes)
            continue
        run.number = number
        more = {*enumerate(run.files)}
        if len(files | more) > MOST_FILES:
            _compare(sources, runs, found, advance)
            runs, files = [], set()
        files |= more
        runs.append(run)
    _compare(sources, runs, found, advance)
    return found


class _Run:
    """Runs of bytes of two files, and what was found of them so far."""

    __slots__ = ("crcs", "files", "is_same", "nbytes", "number", "starts", "stated", "views")

    def __init__(self, views: tuple[View, View], places: Sequence[ByteRange]) -> None:
        self.number = 0
        self.views = views
        self.files = tuple(place.file for place in places)
        self.starts = [place.start + view.byte_start for place, view in zip(places, views, strict=True)]
        self.nbytes = views[0].nbytes
        self.is_same = True
        self.stated: list[ByteRange | None] = [None, None]
        """The range that each side is, if a CRC is stated for it."""
        self.crcs: dict[int, int] = {}
        """{side: the CRC of what was read}, of the sides whose CRC is to be computed."""


def _run_of(sources: tuple[Source, Source], views: tuple[View, View]) -> _Run | None:
    """A pair as runs of bytes; None where one of the windows is none."""
    places = []
    for source, view in zip(sources, views, strict=True):
        backing = source.checkpoint.storage_of(view).backing
        if not isinstance(backing, ByteRange) or not view.is_contiguous:
            return None
        places.append(backing)
    return _Run(views, places)


class _Piece(NamedTuple):
    """A part of a run."""

    run: _Run
    at: int
    nbytes: int


def _compare(sources: tuple[Source, Source], runs: Sequence[_Run], found: list[bool], advance: Advance) -> None:
    """Compare runs of a few files, and their CRCs."""
    opened: dict[tuple[int, str], BinaryIO] = {}
    for run in runs:
        for side, source in enumerate(sources):
            opened[side, run.files[side]], _ = source.place(run.views[side].number)
            source.nbytes_read += run.nbytes
        _ask_crcs(sources, run)

    def look(pieces: Sequence[_Piece]) -> list[tuple[bool, dict[int, int]]]:
        first = pieces[0].run
        if not any(piece.run.is_same or piece.run.crcs for piece in pieces):
            return [(False, {})] * len(pieces)
        starts = [[piece.run.starts[side] + piece.at for piece in pieces] for side in (0, 1)]
        spans = [at[-1] + pieces[-1].nbytes - at[0] for at in starts]
        with room(spans[0]) as one, room(spans[1]) as other:
            held = one, other
            for side in (0, 1):
                read_at(opened[side, first.files[side]], starts[side][0], held[side].data)
            is_same = spans[0] == spans[1] and not any(piece.run.crcs for piece in pieces) and same(one, other)
            if is_same and all(a - starts[0][0] == b - starts[1][0] for a, b in zip(*starts, strict=True)):
                return [(True, {})] * len(pieces)
            answers: list[tuple[bool, dict[int, int]]] = []
            for piece, *at in zip(pieces, *starts, strict=True):
                parts = [held[k][at[k] - starts[k][0] :][: piece.nbytes] for k in (0, 1)]
                crcs = {side: crc32(parts[side]) for side in piece.run.crcs}
                answers.append((piece.run.is_same and same(*parts), crcs))
            return answers

    tasks = list(_tasks(runs))
    with closing(threaded(look, tasks)) as answers:
        for pieces, answer in zip(tasks, answers, strict=True):
            for (run, at, nbytes), (is_same, crcs) in zip(pieces, answer, strict=True):
                run.is_same &= is_same
                for side, crc in crcs.items():
                    run.crcs[side] = crc32_joined(run.crcs[side], crc, nbytes)
                advance(nbytes)
                if at + nbytes == run.nbytes:
                    _settle(sources, run)
                    found[run.number] = run.is_same
    for source in sources:
        source.settle()


def _ask_crcs(sources: tuple[Source, Source], run: _Run) -> None:
    """Which CRCs are computed of the pieces of a run; others are begun."""
    for side, (source, view) in enumerate(zip(sources, run.views, strict=True)):
        run.stated[side] = source.stated(view.number, view.byte_start, view.nbytes)
        if run.stated[side] is None:
            source.prove_later(view.number)
    unproved = [side for side, one in enumerate(run.stated) if one and sources[side].is_unproved(one)]
    if unproved and _are_twins(run):
        unproved = unproved[: len(unproved) - 1]
    run.crcs = dict.fromkeys(unproved, 0)


def _are_twins(run: _Run) -> bool:
    """Whether both sides state one CRC."""
    one, other = run.stated
    return one is not None and other is not None and one.crc32 == other.crc32


def _settle(sources: tuple[Source, Source], run: _Run) -> None:
    """Compare the CRCs of a run that was read; FormatError if one is wrong."""
    for side, crc in run.crcs.items():
        sources[side].compare(_sealed(run, side), crc)
    if _are_twins(run):
        for side, source in enumerate(sources):
            sealed = _sealed(run, side)
            if run.is_same:
                source.compare(sealed, sealed.crc32 or 0)
            else:
                source.prove_later(run.views[side].number)


def _sealed(run: _Run, side: int) -> ByteRange:
    found = run.stated[side]
    assert found is not None
    return found


def _tasks(runs: Iterable[_Run]) -> Iterator[list[_Piece]]:
    """Pieces that are read together: a block of a long run, or short runs that are near each other in both files."""
    pieces: list[_Piece] = []
    for run in runs:
        for at in range(0, run.nbytes, MAX_BLOCK_NBYTES):
            piece = _Piece(run, at, min(MAX_BLOCK_NBYTES, run.nbytes - at))
            if pieces and not _go_together(pieces, piece):
                yield pieces
                pieces = []
            pieces.append(piece)
    if pieces:
        yield pieces


def _go_together(pieces: Sequence[_Piece], last: _Piece) -> bool:
    """Whether a piece is read with others: it follows them in both files, soon."""
    first, before = pieces[0], pieces[-1]
    if first.run.files != last.run.files or len(pieces) == MOST_PIECES:
        return False
    for begin, end, start in zip(first.run.starts, before.run.starts, last.run.starts, strict=True):
        stop = end + before.at + before.nbytes
        here = start + last.at
        if not stop <= here <= stop + PAGE_NBYTES or here + last.nbytes - begin - first.at > MAX_BLOCK_NBYTES:
            return False
    return True
