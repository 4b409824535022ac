"""Tensors that are tensors of the first checkpoint with their axes in another order, under any name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import NamedTuple

from paramtool.commands.diff.settled import SURE_NBYTES, Settled, may_be_cast
from paramtool.engine.compare.axes import AxesWay, along, are_same, backwards, corners, ends, may_be, ways
from paramtool.engine.compare.casts import cast_verdict, narrow
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.sides import is_constant
from paramtool.engine.read.source import Source
from paramtool.grouping import grouped
from paramtool.model.diff import CHANGED, LAYOUT
from paramtool.model.dtype import DType
from paramtool.model.tiling import unread
from paramtool.model.view import View, Views
from paramtool.passes.diff.names import biases_of

Token = bytes | tuple[bytes, ...]
MAX_TRIED = 64
"""The most tensors of the first that one of the second is compared with: their samples are the same."""


class ReorderedTensor(NamedTuple):
    """A tensor of the first that one of the second could be, with axes in another order."""

    old: str
    way: AxesWay
    kind: str = ""
    """LAYOUT, CAST or ROUNDED, once every byte was compared."""

    @property
    def is_cast(self) -> bool:
        """Whether the types differ."""
        return self.way.a.dtype != self.way.b.dtype

    @property
    def pair(self) -> WindowPair:
        """The first with its axes moved, and the second."""
        return WindowPair(self.way.moved, self.way.b)


def by_axes(work: Settled, varied: Views, twice: TakenTwice) -> None:
    """Settle what is a tensor of the first with its axes in another order, merged or split, or running backwards."""
    search = _AxesSearch(work, varied)
    every = {name: search.candidates(name, varied[name]) for name in by_own_names(work, varied)}
    every = {name: sorted(some, key=lambda one: one.is_cast) for name, some in every.items() if some}
    for name, held in zip(every, search.held(every.values()), strict=True):
        free = next((found for found in held if not _is_copy(work, name, found, twice)), None)
        if held and free is None:  # of more than two that are equal
            (others,) = search.held([[one for one in every[name] if not _is_copy(work, name, one, twice)]])
            free = next(iter(others), None)
        if free is not None:
            free = free._replace(old=twice.spare(free.old, name))
            work.use(free.old, [work.a[free.old]])
            work.ways[name] = free.way
            how, lost = words(work.a[free.old].shape, work.b[name].shape, free.way), work.lost(free.kind, [free.pair])
            work.settle(free.kind, [free.old], name, how=how, is_unique=len(held) == 1, change=lost)
            work.proved_by(name, [free.pair])
            twice.made(name, [free.old])
        elif held:
            twice.note(name, [held[0].old])


def _is_copy(work: Settled, name: str, one: ReorderedTensor, twice: TakenTwice) -> bool:
    return twice.is_copy(name, [(one.old, work.a[one.old])])


def words(old: Sequence[int], new: Sequence[int], way: AxesWay) -> str:
    """How the axes of a tensor became those of another one: `axes (3, 2, 0, 1)`, as NumPy's `transpose` takes them."""
    parts = []
    long = [k for k, size in enumerate(old) if size > 1]
    is_split = [old[k] for k in long] != [size for size in way.a.shape if size > 1]
    if is_split:
        parts.append(f"as {list(way.a.shape)}")
    moved = [k for k in way.order if way.a.shape[k] > 1]
    if moved != sorted(moved):
        is_long = not is_split and len(way.a.shape) < len(old)
        order = tuple(long[k] for k in way.order) if is_long else way.order
        parts.append("transposed" if len(way.order) == 2 else f"axes {order}")
    if way.reversed:
        parts.append(f"axes {', '.join(map(str, way.reversed))} backwards")
    if tuple(new) != way.b.shape or not parts:
        parts.append("reshaped")
    return ", ".join(parts)


class _AxesSearch:
    """The tensors of the first by elements that stay where they are in any order of axes."""

    def __init__(self, work: Settled, varied: Views) -> None:
        self._work, self._sources = work, (work.sides.a.source, work.sides.b.source)
        self._by_size: dict[int, dict[DType, list[str]]] = {}
        sizes = {view.numel for view in varied.values()}
        for name, view in work.left_a.items():
            if view.numel in sizes and _is_sure(view):
                self._by_size.setdefault(view.numel, {}).setdefault(view.dtype, []).append(name)
        self._known: dict[object, dict[Token, list[str]]] = {}

    def candidates(self, name: str, view: View) -> list[ReorderedTensor]:
        """What samples leave, that of its own name first."""
        if not _is_sure(view):
            return []
        groups, long = self._by_size.get(view.numel, {}), _long(view)
        types = ((dtype, dtype if dtype == view.dtype else narrow(dtype, view.dtype)) for dtype in groups)
        forwards = (
            one
            for dtype, small in types
            if small is not None
            for one in self._fitting(name, (view.numel, dtype, small), groups[dtype], partial(ends, dtype=small), ways)
        )
        found = list(islice(forwards, MAX_TRIED))
        alike = [old for old in groups.get(view.dtype, ()) if not found and _long(self._work.a[old]) == long]
        if alike and len(long) > 2:
            found += islice(self._fitting(name, (view.dtype, *long), alike, corners, backwards), MAX_TRIED)
        return found

    def held(self, tensors: Iterable[Sequence[ReorderedTensor]]) -> Iterator[list[ReorderedTensor]]:
        """Which candidates of each tensor hold in every byte; no more are compared than show whether one is alone."""
        sides = self._work.sides
        verdict = partial(cast_verdict, block_nbytes=sides.a.block_nbytes(4))

        def look(a_source: Source, b_source: Source, some: Sequence[ReorderedTensor]) -> list[ReorderedTensor]:
            found: list[ReorderedTensor] = []
            for one in some:
                if len(found) > 1 or (found and one.is_cast and not found[0].is_cast):
                    break
                if one.is_cast:
                    kind = verdict(a_source, b_source, [one.pair])
                else:
                    kind = LAYOUT if are_same(a_source, b_source, (one.way, self._work.memory)) else CHANGED
                if kind != CHANGED:
                    found.append(one._replace(kind=kind))
            return found

        return sides.map(look, ((some, [WindowPair(one.way.a, one.way.b) for one in some]) for some in tensors))

    def _fitting(
        self, name: str, key: object, names: Sequence[str], token: Callable[[Source, View], Token],
        make: Callable[[View, View], Iterator[AxesWay]],
    ) -> Iterator[ReorderedTensor]:  # fmt: skip
        """The orders that samples agree with, of tensors of one token, that of the same name first.

        A token is what is the same in any order of axes.
        """
        view = self._work.b[name]
        if key not in self._known:
            self._known[key] = grouped((token(self._sources[0], self._work.a[old]), old) for old in names)
        olds = self._known[key].get(token(self._sources[1], view), ())
        some = [old for old in sorted(olds, key=lambda old: old != name) if not self._work.is_exchanged(old, name)]
        for old in some[:MAX_TRIED]:
            for way in make(self._work.a[old], view):
                is_other = way.is_moved or self._work.a[old].shape != view.shape
                if is_other and may_be(*self._sources, way):
                    yield ReorderedTensor(old, way)


def _is_sure(view: View) -> bool:
    """Whether a tensor has axes, and is too large to be equal by chance."""
    return view.dtype.block_elements == 1 and view.nbytes >= SURE_NBYTES


def _long(view: View) -> list[int]:
    """The lengths of the axes longer than 1, sorted."""
    return sorted(size for size in view.shape if size > 1)


# --- Biases beside kernels whose axes moved: along some of these axes, and moved as they are --------------------------
#
# query/kernel [32, 4, 8] = query.weight [32, 32]     axes (1, 2, 0), reshaped
# query/bias [4, 8] = query.bias [32]                 axes 1 and 2 of the kernel, which are axis 0 of the weight


def beside_axes(work: Settled) -> None:
    """Settle the biases beside what is another tensor with its axes moved, where the same move gives every byte."""
    for name, way in work.ways.items():
        biases = product(biases_of(work.found[name].a[0], work.left_a), biases_of(name, work.left_b))
        for old, new in biases:
            a, b = work.a[old], work.b[new]
            if old not in work.left_a or new not in work.left_b or work.is_exchanged(old, new):
                continue  # the first, where several are called so
            if a.numel != b.numel or a.shape == b.shape or not may_be_cast(a, b):
                continue
            for one in along(way, a, b):
                pair = WindowPair(one.moved, one.b)
                if kind := work.proved([pair]):
                    work.use(old, [a])
                    how = f"{words(a.shape, b.shape, one) if one.is_moved else 'reshaped'}, as {name!r}"
                    work.settle(kind, [old], new, how=how, change=work.lost(kind, [pair]))
                    break


def strays(work: Settled) -> None:
    """Biases that are where they were, of kernels whose axes moved along them: together they are other weights."""
    for name, way in work.ways.items():
        kernel = work.found[name]
        for old, new in product(biases_of(kernel.a[0], work.a) if kernel.is_unique else (), biases_of(name, work.b)):
            one = work.found.get(new)
            if one is None or one.a != (old,) or one.kind == CHANGED:
                continue
            every = list(along(way, work.a[old], work.b[new]))
            if not every or is_constant(work.sides.b.source, work.b[new]):
                continue
            if not any(work.proved([WindowPair(by.moved, by.b)]) for by in every):
                how = f"does not follow the axes of {name!r}"
                work.found[new] = replace(one, kind=CHANGED, how=how, change=None)


# --- Second copies: tensors of the second that only use what other tensors of it use ----------------------------------
#
# A  weight            B  weight transposed, and the same once more
#
# A program adds up the two biases of a cell, or reads both of two layers.  Names that share memory in the second are
# one tensor, and those of the first as many tensors as names: that they are untied is a verdict of its own.  A map that
# takes some lines more than once and others for the first time is a map as any other.


class TakenTwice:
    """Which tensors take only what others have taken."""

    def __init__(self, work: Settled) -> None:
        self._work = work
        self._tied, self._shared = (
            {view for view, count in Counter(side.values()).items() if count > 1} for side in (work.a, work.b)
        )
        """Windows of the first, and of the second, that have several names."""
        self._makers: dict[str, str] = {}
        """{tensor of the first: the first tensor of the second that was made of it here}"""

    def is_copy(self, new: str, used: Iterable[tuple[str, View]]) -> bool:
        """Whether others have taken all that a tensor would be made of: `used` are names of the first and windows."""
        work = self._work
        if work.b[new] in self._shared and self._is_found(new):
            return False
        return all(work.a[old] not in self._tied and not unread(window, work.used.get(old, ())) for old, window in used)

    def spare(self, old: str, new: str) -> str:
        """The name by which a whole tensor of the first is taken: of several, one that has no verdict."""
        work = self._work
        view = work.a[old]
        if view not in self._tied or old in work.left_a or view.numel != work.b[new].numel:
            return old
        return next((name for name, one in work.left_a.items() if one == view), old)

    def _is_found(self, new: str) -> bool:
        """Whether another name of the same memory has a verdict."""
        view = self._work.b[new]
        return any(other in self._work.found for other, one in self._work.b.items() if one == view)

    def made(self, new: str, olds: Iterable[str]) -> None:
        """Note what a tensor is made of."""
        for old in olds:
            self._makers.setdefault(old, new)

    def note(self, new: str, olds: Iterable[str]) -> None:
        """Say of a tensor whose elements of the first others have."""
        names = list(olds)
        other = next((self._makers[old] for old in names if old in self._makers), "")
        said = f", as {other!r} is" if other else ", which others are made of"
        self._work.twins["b", new] = f"made of {' and '.join(map(repr, names[:2]))} of A{said}"


def by_own_names(work: Settled, names: Iterable[str]) -> list[str]:
    """Tensors of the second, those first whose names the first has: what is taken twice is theirs."""
    return sorted(names, key=lambda name: name not in work.a)
