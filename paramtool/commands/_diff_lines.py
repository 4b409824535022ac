"""Tensors that no table explains: their rows and columns are looked for in those of the first checkpoint."""

from __future__ import annotations

from bisect import bisect_left

from paramtool.commands._diff_axes import by_axes
from paramtool.commands._diff_made import Made
from paramtool.commands._diff_search import FoundMap, Search
from paramtool.commands._diff_settled import Settled
from paramtool.commands.progress import Progress
from paramtool.engine.compare.lines import columns, rows
from paramtool.engine.compare.sides import is_constant
from paramtool.model.diff import LAYOUT, ROUNDED, UNDECIDED, TensorDiff
from paramtool.model.view import View
from paramtool.passes.diff.names import packed

NUMBERS = ("float", "bfloat", "complex")
"""What the names of types begin with that no codes are packed in."""
MAX_MEASURED = 4096
"""What was lost by rounding is measured for maps of at most this many runs."""


def by_lines(work: Settled, made: Made, progress: Progress) -> None:
    """Settle what is made of lines of tensors of the first, and what stands beside it by the same map."""
    varied = _varied(work)
    by_axes(work, varied)
    left = {name: view for name, view in varied.items() if name in work.left_b}
    search = Search(dict(work.left_a), left, work.sides, work.memory)
    names = sorted(work.b)
    with progress("rows", search.nbytes) as advance:
        for one in search.found(advance):
            if one.name in work.left_b and not all(work.is_exchanged(old, one.name) for old in one.olds):
                _settle(one, work, search)
                _follow(one, work, made, names)
    if not search.is_complete:
        _undecided(work)


def _varied(work: Settled) -> dict[str, View]:
    """The tensors of the second whose content shows where it comes from: neither codes nor one element repeated."""
    source, codes = work.sides.b.source, packed(work.b)
    return {
        name: view
        for name, view in work.left_b.items()
        if not (name in codes and not view.dtype.name.startswith(NUMBERS)) and not is_constant(source, view)
    }


def _settle(one: FoundMap, work: Settled, search: Search) -> None:
    """The verdict on a tensor, and on what stands beside it."""
    found = list(search.beside(one, work.left_b))
    for old, window in one.used():
        work.use(old, [window])
    pairs = one.pairs() if one.kind == ROUNDED and len(one.map.runs) <= MAX_MEASURED else ()
    lost = work.lost(one.kind, pairs) if pairs else None
    work.settle(one.kind, one.olds, one.name, how=one.how, is_unique=one.map.is_unique, change=lost)
    for name, olds in found:
        work.settle(LAYOUT, olds, name, how=f"{one.how}, as {one.name!r}")


def _follow(one: FoundMap, work: Settled, made: Made, names: list[str]) -> None:
    """What has the name of a matrix and an end of its own, by the same map; `names` are those of the second, sorted."""
    stem = one.name.removesuffix(".weight")
    at = bisect_left(names, stem)
    if not any(name != one.name and name.startswith(stem) for name in names[at : at + 2]):
        return
    runs = one.named()
    if one.is_of_rows and one.map.is_unique:
        work.maps[one.name] = runs
    made.follow(work.found[one.name], runs)


def _undecided(work: Settled) -> None:
    """Tensors that the search had no room for."""
    for name, view in list(work.left_b.items()):
        if any(True for cut in (rows, columns) for _ in cut(view)):
            old = [name] if name in work.left_a else []
            how = "--memory was too small for the rows of A"
            work.found[name] = TensorDiff(UNDECIDED, tuple(old), (name,), how=how, nbytes=view.nbytes)
            del work.left_b[name]
            work.left_a.pop(name, None)
