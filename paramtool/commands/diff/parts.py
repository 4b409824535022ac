"""What the layouts of attention, gated MLPs and experts propose for two checkpoints without a config.json.

Names say which tensors could belong together; heads, groups and widths are tried as divisors of the shapes.  A map is
proposed if samples of it agree; every byte is compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from paramtool.commands.diff.settled import may_be_cast
from paramtool.commands.diff.tables import REFUSED, FactsOf, Proposal
from paramtool.engine.compare.cast_verdicts import alike, cast_raw, narrow
from paramtool.engine.compare.sides import Sides
from paramtool.engine.read.source import Source
from paramtool.grouping import grouped
from paramtool.model.dtype import DType
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, Views
from paramtool.parts.pieces import Stored
from paramtool.passes.diff import part_maps
from paramtool.passes.diff.names import NUMBER, Renames
from paramtool.passes.diff.part_maps import FusedShape, PartMap, PartMaps, PartShapes
from paramtool.passes.diff.part_names import (
    WEIGHT,
    FusedTensorName,
    ModuleParts,
    fused_in,
    modules,
    parts_in,
)
from paramtool.passes.diff.positions import ElementPlace
from paramtool.passes.parts import copies

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SAMPLED_COPIES = 12
"""How many copies of a map are sampled, each at some places."""
SAMPLED_PLACES = 4
SAMPLE = 16
"""Elements of a sample, at most."""
MAX_MODULES = 64
"""The most modules of the first checkpoint that a tensor is tried with."""
BEGIN = 8
"""Elements at the beginning of a row that are looked at."""
SAMPLED_ROWS = 16
MAX_SMALL = 1 << 18
"""Tensors of this many elements together are read whole, to see whether they hold some elements of another."""


class _InModule(Protocol):
    """What has a module."""

    @property
    def at(self) -> str:
        """The module."""

    @property
    def suffix(self) -> str:
        """Which tensors of it: the weights, or what is beside them."""


InModule = TypeVar("InModule", bound=_InModule)


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


class _AgreedMaps(NamedTuple):
    """The maps between tensors of some shapes that samples of some layer agree with."""

    maps: PartMaps
    """Kept, so that no others have its id."""
    numbers: dict[int, None]


class PartSearch:
    """The tensors of the second checkpoint that are fused tensors, or parts, of those of the first."""

    def __init__(self, a: Views, b: Views, sides: Sides, renames: Renames, *, facts: Sequence[FactsOf | None]) -> None:
        """`facts` are what the config.json beside each of them says."""
        self.a, self.b, self.sides = a, b, sides
        self._facts = facts
        self._samples: dict[tuple[int, View], Array] = {}
        self._single: dict[tuple[int, str, int], Array] = {}
        """{(side, tensor, place): the element of a contiguous tensor}"""
        self._rows: dict[tuple[str, DType | None], Array] = {}
        """{(tensor of the first, type): how its rows begin in it, sorted}"""
        self._shared: dict[tuple[tuple[str, ...], View], bool] = {}
        """{(tensors of the first, one of the second): whether its rows can be theirs}"""
        self._agreed: dict[int, _AgreedMaps] = {}
        """{the id of some maps: those that agreed}"""
        self._elements: dict[str, frozenset[object]] = {}
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
            self._single.clear()
            self._rows.clear()
            self._shared.clear()
            self._elements.clear()

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
            first = group.tensors.get(one.row.terms()[0], ("",))[0]
            if first and self._may_begin(first, one.name):
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
            if part_maps.is_of_rows(theirs, *shapes) and not self._may_share_rows(held, there):
                continue
            if not self._may_hold(held, there):
                continue
            names = {f"row {k}": mine.name for k, mine in enumerate(other.tensors)}
            maps = part_maps.between(shapes, theirs)
            yield _Way(maps, names, one.layout.name, one.at, other.at, f"{other.layout.name} -> ")

    def _pairs(
        self, rows: Sequence[FusedTensorName], others: Callable[[FusedTensorName], Iterable[InModule]]
    ) -> Sequence[tuple[FusedTensorName, InModule]]:
        """Rows of layouts with the modules of the first that they are tried with, one module after the other."""
        pairs = [
            (one, other)
            for one in rows
            for other in self._near(one.at, [each for each in others(one) if each.suffix == one.suffix])
        ]
        order: dict[str, int] = {}
        for _, other in pairs:
            order.setdefault(other.at, len(order))
        return sorted(pairs, key=lambda pair: order[pair[1].at])

    def _of_part(self, name: str, group: ModuleParts, wanted: str) -> Iterator[_Way]:
        """The maps that make a part of the second of a fused tensor of the first."""
        term = wanted.partition(" ")[0]
        others = [
            other for other in self._fused
            if other.layout.group == group.kind and other.suffix == group.suffix and term in other.row.terms()
        ]  # fmt: skip
        for other in self._near(group.at, others):
            shape = _shape(other, self.a[other.name])
            if part_maps.keeps_rows(shape, term) and not self._may_share_rows([other.name], self.b[name]):
                continue
            if not self._may_hold([other.name], self.b[name]):
                continue
            maps = part_maps.of_parts(shape, _shapes(group, self.b), wanted)
            said = f"a part of {other.name!r}, "
            yield _Way(maps, {"row 0": other.name}, other.layout.name, group.at, other.at, said)

    def _near(self, at: str, others: Sequence[InModule]) -> Sequence[InModule]:
        """Those of others that are tried for a module, the likely ones first: of one name, or of the same numbers."""
        numbers, shown = NUMBER.findall(at), self._shown.get(at, ())
        order = sorted(others, key=lambda one: (one.at != at, one.at not in shown, self._numbers[one.at] != numbers))
        return order[:MAX_MODULES]

    def _may_begin(self, name: str, new: str) -> bool:
        """Whether the first element of a part is that of the tensor that holds it first."""
        view, there = self.a[name], self.b[new]
        return bool(view.numel) and _are_numbers(view, there) and self._is_element(name, 0, new, 0)

    def _may_share_rows(self, names: Sequence[str], there: View) -> bool:
        """Whether rows of a tensor of the second can be rows of some of the first, by how a few begin."""
        if (key := (tuple(names), there)) not in self._shared:
            self._shared[key] = self._rows_are_shared(names, there)
        return self._shared[key]

    def _rows_are_shared(self, names: Sequence[str], there: View) -> bool:
        views = [self.a[name] for name in names]
        if not all(view.numel and _are_numbers(view, there) for view in views):
            return False
        if len(there.shape) != 2 or any(len(view.shape) != 2 or view.shape[1] != there.shape[1] for view in views):
            return True
        sampled = [_begin(there, there.shape[0] * k // SAMPLED_ROWS) for k in range(SAMPLED_ROWS)]
        return all(any(self._has_row(name, row) for name in names) for row in sampled)

    def _may_hold(self, names: Sequence[str], there: View) -> bool:
        """Whether small tensors of the first can hold all elements of one of the second, by some of them.

        A small network has many shapes: the maps of each take longer to list than its tensors to read.
        """
        views = [self.a[name] for name in names]
        if any(view.dtype != there.dtype for view in views) or sum(view.numel for view in views) > MAX_SMALL:
            return True
        places = {there.numel * k // SAMPLED_ROWS for k in range(SAMPLED_ROWS)}
        elements = (View(there.storage, there.dtype, there.offset + k, (1,), (1,)) for k in places)
        wanted = {self._sample(1, element).tolist()[0] for element in elements}
        return wanted.issubset(element for name in names for element in self._held(name))

    def _held(self, name: str) -> frozenset[object]:
        """The elements of a tensor of the first, as raw numbers."""
        if name not in self._elements:
            self._elements[name] = frozenset(self.sides.a.source.array(self.a[name]).all().ravel().tolist())
        return self._elements[name]

    def _has_row(self, name: str, row: View) -> bool:
        """Whether a row of a matrix of the first begins like one of the second."""
        import numpy as np

        view = self.a[name]
        dtype = narrow(view.dtype, row.dtype)
        if (name, dtype) not in self._rows:
            self._rows[name, dtype] = np.sort(_begins(self.sides.a.source, view, dtype))
        rows, sought = self._rows[name, dtype], _starts(_cast_begin(self._sample(1, row), row, dtype))[0]
        place = int(np.searchsorted(rows, sought))
        return place < len(rows) and bool(rows[place] == sought)

    def _fitting(self, name: str, ways: Callable[[], Iterable[_Way]]) -> Iterator[Proposal]:
        """The maps that samples agree with; of several layouts of one map, the one that the module has.

        Those that agreed in other layers come first.  If one does, no other can, unless elements repeat.
        """
        fits = self._agreeing(name, ways(), again=True) if self._agreed and self._is_varied(self.b[name]) else {}
        fits = fits or self._agreeing(name, ways(), again=False)
        for ones in fits.values():
            fit = min(ones, key=self._order)
            target = self._target(fit)
            if target is not None:
                layout = fit.way.layout
                self._named.setdefault(fit.way.at, layout)
                others = dict.fromkeys(one.way.layout for one in ones if one.way.layout != layout and not one.map.ones)
                more = f", the same map as {', '.join(others)}" if others else ""
                how = f"{fit.way.before}{layout} {fit.map.words}{more}"
                yield Proposal(target, layout, how, tuple(self._repeats(fit)), against=self._against(fit) or "")

    def _agreeing(
        self, name: str, ways: Iterable[_Way], *, again: bool
    ) -> Mapping[tuple[Copy, ...], Sequence[_AgreeingMap]]:
        """The maps that samples agree with, by what they copy: all, or only those that agreed before."""
        fits: dict[tuple[Copy, ...], list[_AgreeingMap]] = {}
        where, source = frozenset[str](), ""
        for way in ways:
            if fits and way.source != source:
                break  # ways of one module follow each other
            if fits and frozenset(way.names.values()) != where:
                continue
            is_at = partial(self._is_at, name, way)
            before = self._agreed.get(id(way.maps))
            for number in way.maps.among(before.numbers if before else (), is_at) if again else way.maps.where(is_at):
                fit = _agreeing(name, way, way.maps[number])
                target = self._target(fit, in_runs=False)
                if target is not None and (target.copies in fits or self._agrees(target.copies, self.b[name])):
                    fits.setdefault(target.copies, []).append(fit)
                    where, source = frozenset(way.names.values()), way.source
                    self._agreed.setdefault(id(way.maps), _AgreedMaps(way.maps, {})).numbers[number] = None
        return fits

    def _is_varied(self, there: View) -> bool:
        """Whether no two of some rows begin alike."""
        if not there.shape or there.shape[0] < SAMPLED_ROWS:
            return False
        width = prod(there.shape[1:])
        matrix = View(there.storage, there.dtype, there.offset, (there.shape[0], width), (width, 1))
        rows = (_begin(matrix, there.shape[0] * k // SAMPLED_ROWS) for k in range(SAMPLED_ROWS))
        return len({self._sample(1, row).tobytes() for row in rows}) == SAMPLED_ROWS

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
        mine, theirs = self._element(0, old, place), self._element(1, new, other)
        return alike(mine, self.a[old].dtype, theirs, self.b[new].dtype)

    def _element(self, side: int, name: str, place: int) -> Array:
        if (side, name, place) not in self._single:
            view = (self.a, self.b)[side][name]
            one = View(view.storage, view.dtype, view.offset + place, (1,), (1,))
            self._single[side, name, place] = self._read(side, one)
        return self._single[side, name, place]

    def _are_alike(self, mine: View, theirs: View) -> bool:
        return alike(self._sample(0, mine), mine.dtype, self._sample(1, theirs), theirs.dtype)

    def _agrees(self, found: Sequence[Copy], there: View) -> bool:
        """Whether samples of some copies are the same on both sides, the middle first."""
        step = max(1, len(found) // SAMPLED_COPIES)
        chosen = found[::-step] if step > 1 else found
        for number in range(SAMPLED_PLACES):
            for copy in chosen:
                if not self._are_alike(*_sampled(copy, there, number)):
                    return False
        return True

    def _sample(self, side: int, view: View) -> Array:
        if (side, view) not in self._samples:
            self._samples[side, view] = self._read(side, view)
        return self._samples[side, view]

    def _read(self, side: int, view: View) -> Array:
        source: Source = (self.sides.a, self.sides.b)[side].source
        return source.array(view).all()


def _agreeing(name: str, way: _Way, one: PartMap) -> _AgreeingMap:
    """A map for the tensors of a way."""
    mine = tuple(Stored(way.names[held.name], held.shape, held.pieces) for held in one.mine)
    return _AgreeingMap(way, one, mine, Stored(name, one.theirs.shape, one.theirs.pieces))


def _are_numbers(view: View, there: View) -> bool:
    """Whether elements are no packed codes, and those of one tensor can be those of the other."""
    return there.dtype.block_elements == 1 and may_be_cast(view, there)


def _shape(one: FusedTensorName, view: View) -> FusedShape:
    return FusedShape(one.layout.name, one.layout.tensors.index(one.row), one.suffix, view.shape)


def _shapes(group: ModuleParts, views: Views) -> PartShapes:
    return tuple((term, len(names), views[names[0]].shape) for term, names in group.tensors.items())


def _begin(view: View, k: int) -> View:
    """The first elements of a row of a matrix."""
    count = min(BEGIN, view.shape[1])
    return View(view.storage, view.dtype, view.offset + k * view.strides[0], (count,), view.strides[1:])


def _begins(source: Source, view: View, dtype: DType | None) -> Array:
    """How each row of a matrix begins, cast to a type if one is given."""
    count = min(BEGIN, view.shape[1])
    first = View(view.storage, view.dtype, view.offset, (view.shape[0], count), view.strides)
    return _starts(_cast_begin(source.array(first).all(), view, dtype))


def _starts(rows: Array) -> Array:
    """The first 8 bytes of rows, as one number each; rows that begin alike may differ."""
    import numpy as np

    rows = rows.reshape(-1, rows.shape[-1])
    held = np.zeros((len(rows), 8), "u1")
    raw = np.ascontiguousarray(rows).view("u1").reshape(len(rows), -1)[:, :8]
    held[:, : raw.shape[1]] = raw
    return held.view("u8").ravel()


def _cast_begin(elements: Array, view: View, dtype: DType | None) -> Array:
    return elements if dtype is None else cast_raw(elements, view.dtype, dtype)


def _sampled(copy: Copy, there: View, number: int) -> tuple[View, View]:
    """A few elements of a copy, at its end or at a place by chance, in the first checkpoint and in the second."""
    here, (_, mine) = copy.destination, copy.terms[0]
    chance = Random(number)
    at = [chance.randrange(size) if number else size - 1 for size in here.shape]
    count = min(SAMPLE, here.shape[-1] - at[-1]) if at else 1
    views = []
    for view, whole, begin in ((mine, mine, 0), (here, there, there.offset)):
        offset = begin + view.offset + sum(k * stride for k, stride in zip(at, view.strides, strict=True))
        views.append(View(whole.storage, whole.dtype, offset, (count,) if at else (), view.strides[-1:]))
    return views[0], views[1]
