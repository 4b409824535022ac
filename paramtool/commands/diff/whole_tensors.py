"""The steps of a comparison that look for whole tensors: the same bytes, or a cast, under one name or another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from typing import NamedTuple

from paramtool.commands.diff.settled import SURE_NBYTES, Settled, distinct, may_be_cast
from paramtool.engine.compare.axes import AxesWay, along, are_same, backwards, corners, ends, may_be, ways
from paramtool.engine.compare.casts import cast_verdict, narrow, sample_as
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.equal import is_constant
from paramtool.engine.read.source import Source
from paramtool.errors import plural
from paramtool.grouping import grouped, paired
from paramtool.layouts.networks import squeezed
from paramtool.model.conventions import COUNTERS
from paramtool.model.diff import CHANGED, LAYOUT, LED_BACK, RENAMED, ROUNDED, SAME
from paramtool.model.dtype import DType
from paramtool.model.objects import is_extra_state
from paramtool.model.tiling import unread
from paramtool.model.view import View, Views
from paramtool.passes.diff.names import Renames, biases_of, spelling

WEIGHTS = ("model", "buffer")
"""Roles of the tensors of a model."""
MANY_TINY = 8
"""How many different numbers of one checkpoint are in another one by no chance."""


class NamePair(NamedTuple):
    """A tensor of the first checkpoint, and one of the second that is, or could be, the same."""

    old: str
    new: str
    is_unique: bool = True
    """Whether no other names of the two would do."""


def by_content(state: Settled, *, is_squeezed: bool = False) -> None:
    """Tensors that hold the same bytes under another name; with `is_squeezed` also with other axes of length 1."""
    unsure: list[tuple[list[str], list[str]]] = []
    for old, new in equal_names(state, state.left_a, state.left_b, is_squeezed=is_squeezed):
        if len(old) == len(new) == 1 and not state.may_be_chance(old[0]):
            if state.is_exchanged(old[0], new[0]):
                state.twins["b", new[0]] = f"the same bytes as {old[0]!r} of A"
                continue
            _rename(state, old[0], new[0])
        else:
            unsure.append((old, new))
    renames = state.renames()
    for old, new in unsure:
        _match(state, old, new, renames)
        state.unsure.append((old, new))


def by_later_renames(state: Settled) -> None:
    """Tensors whose bytes alone prove nothing, by the renames that maps have shown since: nothing is read."""
    renames = state.renames()
    for olds, news in state.unsure:
        old, new = (
            [name for name in names if name in left] for names, left in ((olds, state.left_a), (news, state.left_b))
        )
        if old and new:
            _match(state, old, new, renames)


def equal_names(
    state: Settled, a: Views, b: Views, *, is_squeezed: bool = False
) -> Iterator[tuple[list[str], list[str]]]:
    """Names of some tensors of both checkpoints that hold the same bytes, of one type and shape."""
    keys = [
        (((view.dtype, squeezed(view.shape) if is_squeezed else view.shape), name) for name, view in views.items())
        for views in (a, b)
    ]
    both = paired(*keys)
    windows = [([a[name] for name in old], [b[name] for name in new]) for old, new in both]
    for (old, new), classes in zip(both, state.sides.equal(windows), strict=True):
        for mine, theirs in classes:
            yield [old[k] for k in mine], [new[k] for k in theirs]


def _rename(state: Settled, old: str, new: str, *, is_unique: bool = True) -> None:
    if state.a[old].shape == state.b[new].shape:
        state.settle(RENAMED, [old], new, is_unique=is_unique)
    else:
        state.settle(LAYOUT, [old], new, how="reshaped", is_unique=is_unique)


def _match(state: Settled, old: list[str], new: list[str], renames: Renames) -> None:
    """Equal tensors of several names, by the renames that others show; those of real content by their order."""
    more = ", too few or too alike to be a proof" if state.may_be_chance(old[0]) else ""
    state.twins |= {("b", name): f"the same bytes as {old[0]!r} of A{more}" for name in new}
    state.twins |= {("a", name): f"the same bytes as {new[0]!r} of B{more}" for name in old}
    for pair in matched(state, old, new, renames):
        _rename(state, pair.old, pair.new, is_unique=pair.is_unique)


def matched(state: Settled, old: list[str], new: list[str], renames: Renames) -> list[NamePair]:
    """Pairs of names whose tensors are alike: by renames that others show, or words; those of real content by order."""
    free = dict.fromkeys(new)
    spelled = grouped((spelling(name), name) for name in new)
    left, pairs = [], []
    for name in old:
        names = chain(renames.of(name), spelled.get(spelling(name), ()))
        wanted = next((one for one in names if one in free and not state.is_exchanged(name, one)), None)
        if wanted is None:
            left.append(name)
            continue
        del free[wanted]
        pairs.append(NamePair(name, wanted))
    if not state.may_be_chance(old[0]):
        places = [one for one in free if one not in state.a]
        is_unique = len(left) == len(free) == 1
        pairs += [NamePair(name, other, is_unique) for name, other in zip(left, places, strict=False)]
    return pairs


def tiny(state: Settled) -> None:
    """Tensors of a few bytes that are left, if every one of A is in B, and they are many different ones."""
    old_groups, new_groups = _tiny_contents(state, 0), _tiny_contents(state, 1)
    for key, olds in old_groups.items():
        news = {content: name for name, content in new_groups.get(key, {}).items()}
        contents = {*olds.values()}
        are_single = len(contents) == len(olds) and len(news) == len(new_groups.get(key, {}))
        if are_single and len(olds) >= MANY_TINY and news.keys() >= contents:
            for name, content in olds.items():
                if not state.is_exchanged(name, news[content]):
                    _rename(state, name, news[content])


def _tiny_contents(state: Settled, side: int) -> dict[object, dict[str, bytes]]:
    """{type and shape: {name: bytes}} of the small weights of one checkpoint that are left."""
    entries, source = state.checkpoints[side].entries, state.sides.sources[side]
    found: dict[object, dict[str, bytes]] = {}
    for name, view in (state.left_a, state.left_b)[side].items():
        if name in entries and entries[name].role in WEIGHTS and 0 < view.nbytes < SURE_NBYTES:
            content = source.array(view).all().tobytes()
            found.setdefault((view.dtype, squeezed(view.shape)), {})[name] = content
    return found


# --- Tensors of another type or shape --------------------------------------------------------------------------------


def casts_by_name(state: Settled) -> None:
    """Casts under the same name."""
    _prove(state, _by_name(state, Renames(())))


def casts(state: Settled) -> None:
    """Casts under another name, which names or numbers show."""
    if state.left_a and state.left_b:
        # Casts under another name: those whose samples are like no others', then those that their names show
        unsure = []
        sure = []
        for old, new in alike_as_casts(state, state.left_a, state.left_b):
            if len(old) == len(new) == 1 and not state.may_be_chance(old[0]):
                if not state.is_exchanged(old[0], new[0]):
                    sure.append(NamePair(old[0], new[0]))
            else:
                unsure.append((old, new))
        _prove(state, sure)
        renames = state.renames()
        _prove(state, [one for old, new in unsure for one in matched(state, old, new, renames)])
    if state.left_a and state.left_b:
        casts_by_renames(state)


def casts_by_renames(state: Settled) -> None:
    """Casts under the names that others show."""
    _prove(state, _by_name(state, state.renames()))


def reshaped(state: Settled) -> None:
    """Tensors under the same name and in another shape: the same bytes, or a cast."""
    pairs = {}
    for name, new in state.left_b.items():
        old = state.left_a.get(name)
        if old is None or old.numel != new.numel or not (old.numel and may_be_cast(old, new)):
            continue
        if old.shape != new.shape and old.is_contiguous and new.is_contiguous:
            flat, other = (one.with_axes((one.numel,), (1,)) for one in (old, new))
            pairs[name] = WindowPair(flat, other)
    exact = {name: pair for name, pair in pairs.items() if pair.a.dtype == pair.b.dtype}
    same = state.sides.same(exact.values())
    for name, pair in pairs.items():
        kind = (LAYOUT if same[exact[name]] else "") if name in exact else state.proved([pair])
        if kind:
            state.settle(kind, [name], name, how="reshaped", change=state.lost(kind, [pair]))


def _by_name(state: Settled, renames: Renames) -> Iterator[NamePair]:
    """Tensors of one shape and two types, of one name or of a name that others show."""
    if len({view.dtype for left in (state.left_a, state.left_b) for view in left.values()}) < 2:
        return
    taken: set[str] = set()
    for name, old in list(state.left_a.items()):
        every = (name, *(one for one in renames.of(name) if not state.is_exchanged(name, one)))
        new = next((one for one in every if one in state.left_b and state.left_b[one].shape == old.shape), None)
        if new is not None and new not in taken and state.left_b[new].dtype != old.dtype:
            taken.add(new)
            yield NamePair(name, new)


def _prove(state: Settled, candidates: Iterable[NamePair]) -> None:
    """A verdict on each pair of names that is a cast; an extra state is given to its module in the type that it has."""
    every = [one for one in candidates if not is_extra_state(one.new)]
    pairs = [WindowPair(state.a[one.old], state.b[one.new]) for one in every]
    kinds = list(state.sides.casts([pair] for pair in pairs))
    rounded = [pair for pair, kind in zip(pairs, kinds, strict=True) if kind == ROUNDED]
    measured = state.sides.changes([pair] for pair in rounded)
    changes = dict(zip(rounded, measured, strict=True))
    for one, pair, kind in zip(every, pairs, kinds, strict=True):
        if kind != CHANGED and one.old in state.left_a and one.new in state.left_b:
            state.settle(kind, [one.old], one.new, change=changes.get(pair), is_unique=one.is_unique)


def alike_as_casts(state: Settled, a: Views, b: Views) -> Iterator[tuple[list[str], list[str]]]:
    """Names of some tensors of both checkpoints, of one shape and two types, whose samples are alike."""
    sources = state.sides.sources
    shapes = [((view.shape, name) for name, view in views.items() if view.numel) for views in (a, b)]
    for olds, news in paired(*shapes):
        kinds = product({a[old].dtype for old in olds}, {b[new].dtype for new in news})
        for one, other in sorted(kinds, key=str):
            dtype = narrow(one, other)
            if dtype is None:
                continue
            yield from paired(
                ((sample_as(sources[0], a[old], dtype), old) for old in olds if a[old].dtype == one),
                ((sample_as(sources[1], b[new], dtype), new) for new in news if b[new].dtype == other),
            )


# --- Tensors that hold all of another one under a name that the first has for its own: changed -----------------------


def taken(state: Settled) -> None:
    """The same bytes as another tensor."""
    for olds, news in list(equal_names(state, *_views(state))):
        _set_aside(state, olds, news, "the same bytes as")


def taken_as_casts(state: Settled) -> None:
    """The same numbers as another tensor of another type."""
    for olds, news in list(alike_as_casts(state, *_views(state))):
        proved = [old for old in olds if not state.may_be_chance(old)]
        for new in news:
            same = [old for old in proved if state.proved([WindowPair(state.a[old], state.b[new])])]
            _set_aside(state, same, [new], "a cast of")


def _set_aside(state: Settled, olds: list[str], news: list[str], words: str) -> None:
    if not olds or state.may_be_chance(olds[0]):
        return
    for new in news:
        own = WindowPair(state.a[new], state.b[new])
        is_cast = own.a.dtype != own.b.dtype and own.a.shape == own.b.shape and state.proved([own])
        if not is_cast and all(state.is_exchanged(old, new) for old in olds):
            state.twins["b", new] = f"{words} {olds[0]!r} of A"
            state.taken[new] = state.left_b.pop(new)


def _views(state: Settled) -> tuple[dict[str, View], dict[str, View]]:
    """The tensors of the first, each once, and those of the second without a verdict whose names the first has."""
    new = {name: view for name, view in state.left_b.items() if name in state.a and view.nbytes >= SURE_NBYTES}
    shapes = {view.shape for view in new.values()}
    return {name: view for name, view in distinct(state.a) if view.shape in shapes}, new


# --- Files that hold a graph: tensors that they store once, and that the other file has twice ------------------------


def stored_once(state: Settled) -> None:
    """Tensors of one checkpoint that the graph of the other one has under another name."""
    uses_a, uses_b = (one.uses for one in state.checkpoints)
    pairs = [(old, new) for new, one in state.found.items() if one.kind in LED_BACK for old in one.a]
    found = dict(pairs), {new: old for old, new in reversed(pairs)}
    for side, left in enumerate((state.left_a, state.left_b)):
        there = state.checkpoints[1 - side]
        for name in list(left):  # what torch's batch norms count in training; no other library has it
            at, dot, last = name.rpartition(".")
            mean = found[side].get(f"{at}{dot}running_mean")
            has_none = there.uses or there.parts or not (mean or "").endswith("running_mean")
            if last in COUNTERS and mean is not None and has_none:
                state.settle_only(side, LAYOUT, name, f"a counter that {'BA'[side]}'s format leaves out")
    # Tensors of equal bytes, if as many nodes take the one that a graph stores.
    known = {name: one.a[0] for name, one in state.found.items() if one.kind in (SAME, RENAMED) and len(one.a) == 1}
    if state.left_a and uses_b:
        graph = {name: state.b[name] for name in known if uses_b.get(name, 0) > 1 and name in state.b}
        for name, other in list(_equal(state, state.left_a, graph, is_first=True)):
            one = state.found[other]
            if len(one.a) < uses_b[other]:
                how = f"B stores equal tensors once, and {plural(uses_b[other], 'node takes', 'nodes take')} it"
                state.found[other] = replace(one, kind=RENAMED, a=(*one.a, name), how=how)
                del state.left_a[name]
    if state.left_b and uses_a:
        counts = dict.fromkeys(known.values(), 1)
        graph = {name: state.a[name] for name in counts if uses_a.get(name, 0) > 1 and name in state.a}
        for name, other in list(_equal(state, state.left_b, graph, is_first=False)):
            if counts[other] < uses_a[other]:
                counts[other] += 1
                how = f"A stores equal tensors once, and {plural(uses_a[other], 'node takes', 'nodes take')} it"
                state.settle(RENAMED, [other], name, how=how)


def _equal(state: Settled, left: Views, graph: Views, *, is_first: bool) -> Iterator[tuple[str, str]]:
    """(tensor that is left, tensor of the graph on the other side) of the same bytes."""
    for pair in equal_names(state, left, graph) if is_first else equal_names(state, graph, left):
        mine, theirs = pair if is_first else pair[::-1]
        yield from ((name, theirs[0]) for name in mine)


# --- Tensors that are tensors of the first checkpoint with their axes in another order, under any name ----------------


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
        self._work, self._sources = work, work.sides.sources
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
        work, view = self._work, self._work.b[new]
        if view in self._shared and any(other in work.found for other, one in work.b.items() if one == view):
            return False  # another name of the same memory has a verdict
        return all(work.a[old] not in self._tied and not unread(window, work.used.get(old, ())) for old, window in used)

    def spare(self, old: str, new: str) -> str:
        """The name by which a whole tensor of the first is taken: of several, one that has no verdict."""
        work = self._work
        view = work.a[old]
        if view not in self._tied or old in work.left_a or view.numel != work.b[new].numel:
            return old
        return next((name for name, one in work.left_a.items() if one == view), old)

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
