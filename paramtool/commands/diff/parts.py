"""What the layouts of attention, gated MLPs and experts propose for two checkpoints without a config.json.

Names say which tensors could belong together; heads, groups and widths are tried as divisors of the shapes.  A map is
proposed if samples of it agree; every byte is compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

from paramtool.commands.diff import explained, whole_tensors
from paramtool.commands.diff.found import as_rows, companions, map_of, proved
from paramtool.commands.diff.settled import Settled, made_of, may_be_cast
from paramtool.commands.diff.tables import REFUSED, FactsOf, Proposal, facts_of, of_dialects, of_networks
from paramtool.engine.compare.casts import alike, cast_raw, narrow
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.equal import is_constant
from paramtool.engine.compare.sides import Sides, is_number
from paramtool.engine.read.elements import Array
from paramtool.grouping import grouped
from paramtool.model.diff import CHANGED, LAYOUT, LED_BACK, RENAMED
from paramtool.model.dtype import DType
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, Views
from paramtool.parts.pieces import Stored
from paramtool.passes.diff import part_maps
from paramtool.passes.diff.moves import moves_of
from paramtool.passes.diff.names import NUMBER, Renames
from paramtool.passes.diff.part_maps import (
    WEIGHT,
    ElementPlace,
    FusedModule,
    FusedShape,
    FusedTensorName,
    ModuleParts,
    PartMap,
    PartMaps,
    PartShapes,
    fused_in,
    modules,
    parts_in,
)
from paramtool.passes.parts import copies

MAX_MODULES = 64
"""The most modules of the first checkpoint that a tensor is tried with."""
BEGIN = 4
"""Elements at the beginning of a row that are looked at."""
SAMPLED_ROWS = 16
MAX_SMALL = 1 << 18
"""Tensors of this many elements together are read whole, to see whether they hold some elements of another."""


InModule = TypeVar("InModule", FusedTensorName, ModuleParts, FusedModule)
"""What has a module (`at`), and says which tensors of it: the weights, or what is beside them (`suffix`)."""


class _Way(NamedTuple):
    """Tensors of the first checkpoint that one of the second could be made of, and the maps."""

    maps: PartMaps
    names: Mapping[str, str]
    """{what a map calls a tensor of the first: its name}"""
    layout: str
    at: str
    """The module in the second."""
    source: str
    """The module in the first."""
    before: str = ""
    """What is said before the map."""


class _AgreeingMap(NamedTuple):
    """A map whose samples agree."""

    way: _Way
    map: PartMap
    mine: tuple[Stored, ...]
    theirs: Stored


class PartSearch:
    """The tensors of the second checkpoint that are fused tensors, or parts, of those of the first."""

    def __init__(self, a: Views, b: Views, sides: Sides, renames: Renames, *, facts: Sequence[FactsOf | None]) -> None:
        """`facts` are what the config.json beside each of them says."""
        self.a, self.b, self.sides = a, b, sides
        self._facts = facts
        self._samples: dict[tuple[int, View], Array] = {}
        self._held: dict[tuple[int, View, DType | None], frozenset[bytes]] = {}
        """{(side, matrix, type): its rows in this type}"""
        self._named: dict[str, str] = {}
        """{module of the second: the layout of a tensor in it}"""
        self._parts, self._fused = parts_in(a), fused_in(a)
        self._modules = modules(self._fused)
        every = {one.at for one in self._fused} | {one.at for own in self._parts.values() for one in own}
        self._numbers = {at: NUMBER.findall(at) for at in every}
        """{module of the first: the numbers in its name}"""
        self._shown: dict[str, set[str]] = {}
        """{module of the second: those of the first that the renames show it to be}"""
        for at in every:
            for new in renames.of(at):
                self._shown.setdefault(new, set()).add(at)

    def found(self, left: Collection[str]) -> Iterator[list[Proposal]]:
        """The maps that samples agree with, of each tensor that is left; weights first: what is beside them follows."""
        parts, fused = parts_in(self.b), fused_in(self.b)
        for is_weight in (True, False):
            for name, ways in self._ways(parts, fused, is_weight):
                if name in left and self.b[name].is_contiguous and self.b[name].numel:
                    yield list(self._fitting(name, ways))
            self._samples.clear()
            self._held.clear()

    def _ways(
        self, parts: Mapping[str, Sequence[ModuleParts]], fused: Sequence[FusedTensorName], is_weight: bool
    ) -> Iterator[tuple[str, Callable[[], Iterator[_Way]]]]:
        """(tensor of the second, its maps)."""
        by_name = grouped((one.name, one) for one in fused if (one.suffix == WEIGHT) == is_weight)
        for name, rows in sorted(by_name.items(), key=lambda item: len(item[1])):  # names of few layouts say the most
            yield name, partial(self._of_fused, rows)
        for groups in parts.values():
            for group in groups:
                if (group.suffix == WEIGHT) == is_weight:
                    # queries are first in most layouts: what keys and values show names them, too
                    for term, names in sorted(group.tensors.items(), key=lambda item: item[0].startswith("q")):
                        for k, name in enumerate(names):
                            yield name, partial(self._of_part, name, group, f"{term} {k}")

    def _of_fused(self, rows: Sequence[FusedTensorName]) -> Iterator[_Way]:
        """The maps that make a fused tensor of the second: of parts, or of a fused tensor of another layout."""
        for one, group in self._pairs(rows, lambda one: self._parts[one.layout.group]):
            there = self.b[one.name]
            first = group.tensors.get(one.row.terms()[0], ("",))[0]  # its first element is that of the fused tensor
            view = self.a.get(first)
            if view and view.numel and _are_numbers(view, there) and self._is_element(first, 0, one.name, 0):
                maps = part_maps.of_parts(_shape(one, there), _shapes(group, self.a), "")
                names = {f"{term} {k}": name for term, own in group.tensors.items() for k, name in enumerate(own)}
                yield _Way(maps, names, one.layout.name, one.at, group.at)
        of_group = grouped((module.layout.group, module) for module in self._modules)
        for one, other in self._pairs(rows, lambda one: of_group.get(one.layout.group, ())):
            if other.layout == one.layout:
                continue
            there = self.b[one.name]
            theirs = _shape(one, there)
            shapes = tuple(_shape(mine, self.a[mine.name]) for mine in other.tensors)
            held = [mine.name for mine in other.tensors]
            if not self._may_hold(held, there, part_maps.is_of_rows(theirs, *shapes)):
                continue
            names = {f"row {k}": mine.name for k, mine in enumerate(other.tensors)}
            maps = part_maps.between(shapes, theirs)
            yield _Way(maps, names, one.layout.name, one.at, other.at, f"{other.layout.name} -> ")

    def _pairs(
        self, rows: Sequence[FusedTensorName], others: Callable[[FusedTensorName], Iterable[InModule]]
    ) -> Sequence[tuple[FusedTensorName, InModule]]:
        """Rows of layouts with the modules of the first that they are tried with, one module after the other."""
        by_module = grouped(
            (other.at, (one, other))
            for one in rows
            for other in self._near(one.at, [each for each in others(one) if each.suffix == one.suffix])
        )
        return [pair for pairs in by_module.values() for pair in pairs]

    def _of_part(self, name: str, group: ModuleParts, wanted: str) -> Iterator[_Way]:
        """The maps that make a part of the second of a fused tensor of the first."""
        term = wanted.partition(" ")[0]
        others = [
            other for other in self._fused
            if other.layout.group == group.kind and other.suffix == group.suffix and term in other.row.terms()
        ]  # fmt: skip
        for other in self._near(group.at, others):
            shape = _shape(other, self.a[other.name])
            if not self._may_hold([other.name], self.b[name], part_maps.keeps_rows(shape, term)):
                continue
            maps = part_maps.of_parts(shape, _shapes(group, self.b), wanted)
            said = f"a part of {other.name!r}, "
            yield _Way(maps, {"row 0": other.name}, other.layout.name, group.at, other.at, said)

    def _near(self, at: str, others: Sequence[InModule]) -> Sequence[InModule]:
        """Those of others that are tried for a module, the likely ones first: of one name, or of the same numbers."""
        numbers, shown = NUMBER.findall(at), self._shown.get(at, ())
        order = sorted(others, key=lambda one: (one.at != at, one.at not in shown, self._numbers[one.at] != numbers))
        return order[:MAX_MODULES]

    def _may_hold(self, names: Sequence[str], there: View, is_of_rows: bool) -> bool:
        """Whether tensors of the first can hold all of one of the second, by some of it.

        Rows that stay rows are looked for by how they begin, others by their elements, if there are few: a small
        network has many shapes, and the maps of each take longer to list than its tensors to read.
        """
        views = [self.a[name] for name in names]
        every = there, *views
        if not all(view.numel and _are_numbers(view, there) for view in views):
            return False
        if is_of_rows and all(len(view.shape) == 2 and view.shape[1] == there.shape[1] for view in every):
            rows = {view: view.with_axes((view.shape[0], min(BEGIN, view.shape[1])), view.strides) for view in every}
        elif sum(view.numel for view in views) > MAX_SMALL or any(
            view.dtype != there.dtype or not view.is_contiguous for view in views
        ):
            return True
        else:
            rows = {view: as_rows(view, 1) for view in every}
        own = rows[there]
        for k in {own.shape[0] * k // SAMPLED_ROWS for k in range(SAMPLED_ROWS)}:
            one = own.rows(k, k + 1)
            types = ((view, narrow(view.dtype, there.dtype)) for view in views)
            if not any(self._rows_of(1, one, dtype) <= self._rows_of(0, rows[view], dtype) for view, dtype in types):
                return False
        return True

    def _rows_of(self, side: int, view: View, dtype: DType | None) -> frozenset[bytes]:
        """The rows of a matrix, cast to a type if one is given."""
        key = side, view, dtype
        if key not in self._held:
            found = self.sides.sources[side].array(view).all()
            found = found if dtype is None else cast_raw(found, view.dtype, dtype)
            self._held[key] = frozenset(row.tobytes() for row in found)
        return self._held[key]

    def _fitting(self, name: str, ways: Callable[[], Iterable[_Way]]) -> Iterator[Proposal]:
        """The maps that samples agree with; of several layouts of one map, the one that the module has."""
        for ones in self._agreeing(name, ways()).values():
            fit = min(ones, key=self._order)
            target = self._target(fit)
            if target is not None:
                layout = fit.way.layout
                self._named.setdefault(fit.way.at, layout)
                others = dict.fromkeys(one.way.layout for one in ones if one.way.layout != layout and not one.map.ones)
                more = f", the same map as {', '.join(others)}" if others else ""
                how = f"{fit.way.before}{layout} {fit.map.words}{more}"
                yield Proposal(target, layout, how, tuple(self._repeats(fit)), against=self._against(fit) or "")

    def _agreeing(self, name: str, ways: Iterable[_Way]) -> Mapping[tuple[Copy, ...], Sequence[_AgreeingMap]]:
        """The maps that samples agree with, by what they copy."""
        fits: dict[tuple[Copy, ...], list[_AgreeingMap]] = {}
        where, source = frozenset[str](), ""
        for way in ways:
            if fits and way.source != source:
                break  # ways of one module follow each other
            if fits and frozenset(way.names.values()) != where:
                continue
            for one in way.maps.where(partial(self._is_at, name, way)):
                fit = _AgreeingMap(way, one, *one.named(way.names, name))
                target = self._target(fit, in_runs=False)
                if target is not None:
                    fits.setdefault(target.copies, []).append(fit)
                    where, source = frozenset(way.names.values()), way.source
        return fits

    def _order(self, fit: _AgreeingMap) -> tuple[int, bool, int]:
        """Which of several fits is named: one that agrees with the config.json, or else one that contradicts it."""
        said = self._against(fit)
        return 2 if said is None else bool(said), fit.way.layout != self._named.get(fit.way.at), fit.map.ones

    def _against(self, fit: _AgreeingMap) -> str | None:
        """What the config.json beside the second, or else the first, says of the sizes other than a map."""
        mine, theirs = self._facts
        if theirs is not None:
            return fit.map.against(theirs(fit.theirs.name))
        return fit.map.against(mine(fit.mine[0].name)) if mine is not None else None

    def _is_at(self, name: str, way: _Way, element: int, place: ElementPlace) -> bool:
        """Whether an element of the second can be the one at a place in the first; it can, where that is not known."""
        old = way.names[place.name]
        view = self.a[old]
        if not _are_numbers(view, self.b[name]):
            return False
        return not view.is_contiguous or self._is_element(old, place.element, name, element)

    def _target(self, fit: _AgreeingMap, *, in_runs: bool = True) -> Target | None:
        try:
            found = copies.sources("A", fit.mine, self.a)
            made = copies.target(fit.theirs, found, in_runs=in_runs)
        except REFUSED:
            return None
        there = self.b[fit.theirs.name]
        return made if may_be_cast(made.view, there) and there.shape == made.shape else None

    def _repeats(self, fit: _AgreeingMap) -> Iterator[Target]:
        """The same tensor, made of what the first checkpoint repeats."""
        wanted = set(fit.theirs.parts)
        found = copies.sources("A", fit.mine, self.a)
        for _, other in found.repeated:
            if other.piece.part in wanted:
                by_part = {**found.by_part, other.piece.part: [other]}
                yield copies.target(fit.theirs, copies.Sources("A", by_part, ()))

    def _is_element(self, old: str, place: int, new: str, other: int) -> bool:
        """Whether two elements of contiguous tensors can be the same number, each by its place."""
        places = (self.a[old], place), (self.b[new], other)
        a, b = (view.with_axes((1,), (1,), view.offset + k) for view, k in places)
        pair = WindowPair(a, b)
        return alike(self._sample(0, pair.a), self._sample(1, pair.b), pair)

    def _sample(self, side: int, view: View) -> Array:
        if (side, view) not in self._samples:
            self._samples[side, view] = self.sides.sources[side].array(view).all()
        return self._samples[side, view]


def _are_numbers(view: View, there: View) -> bool:
    """Whether elements are no packed codes, and those of one tensor can be those of the other."""
    return there.dtype.block_elements == 1 and may_be_cast(view, there)


def _shape(one: FusedTensorName, view: View) -> FusedShape:
    return FusedShape(one.layout.name, one.layout.tensors.index(one.row), one.suffix, view.shape)


def _shapes(group: ModuleParts, views: Views) -> PartShapes:
    return tuple((term, len(names), views[names[0]].shape) for term, names in group.tensors.items())


# --- The steps that ask tables: tensors that a layout or a dialect makes of others, and what follows -----------------


class MadeByTables:
    """Tensors of the second checkpoint that a table makes of those of the first."""

    def __init__(self, state: Settled) -> None:
        self.state = state
        self._networks: list[Sequence[Proposal]] = []
        """What tables make of whole networks, and numbers that only one of two layouts has."""

    def by_tables(self) -> None:
        """Tensors that are made of those of the first as a layout or a dialect makes them."""
        state = self.state
        every = (of_dialects(*state.checkpoints), self._of_networks())
        for proposed in chain.from_iterable(every):
            if not all(self._holds(one) for one in proposed if one.is_of_second):
                continue
            for one in proposed:
                if one.target.name in state.left_b:
                    self._try(one)
            if any(one.constants or not one.target.names for one in proposed):
                self._networks.append(proposed)
        self.constants()

    def look_at_networks(self) -> None:
        """Note what no layout makes of recurrent networks, where every tensor has a verdict."""
        for _ in self._of_networks():
            pass

    def _of_networks(self) -> Iterator[Sequence[Proposal]]:
        """Recurrent networks as layouts make them; which tensors no layout makes of networks of the first is noted."""
        state, held = self.state, set[str]()
        for proposed in of_networks(*state.checkpoints, state.networks):
            for one in proposed:
                name = one.target.name
                if name in held or name not in state.b or not one.target.names:
                    continue
                if self._holds(one):
                    held.add(name)
                    state.otherwise.pop(name, None)
                else:
                    state.otherwise.setdefault(name, one.how)
            yield proposed

    def by_parts(self) -> None:
        """Tensors that are parts, or fused of them, in layouts for which no config.json gives the sizes."""
        state = self.state
        facts = [facts_of(one) for one in state.checkpoints]
        for proposed in PartSearch(state.a, state.b, state.sides, state.renames(), facts=facts).found(state.left_b):
            proposed = [one for one in proposed if not self._is_of_other_layer(one)]
            holding = [one for one in proposed if self._kind(one.target)] if len(proposed) > 1 else proposed
            holding = [one for one in holding if not one.against] or holding
            for one in holding[:1]:
                self._try(one, is_unique=len(holding) == 1)

    def _is_of_other_layer(self, one: Proposal) -> bool:
        """Whether a tensor that repeats one element would be made of those of another layer, which hold the same."""
        numbers, *others = [NUMBER.findall(name) for name in (one.target.name, *one.target.names)]
        are_alike = all(mine == numbers[: len(mine)] or numbers == mine[: len(numbers)] for mine in others)
        return not are_alike and is_constant(self.state.sides.b.source, self.state.b[one.target.name])

    def constants(self) -> None:
        """Numbers that only one of two layouts has, of networks whose other tensors are all found: zero biases."""
        for proposed in self._networks:
            self._constants(proposed)

    def _constants(self, proposed: Sequence[Proposal]) -> None:
        state = self.state
        made = [one for one in proposed if not one.target.names]
        rest = [state.found.get(one.target.name) for one in proposed if one not in made]
        if not rest or not all(
            one is not None
            and (one.kind in LED_BACK or (one.kind == CHANGED and one.layout and one.how.startswith("explained by")))
            for one in rest
        ):
            return
        for one in made:
            name = one.target.name
            if name in state.left_b and self._kind(one.target):
                how = f"{one.how}, constants that A's layout leaves out"
                state.settle_only(1, LAYOUT, name, how, one.layout)
        for window, number in dict.fromkeys(constant for one in proposed for constant in one.constants):
            if is_number(state.sides.a.source, window, number):
                self._leave_out(window, f"{proposed[0].how}, constants that B's layout leaves out")

    def _leave_out(self, window: View, how: str) -> None:
        """What only the first has, and whose absence changes nothing."""
        state = self.state
        for name, view in state.a.items():
            if view.storage != window.storage or not view.byte_start <= window.byte_start < view.byte_stop:
                continue
            state.use(name, [window])
            if name in state.left_a and not state.unread(name):
                state.settle_only(0, LAYOUT, name, how)

    def _holds(self, one: Proposal) -> bool:
        """Whether a tensor of the second is what a table makes, or that by a number that is added."""
        mine, theirs = self.state.sides.sources
        return bool(self._kind(one.target) or explained.calculated(one, mine, self.state.b[one.target.name], theirs))

    def _kind(self, target: Target) -> str:
        """LAYOUT, CAST or ROUNDED where a tensor of the second is made as a table says; "" where it is not."""
        made = made_of(target, self.state.b[target.name])
        return self.state.proved_made(made, made.pairs) if made is not None else ""

    def _try(self, one: Proposal, *, is_unique: bool = True) -> None:
        """Settle a tensor if every number is what a table says."""
        state, name = self.state, one.target.name
        there = state.b[name]
        made = made_of(one.target, there)
        if made is None and any(len(copy.terms) > 1 for copy in one.target.copies):
            one = one._replace(target=explained.without_zeros(one.target, state.sides.a.source))
            made = made_of(one.target, there)
        names = [old for old in one.target.names if old in state.a]
        if made is None:
            how = explained.calculated(one, state.sides.a.source, there, state.sides.b.source)
            if how and names:  # other numbers for a known reason: changed, since they do not lead back
                for old in names:
                    state.use(old, [state.a[old]])
                state.settle(CHANGED, names, name, how=how, layout=one.layout)
            return
        kind = state.proved_made(made, made.pairs)
        if not kind or not names:
            return
        lost = state.lost(kind, made.pairs)
        if len(names) == 1 and made.pairs == (WindowPair(state.a[names[0]], there),):
            state.settle(RENAMED if kind == LAYOUT else kind, names, name, change=lost)
            return
        self._use(one.target)
        state.sources[name] = [pair.a for pair in made.pairs]
        for repeated in one.repeats:
            if self._kind(repeated):
                self._use(repeated)
        if one.against:
            how = f"{one.how}, but config.json says {one.against}"
            state.settle(CHANGED, names, name, how=how, layout=one.layout)
            return
        how = one.how
        if any(pair.sign < 0 for pair in made.pairs):
            how += ", with a sign"
        elif made.constants:
            how += ", with constants that A's layout leaves out"
        moves = moves_of(one.target, state.a)
        state.settle(kind, names, name, how=how, layout=one.layout, is_unique=is_unique, change=lost, moves=moves)
        if not made.constants:
            state.proved_by(name, made.pairs)
        if not one.repeats and how == one.how:
            rows = map_of(one.target, there, state.a)
            if rows is not None:
                state.maps |= {name: rows} if is_unique else {}
                state.follow(rows)

    def _use(self, target: Target) -> None:
        for copy in target.copies:
            for old in copy.names:
                self.state.use(old, [window for _, window in copy.terms])

    def strays(self) -> None:
        """Biases that are where they were, of matrices whose rows or axes moved: together they are other weights."""
        state = self.state
        whole_tensors.strays(state)
        for name, rows in state.maps.items():
            stem = name.removesuffix(".weight")
            for bias in (f"{stem}.bias", f"{stem}_bias"):
                view, one = state.b.get(bias), state.found.get(bias)
                if view is None or one is None or one.kind == CHANGED or is_constant(state.sides.b.source, view):
                    continue
                for followed in companions(rows, state.a, {bias: view}):
                    if proved(state.sides, followed, state.memory) is None:
                        how = f"does not follow the rows of {name!r}"
                        state.found[bias] = replace(one, kind=CHANGED, how=how, change=None)
