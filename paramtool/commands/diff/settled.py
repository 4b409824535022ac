"""What a comparison has found so far: tensors with a verdict, those without, and how a map is proved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from paramtool.commands.diff.compounds import labelled, pending_signs
from paramtool.commands.diff.found import FoundMap, companions, proved
from paramtool.commands.diff.tables import networks_of
from paramtool.engine.compare.axes import AxesWay
from paramtool.engine.compare.casts import is_rounding, narrow
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.equal import is_constant
from paramtool.engine.compare.sides import Sides, is_number
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.diff import CHANGED, LAYOUT, LED_BACK, ROUNDED, Distance, TensorDiff
from paramtool.model.plan import Copy, Target
from paramtool.model.tiling import unread
from paramtool.model.view import View, Views, cut_at_axes, reshaped, seen_through
from paramtool.passes.diff.names import Renames
from paramtool.passes.rnn.find import Found

SURE_NBYTES = 64
"""Equal tensors of fewer bytes are equal by chance: a step counter, a scale."""

CUT = "cut elsewhere: "
"""In front of a map of a tensor that has more or fewer elements than the same name has in the first."""


class MadeOf(NamedTuple):
    """A tensor of the second checkpoint as windows of the first, and numbers that only the second stores."""

    pairs: tuple[WindowPair, ...]
    constants: tuple[tuple[View, float], ...] = ()


class Settled:
    """Two open checkpoints, the tensors that have a verdict, and those that have none yet."""

    def __init__(self, a: Checkpoint, b: Checkpoint, sides: Sides, memory: int) -> None:
        self.memory = memory
        self.signed = pending_signs(a, b)
        self.a, self.b, self.sides = labelled(a, self.signed), labelled(b, self.signed), sides
        self.checkpoints = self.as_made = (a, b)
        """The two; and each without what the record of the other says was made, or of which that was made."""
        self.left_a, self.left_b = dict(self.a), dict(self.b)
        """Tensors without a verdict."""
        self.found: dict[str, TensorDiff] = {}
        """{name in the second: its verdict}"""
        self.gone: list[TensorDiff] = []
        self.twins: dict[tuple[str, str], str] = {}
        """{(side, name): which tensor of the other side holds the same bytes}, of those of several names"""
        self.taken: dict[str, View] = {}
        """Tensors of the second with all of another tensor of the first, under a name that the first has, too."""
        self.untied: list[str] = []
        """Ties that a config.json declares, and that the other side stores apart, in words."""
        self.unsure: list[tuple[list[str], list[str]]] = []
        """Names of both that hold the same bytes, where these alone do not say which is which."""
        self.maps: dict[str, FoundMap] = {}
        """{name in the second: the rows of the first that it is made of}, of maps that are the only ones"""
        self.ways: dict[str, AxesWay] = {}
        """{name in the second: how the axes of the one tensor that it is made of moved}"""
        self.used: dict[str, list[View]] = {}
        """{name in the first: the windows on it that tensors of the second are made of}"""
        self.sources: dict[str, Sequence[View]] = {}
        """{name in the second: the windows on the first that it is made of}"""
        self.pairs: dict[str, Sequence[WindowPair]] = {}
        """{name in the second: the windows that a map makes it of}, of maps that negate nothing"""
        self.otherwise: dict[str, str] = {}
        """{tensor of a recurrent network of the second: a layout's map that does not give its bytes, in words}"""
        self.copied: set[str] = set()
        """Tensors of the first with lines that are found in place of equal ones, which were taken more than once."""

    @cached_property
    def networks(self) -> tuple[Sequence[Found], Sequence[Found]]:
        """The recurrent networks of both."""
        a, b = map(networks_of, self.checkpoints)
        return a, b

    def settle(self, kind: str, olds: Iterable[str], new: str, **more: object) -> None:
        """A verdict on a tensor of the second."""
        names = tuple(olds)
        view, old = self.b[new], self.a[names[0]]
        shapes = (old.shape if len(names) == 1 else None, view.shape)
        one = TensorDiff(kind, names, (new,), (old.dtype.name, view.dtype.name), shapes, nbytes=view.nbytes)
        if new not in self.sources and sum(self.a[name].numel for name in names) == view.numel:
            self.sources[new] = [self.a[name] for name in names]
        self.found[new] = self._unless_cut_elsewhere(replace(one, **more))  # type: ignore[arg-type]
        self.left_b.pop(new, None)
        for name in names:
            self.left_a.pop(name, None)

    def _unless_cut_elsewhere(self, one: TensorDiff) -> TensorDiff:
        """CHANGED where the first has more or fewer elements under the same name, unless a table makes that tensor.

        A loader that goes by names gets numbers of another tensor, too, or not all of them.
        """
        (new,) = one.b
        if one.layout or one.kind not in LED_BACK or new not in self.a or self.a[new].numel == self.b[new].numel:
            return one
        return self._cut(one)

    def cut_with_others(self) -> None:
        """CHANGED also where a table makes such a tensor, and others of the same tensors are cut elsewhere."""
        cut = {old for one in self.found.values() if one.kind == CHANGED and one.how.startswith(CUT) for old in one.a}
        tables = [one for new, one in self.found.items() if one.layout and one.kind in LED_BACK and new in one.a]
        for one in tables:
            (new,) = one.b
            if self.a[new].numel != self.b[new].numel and not cut.isdisjoint(one.a):
                self.found[new] = self._cut(one)

    def _cut(self, one: TensorDiff) -> TensorDiff:
        (new,) = one.b
        shapes = (self.a[new].shape, self.b[new].shape)
        return replace(one, kind=CHANGED, how=f"{CUT}{one.how}", layout="", shapes=shapes, change=None)

    def settle_only(self, side: int, kind: str, name: str, how: str, layout: str = "") -> None:
        """A verdict on a tensor that only one of the two has, or whose absence in the other changes nothing."""
        view = (self.a, self.b)[side][name]
        if side:
            of = ("", view.dtype.name), (None, view.shape)
            self.found[name] = TensorDiff(kind, (), (name,), *of, how, layout, nbytes=view.nbytes)
        else:
            self.gone.append(
                TensorDiff(
                    kind, (name,), (), (view.dtype.name, ""), (view.shape, None), how, layout, nbytes=view.nbytes
                )
            )
        (self.left_a, self.left_b)[side].pop(name, None)

    def use(self, name: str, windows: Iterable[View]) -> None:
        """Note windows on a tensor of the first that a tensor of the second is made of."""
        self.used.setdefault(name, []).extend(windows)

    def proved_by(self, name: str, pairs: Sequence[WindowPair]) -> None:
        """Note the windows that a tensor of the second was proved by."""
        if all(pair.sign > 0 for pair in pairs):
            self.pairs[name] = pairs

    def settle_lines(self, one: FoundMap, **more: object) -> None:
        """A verdict on a tensor that is made of lines, which were proved."""
        for old, window in one.used():
            self.use(old, [window])
        self.sources[one.name] = list(one.sources())
        lost = self.lost(one.kind, one.pairs()) if one.kind == ROUNDED else None
        self.settle(one.kind, one.olds, one.name, change=lost, **more)

    def follow(self, one: FoundMap) -> None:
        """The bias, the scales and the low-rank factors beside a matrix, by the same lines."""
        said = self.found[one.name]
        for other in list(companions(one, self.a, self.left_b)):
            if found := proved(self.sides, other, self.memory):
                self.settle_lines(found, how=f"{said.how}, as {one.name!r}", layout=said.layout)
                self.proved_by(found.name, found.pairs())

    def unread(self, name: str) -> int:
        """How many elements of a tensor of the first no tensor of the second is made of.

        Parts of several tensors can be one window, where they follow each other in one storage.
        """
        view = self.a[name]
        windows = (one for own in self.used.values() for one in own if one.storage == view.storage)
        return unread(view, windows)

    def renames(self) -> Renames:
        """What the pairs of names that have a verdict say of other names."""
        return Renames((one.a[0], name) for name, one in self.found.items() if len(one.a) == 1)

    def is_exchanged(self, old: str, new: str) -> bool:
        """Whether the second has a tensor under a name that the first has for another one: no rename, other weights."""
        return new in self.a and self.a[new] != self.a[old]

    def may_be_chance(self, name: str) -> bool:
        """Whether a tensor of the first can equal others by chance: it is tiny, or repeats one element."""
        view = self.a[name]
        return view.nbytes < SURE_NBYTES or is_constant(self.sides.a.source, view)

    def proved(self, pairs: Sequence[WindowPair]) -> str:
        """LAYOUT where all bytes are the same, CAST or ROUNDED for casts, "" for other numbers; all are compared."""
        if all(pair.a.dtype == pair.b.dtype and pair.sign > 0 for pair in pairs):
            same = self.sides.same(pairs)
            return LAYOUT if all(same.values()) else ""
        if not all(is_rounding(view.dtype) for pair in pairs for view in (pair.a, pair.b)):
            return ""
        (verdict,) = self.sides.casts([pairs])
        if verdict == CHANGED:
            return ""
        return verdict if any(pair.a.dtype != pair.b.dtype for pair in pairs) else LAYOUT

    def proved_made(self, made: MadeOf, pairs: Sequence[WindowPair], output: int = 1) -> str:
        """The same of what a table makes of windows and of numbers, these of the side that is the output."""
        source, kind = self.sides.sources[output], self.proved(pairs) if pairs else LAYOUT
        return kind if kind and all(is_number(source, view, number) for view, number in made.constants) else ""

    def lost(self, kind: str, pairs: Sequence[WindowPair]) -> Distance | None:
        """How far a map that rounds is from what it is made of; the rows are those of no tensor."""
        if kind != ROUNDED or not pairs or any(pair.sign < 0 for pair in pairs):
            return None
        (change,) = self.sides.changes([pairs])
        return change._replace(rows=(), row_count=0)


def made_of(target: Target, there: View) -> MadeOf | None:
    """What a target is made of, and where that is in a tensor of the second.

    None where numbers are calculated, or the tensor has another shape, cannot be a cast, or is stored in an order that
    the windows cannot follow.
    """
    if there.shape != target.shape or not may_be_cast(target.view, there):
        return None
    has_terms = any(copy.terms for copy in target.copies)
    if not all(copy.is_exact or not (copy.terms or (copy.shift and has_terms)) for copy in target.copies):
        return None
    pairs, constants = [], []
    for copy in target.copies:
        window = _window(copy, there)
        if window is None:
            return None
        if copy.terms:
            ((sign, view),) = copy.terms
            cut = reshaped(view, window.shape)
            if cut is None:
                return None
            pairs.append(WindowPair(cut, window, sign))
        else:
            constants.append((window, copy.shift))
    return MadeOf(tuple(pairs), tuple(constants))


def may_be_cast(a: View, b: View) -> bool:
    """Whether two windows have one type, or two of which either can be rounded to the other."""
    return a.dtype == b.dtype or narrow(a.dtype, b.dtype) is not None


def _window(copy: Copy, there: View) -> View | None:
    """The destination of a copy as a window on a tensor of the second; None where no strides can express it."""
    here = copy.destination
    window = there.with_axes(here.shape, here.strides, here.offset)
    return seen_through(window if there.is_contiguous else cut_at_axes(window, there.shape), there)


def distinct(views: Views) -> Iterator[tuple[str, View]]:
    """Tensors with their first names: other names of one tensor are no other places."""
    first: dict[View, str] = {}
    for name, view in views.items():
        first.setdefault(view, name)
    return ((name, view) for view, name in first.items())
