"""Equal rows of the first checkpoint: where the second has one of them as often as the first, none is lost.

    A  padding x x x, word u        B  word u, padding x x x

A map takes each line of the second from any of the equal ones, so that one may be taken three times and two never.
Here each line that was never taken gets a use of an equal one that was taken more than once.  Lines are read again only
where some of their kind were never taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from paramtool.commands.diff.found import FoundMap, NamedLines
from paramtool.commands.diff.settled import Settled
from paramtool.engine.compare.line_hashes import rows_at_once
from paramtool.engine.compare.lines import LineKind, Lines, LineWay
from paramtool.engine.read.source import Source
from paramtool.model.diff import LAYOUT, spans

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Surplus = dict[LineKind, Counter[bytes]]
"""{kind of lines: {digest of a line: how often it was taken more than once}}"""


def give_copies(work: Settled, maps: Iterable[FoundMap], firsts: Sequence[NamedLines]) -> Surplus:
    """Count lines of the first as used where an equal line was taken in their place.

    `maps` are those that were found, and `firsts` the tensors of the first as the lines that were looked in.  Returns
    how many lines of each digest were given a use.
    """
    uses = _uses(maps)
    source = work.sides.a.source
    wanted = [one for one in firsts if one[0] in work.left_a or (one in uses and not uses[one].all())]
    kinds = {LineWay(lines).kind for _, lines in wanted}
    left: Surplus = {}
    given: Surplus = {}
    for (_, lines), counts in uses.items():
        if LineWay(lines).kind not in kinds:
            continue
        more: dict[int, int] = {k: int(counts[k]) - 1 for k in (counts > 1).nonzero()[0].tolist()}
        for k, digest in _digests(source, lines, list(more)):
            left.setdefault(LineWay(lines).kind, Counter())[digest] += more[k]
    for name, lines in sorted(wanted, key=lambda one: one[0] in work.left_a):  # tensors that are used in part first
        surplus = left.get(LineWay(lines).kind, Counter())
        if not any(surplus.values()) or not (free := _free(work, name, uses.get((name, lines)), lines.total)):
            continue
        taken, found = [], Counter[bytes]()
        for k, digest in _digests(source, lines, free):
            if found[digest] < surplus[digest]:
                found[digest] += 1
                taken.append(k)
        if name in work.left_a and len(taken) < lines.total:
            continue  # a tensor that nothing was taken of: all of it, or it is lost
        surplus.subtract(found)
        given.setdefault(LineWay(lines).kind, Counter()).update(found)
        work.copied.add(name)
        work.use(name, [lines.part(start, stop - start) for start, stop in spans(taken)])
        if name in work.left_a:
            work.settle_only_a(LAYOUT, name, "rows that B has as copies of equal rows")
    return given


def takes_given(work: Settled, one: FoundMap, given: Surplus) -> bool:
    """Whether lines that a map takes were given the use of equal lines; those are its own, and no longer given."""
    source = work.sides.a.source
    taken: Surplus = {}
    for number, start, count in one.map.runs.covered() if given else ():
        lines = one.lines[number][1]
        digests = (digest for _, digest in _digests(source, lines, range(start, start + count)))
        taken.setdefault(LineWay(lines).kind, Counter()).update(digests)
    if not any(given[kind] & found for kind, found in taken.items() if kind in given):
        return False
    for kind, found in taken.items():
        given.setdefault(kind, Counter()).subtract(found)
    return True


def _uses(maps: Iterable[FoundMap]) -> dict[NamedLines, Array]:
    """{a tensor as lines: how often each line was taken}"""
    import numpy as np

    found: dict[NamedLines, Array] = {}
    for one in maps:
        runs = one.map.runs
        for number in runs.tensors():
            lines = one.lines[number]
            here = runs.tensor == number
            edges = np.zeros(lines[1].total + 1, "i8")
            np.add.at(edges, runs.start[here], 1)
            np.add.at(edges, runs.start[here] + runs.length[here], -1)
            counts = np.cumsum(edges)[:-1]
            found[lines] = found[lines] + counts if lines in found else counts
    return found


def _free(work: Settled, name: str, counts: Array | None, total: int) -> Sequence[int]:
    """The lines that no map took, of a tensor of which others were taken, or that has no verdict."""
    if name in work.left_a:
        return range(total)
    if counts is None or not work.unread(name):
        return ()
    found: list[int] = (counts == 0).nonzero()[0].tolist()
    return found


def _digests(source: Source, lines: Lines, which: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """(number of a line, digest of its bytes) of some lines in ascending order."""
    way, step = LineWay(lines), rows_at_once(lines.view)
    for start, stop in spans(which):
        for at in range(start, stop, step):
            for k, row in enumerate(way.rows(source, at, min(at + step, stop)), at):
                yield k, blake2b(row.tobytes(), digest_size=16).digest()
