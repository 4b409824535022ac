"""What the layouts of attention, gated MLPs and experts propose for two checkpoints without a config.json.

Names say which tensors could belong together; heads, groups and widths are tried as divisors of the shapes.  A map is
proposed if samples of it agree; every byte is compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from paramtool.commands._diff_tables import REFUSED, Proposal
from paramtool.engine.compare.sides import Sides
from paramtool.engine.read.source import Source
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View
from paramtool.parts.pieces import Stored, whole
from paramtool.passes.diff import part_maps, positions
from paramtool.passes.diff.names import NUMBER, Renames
from paramtool.passes.diff.part_maps import PartMap
from paramtool.passes.diff.part_names import WEIGHT, FusedTensorName, ModuleParts, fused_in, modules, parts_in
from paramtool.passes.parts import copies

Views = Mapping[str, View]
SAMPLED_COPIES = 12
"""How many copies of a map are sampled, each at some places."""
SAMPLED_PLACES = 4
SAMPLE = 16
"""Elements of a sample, at most."""
MAX_MODULES = 64
"""The most modules of the first checkpoint that a tensor is tried with."""
MAX_FAILED = 20_000
"""The most maps that are tried for tensors whose names differ in numbers, without one that fits."""
POINTS = 8
"""Elements that are looked at before a map is made."""


class _Way(NamedTuple):
    """A map that the tables allow: what the first checkpoint's tensors hold, and a tensor of the second."""

    mine: tuple[Stored, ...]
    theirs: Stored
    layout: str
    how: str
    at: str
    """The module in the second."""
    ones: int
    """How many of its sizes are 1."""


class PartSearch:
    """The tensors of the second checkpoint that are fused tensors, or parts, of those of the first."""

    def __init__(self, a: Views, b: Views, sides: Sides, renames: Renames) -> None:
        self.a, self.b, self.sides, self.renames = a, b, sides, renames
        self._samples: dict[tuple[int, View], bytes] = {}
        self._named: dict[str, str] = {}
        """{module of the second: the layout of a tensor in it}"""
        self._failed: dict[str, int] = {}
        """{name of the second without numbers: how many maps did not fit since one did}"""

    def found(self, left: Collection[str]) -> Iterator[list[Proposal]]:
        """The maps that samples agree with, of each tensor that is left; weights first: what is beside them follows."""
        mine, theirs = parts_in(self.a), parts_in(self.b)
        fused_a, fused_b = fused_in(self.a), fused_in(self.b)
        for is_weight in (True, False):
            for name, ways in self._ways((mine, fused_a), (theirs, fused_b), is_weight):
                if name in left:
                    yield list(self._fitting(name, ways()))
            self._samples.clear()

    def _ways(
        self,
        mine: tuple[Mapping[str, Sequence[ModuleParts]], Sequence[FusedTensorName]],
        theirs: tuple[Mapping[str, Sequence[ModuleParts]], Sequence[FusedTensorName]],
        is_weight: bool,
    ) -> Iterator[tuple[str, Callable[[], Iterator[_Way]]]]:
        """(tensor of the second, its maps)."""
        by_name: dict[str, list[FusedTensorName]] = {}
        for one in theirs[1]:
            if (one.suffix == WEIGHT) == is_weight:
                by_name.setdefault(one.name, []).append(one)
        for name, rows in sorted(by_name.items(), key=lambda item: len(item[1])):  # names of few layouts say the most
            yield name, lambda rows=rows: self._of_fused(rows, *mine)  # type: ignore[misc]
        for groups in theirs[0].values():
            for group in groups:
                if (group.suffix == WEIGHT) == is_weight:
                    for names in group.tensors.values():
                        for name in names:
                            yield name, lambda name=name, group=group: self._of_part(name, group, mine[1])  # type: ignore[misc]

    def _of_fused(
        self, rows: Iterable[FusedTensorName], parts: Mapping[str, Sequence[ModuleParts]],
        fused: Sequence[FusedTensorName],
    ) -> Iterator[_Way]:  # fmt: skip
        """The maps that make a fused tensor of the second: of parts, or of a fused tensor of another layout."""
        every = list(rows)
        shapes = {name: view.shape for name, view in self.a.items()}
        for one in every:
            there = self.b[one.name]
            groups = [group for group in parts[one.layout.group] if group.suffix == one.suffix]
            for group in self._near(one.at, groups):
                first = group.tensors.get(one.row.terms()[0], ("",))[0]
                if first and self._may_begin(first, there):
                    for found in part_maps.of_parts(one, group, shapes, there.shape):
                        yield _way(found.parts, found.fused, one, found, at=one.at)
        shapes = {f"a {name}": shape for name, shape in shapes.items()}
        shapes |= {f"b {one.name}": self.b[one.name].shape for one in every}
        for one in every:
            others = [
                other for other in modules(fused)
                if other.layout.group == one.layout.group and other.layout != one.layout and other.suffix == one.suffix
            ]  # fmt: skip
            for other in self._near(one.at, others):
                for held, found in part_maps.between(other, one, shapes):
                    yield _way(tuple(held), found.fused, one, found, at=one.at, before=f"{other.layout.name} -> ")

    def _of_part(self, name: str, group: ModuleParts, fused: Sequence[FusedTensorName]) -> Iterator[_Way]:
        """The maps that make a part of the second of a fused tensor of the first."""
        shapes = {name: view.shape for names in group.tensors.values() for name in names for view in (self.b[name],)}
        wanted = next(term for term, names in group.tensors.items() if name in names)
        others = [
            other for other in fused
            if other.layout.group == group.kind and other.suffix == group.suffix and wanted in other.row.terms()
        ]  # fmt: skip
        for other in self._near(group.at, others):
            for found in part_maps.of_parts(other, group, shapes, self.a[other.name].shape):
                before = f"a part of {other.name!r}, "
                yield _way((found.fused,), whole(name, shapes[name]), other, found, at=group.at, before=before)

    def _near(self, at: str, others: Sequence[FusedTensorName] | Sequence[ModuleParts]) -> list[object]:
        """Those of others that are tried for a module, the likely ones first: of one name, or of the same numbers."""
        numbers = NUMBER.findall(at)
        back = {one for place in {other.at for other in others} for one in [place] if at in self.renames.of(place)}
        order = sorted(others, key=lambda one: (one.at != at, one.at not in back, NUMBER.findall(one.at) != numbers))
        return list(order[:MAX_MODULES])

    def _may_begin(self, name: str, there: View) -> bool:
        """Whether the first element of a part is that of the tensor that holds it first."""
        view = self.a[name]
        if view.dtype != there.dtype or not view.numel or not there.numel:
            return view.dtype == there.dtype
        first = [View(one.storage, one.dtype, one.offset, (1,), (1,)) for one in (view, there)]
        return self._sample(0, first[0]) == self._sample(1, first[1])

    def _fitting(self, name: str, ways: Iterable[_Way]) -> Iterator[Proposal]:
        """The maps that samples agree with; of several layouts of one map, the one that the module has."""
        fits: dict[tuple[Copy, ...], list[_Way]] = {}
        key = NUMBER.sub("*", name)
        for way in ways:
            if self._failed.get(key, 0) > MAX_FAILED:
                break
            if not self._may_be(way):
                self._failed[key] = self._failed.get(key, 0) + 1
                continue
            target = self._target(way, in_runs=False)
            if target is not None and (target.copies in fits or self._agrees(target.copies, self.b[name])):
                fits.setdefault(target.copies, []).append(way)
        if fits:
            self._failed[key] = 0
        for alike in fits.values():
            way = min(alike, key=lambda way: (way.layout != self._named.get(way.at), way.ones))
            target = self._target(way)
            if target is not None:
                self._named.setdefault(way.at, way.layout)
                others = dict.fromkeys(one.layout for one in alike if one.layout != way.layout and not one.ones)
                more = f", the same map as {', '.join(others)}" if others else ""
                yield Proposal(target, way.layout, f"{way.how}{more}", tuple(self._repeats(way)))

    def _may_be(self, way: _Way) -> bool:
        """Whether some elements of a tensor are those that a map says."""
        there = self.b[way.theirs.name]
        mine = positions.held(way.mine)
        chance = Random(there.numel)  # noqa: S311
        for element in [there.numel - 1, *(chance.randrange(there.numel) for _ in range(POINTS))]:
            place = positions.origin(element, way.theirs, mine)
            if place is None or not there.is_contiguous:
                return False
            view = self.a[place.name]
            if view.dtype != there.dtype:
                return False
            if not view.is_contiguous:
                continue
            a, b = (View(v.storage, v.dtype, v.offset + k, (1,), (1,)) for v, k in ((view, place.element), (there, element)))
            if self._sample(0, a) != self._sample(1, b):
                return False
        return True

    def _target(self, way: _Way, *, in_runs: bool = True) -> Target | None:
        try:
            found = copies.sources("A", way.mine, self.a)
            made = copies.target(way.theirs, found, in_runs=in_runs)
        except REFUSED:
            return None
        there = self.b[way.theirs.name]
        fits = there.dtype == made.dtype and there.shape == made.shape and there.is_contiguous
        return made if fits and made.dtype.block_elements == 1 else None

    def _repeats(self, way: _Way) -> Iterator[Target]:
        """The same tensor, made of what the first checkpoint repeats."""
        wanted = set(way.theirs.parts)
        found = copies.sources("A", way.mine, self.a)
        for _, other in found.repeated:
            if other.piece.part in wanted:
                by_part = {**found.by_part, other.piece.part: [other]}
                yield copies.target(way.theirs, copies.Sources("A", by_part, ()))

    def _agrees(self, found: Sequence[Copy], there: View) -> bool:
        """Whether samples of some copies are the same on both sides, the middle first."""
        step = max(1, len(found) // SAMPLED_COPIES)
        chosen = found[:: -step] if step > 1 else found
        for number in range(SAMPLED_PLACES):
            for copy in chosen:
                mine, theirs = _sampled(copy, there, number)
                if self._sample(0, mine) != self._sample(1, theirs):
                    return False
        return True

    def _sample(self, side: int, view: View) -> bytes:
        if (side, view) not in self._samples:
            source: Source = (self.sides.a, self.sides.b)[side].source
            self._samples[side, view] = source.array(view).all().tobytes()
        return self._samples[side, view]


def _way(
    mine: tuple[Stored, ...], theirs: Stored, one: FusedTensorName, found: PartMap, *, at: str, before: str = ""
) -> _Way:
    return _Way(mine, theirs, one.layout.name, f"{before}{one.layout.name} {found.words()}", at, found.ones)


def _sampled(copy: Copy, there: View, number: int) -> tuple[View, View]:
    """A few elements of a copy, at its end or at a place by chance, in the first checkpoint and in the second."""
    here, (_, mine) = copy.destination, copy.terms[0]
    chance = Random(number)  # noqa: S311
    at = [chance.randrange(size) if number else size - 1 for size in here.shape]
    count = min(SAMPLE, here.shape[-1] - at[-1]) if at else 1
    views = []
    for view, storage, begin in ((mine, mine.storage, 0), (here, there.storage, there.offset)):
        offset = begin + view.offset + sum(k * stride for k, stride in zip(at, view.strides, strict=True))
        views.append(View(storage, mine.dtype, offset, (count,) if at else (), view.strides[-1:]))
    return views[0], views[1]
