"""Tensors that no table explains: their rows and columns are looked for in those of the first checkpoint."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from paramtool.commands.diff.axes import by_axes
from paramtool.commands.diff.axes_beside import beside_axes
from paramtool.commands.diff.copies import give_copies, takes_given
from paramtool.commands.diff.found import FoundMap
from paramtool.commands.diff.made import MadeByTables
from paramtool.commands.diff.runs import RunSearch
from paramtool.commands.diff.search import Search
from paramtool.commands.diff.settled import Settled
from paramtool.commands.diff.taken_twice import TakenTwice, by_own_names
from paramtool.commands.progress import Progress
from paramtool.engine.compare.lines import has_lines
from paramtool.engine.compare.sides import is_constant
from paramtool.model.diff import LAYOUT, ROUNDED, UNDECIDED, TensorDiff
from paramtool.model.tiling import unread
from paramtool.model.view import View
from paramtool.passes.diff.names import packed
from paramtool.passes.diff.places import biases_of

NUMBERS = ("float", "bfloat", "complex")
"""What the names of types begin with that no codes are packed in."""
MAX_MEASURED = 1 << 16
"""What was lost by rounding is measured for maps of at most this many runs."""


def by_lines(work: Settled, made: MadeByTables, progress: Progress) -> None:
    """Settle what is made of lines of tensors of the first, and what is beside it, by the same map."""
    varied = _varied(work)
    twice = TakenTwice(work)
    by_axes(work, varied, twice)
    beside_axes(work)
    first, names = _open(work), sorted(work.b)
    search = Search(first, _left(varied, work), work.sides, work.memory)
    maps, copies = [], []
    with progress("rows", search.nbytes) as advance:
        for one in search.found(advance):
            if _is_new(one, work):
                maps.append(one)
                if twice.is_copy(one.name, one.used()):
                    copies.append(one)
                    continue
                named = _under_own_name(one, work, twice)
                _settle(named, work, search)
                twice.made(one.name, one.olds)
                _follow(named, work, made, names)
    given = give_copies(work, maps, search.firsts)
    for one in copies:
        if one.name in work.left_b and takes_given(work, one, given):
            _settle(_under_own_name(one, work, twice), work, search)
        else:
            twice.note(one.name, one.olds)
    runs = RunSearch(first, _left(varied, work), work.sides, work.memory)
    _by_runs(runs, work, search, twice)
    if not search.is_complete:
        _undecided(work, [name for name, view in work.left_b.items() if has_lines(view)])
    _undecided(work, runs.missed)


def _by_runs(runs: RunSearch, work: Settled, search: Search, twice: TakenTwice) -> None:
    """Settle what is made of long runs; what takes only runs that others have is looked for in what is left."""
    copies: dict[str, View] = {}
    settled = 0
    for one in runs.found():
        if not _is_new(one, work):
            continue
        if twice.is_copy(one.name, one.used()):
            twice.note(one.name, one.olds)
            copies[one.name] = work.b[one.name]
            continue
        _settle(_under_own_name(one, work, twice), work, search)
        twice.made(one.name, one.olds)
        settled += 1
    if copies and settled and (left := _open(work)):
        again = RunSearch(left, copies, work.sides, work.memory)
        _by_runs(again, work, search, twice)


def _left(varied: Mapping[str, View], work: Settled) -> dict[str, View]:
    return {name: varied[name] for name in by_own_names(work, varied) if name in work.left_b}


def _is_new(one: FoundMap, work: Settled) -> bool:
    return one.name in work.left_b and not all(work.is_exchanged(old, one.name) for old in one.olds)


def _under_own_name(one: FoundMap, work: Settled, twice: TakenTwice) -> FoundMap:
    """A map of a tensor of several names by the name that the second has, too, or by one that no other map has.

    Lines are looked for under the first.
    """
    own = work.a.get(one.name)

    def name_of(old: str) -> str:
        return one.name if work.a[old] == own else twice.spare(old, one.name)

    return one._replace(lines={k: (name_of(old), lines) for k, (old, lines) in one.lines.items()})


def _open(work: Settled) -> dict[str, View]:
    """The tensors of the first that have elements which are in no tensor of the second so far."""
    return {
        name: view
        for name, view in work.a.items()
        if name in work.left_a or (name in work.used and unread(view, work.used[name]))
    }


def _varied(work: Settled) -> dict[str, View]:
    """The tensors of the second whose content shows where it comes from: neither codes nor one element repeated."""
    source, codes = work.sides.b.source, packed(work.b)
    return {
        name: view
        for name, view in work.left_b.items()
        if not (name in codes and not view.dtype.name.startswith(NUMBERS)) and not is_constant(source, view)
    }


def _settle(one: FoundMap, work: Settled, search: Search) -> None:
    """The verdict on a tensor, and on what is beside it."""
    found = list(search.beside(one, work.left_b))
    for old, window in one.used():
        work.use(old, [window])
    work.sources[one.name] = list(one.sources())
    pairs = one.pairs() if one.kind == ROUNDED and len(one.map.runs) <= MAX_MEASURED else ()
    lost = work.lost(one.kind, pairs) if pairs else None
    unique, moves = one.map.is_unique, one.moves()
    work.settle(one.kind, one.olds, one.name, how=one.how, is_unique=unique, change=lost, moves=moves)
    for name, olds in found:
        work.settle(LAYOUT, olds, name, how=f"{one.how}, as {one.name!r}")


def _follow(one: FoundMap, work: Settled, made: MadeByTables, names: list[str]) -> None:
    """What is beside a matrix by its name, by the same map; `names` are those of the second, sorted."""
    stem = one.name.removesuffix(".weight")
    at = bisect_left(names, stem)
    if not biases_of(one.name, work.left_b) and not any(
        name != one.name and name.startswith(stem) for name in names[at : at + 2]
    ):
        return
    runs = one.named()
    if one.is_of_rows and one.map.is_unique:
        work.maps[one.name] = runs
    made.follow(work.found[one.name], runs)


def _undecided(work: Settled, names: Iterable[str]) -> None:
    """Tensors that the search had no room for."""
    for name in names:
        if name in work.left_b:
            old = (name,) if name in work.left_a else ()
            how = "--memory was too small for the rows of A"
            work.found[name] = TensorDiff(UNDECIDED, old, (name,), how=how, nbytes=work.left_b.pop(name).nbytes)
            work.left_a.pop(name, None)
