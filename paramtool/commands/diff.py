"""How two checkpoints differ, and by which map they are the same weights where they only are in other places."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from paramtool.commands import _diff_tables
from paramtool.commands._diff_search import FoundMap, Search
from paramtool.commands._differences import alias_sets, object_differences
from paramtool.commands.opening import Allowed, opened
from paramtool.commands.progress import MEMORY_NBYTES, Advance, Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.engine.compare.rows import forms
from paramtool.engine.compare.sides import Sides, WindowPair, is_constant
from paramtool.engine.write.arithmetic import computed
from paramtool.errors import plural
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint, NoData
from paramtool.model.diff import (
    ADDED,
    CAST,
    CHANGED,
    LAYOUT,
    REMOVED,
    RENAMED,
    ROUNDED,
    SAME,
    UNDECIDED,
    TensorDiff,
    counts,
)
from paramtool.model.display import Displayed, Row, some_rows
from paramtool.model.inflating import limiting
from paramtool.model.plan import Copy, Target
from paramtool.model.tiling import unread
from paramtool.model.view import View
from paramtool.passes.diff.names import Renames

MAX_CALCULATED_NBYTES = 256 << 20
"""The largest tensor that is calculated to be compared."""
SURE_NBYTES = 64
"""Equal tensors of fewer bytes are equal by chance: a step counter, a scale."""


@dataclass(frozen=True, slots=True, repr=False)
class Diffed(Displayed):
    """How two checkpoints differ."""

    a: str
    b: str
    tensors: tuple[TensorDiff, ...]
    ties: tuple[str, ...] = ()
    """Names that share memory in one of them, and not in the other."""
    objects: tuple[str, ...] = ()
    """Differences in what is not a tensor."""
    metadata: tuple[str, ...] = ()
    """Differences in the files' own strings."""
    notes: tuple[str, ...] = ()
    nbytes_read: int = 0
    seconds: float = 0.0

    def is_same(self, *, strict: bool = False, tolerance: float | None = None) -> bool:
        """Whether they are the same weights, as `--exit-code` asks."""
        kinds = {SAME} if strict else {SAME, RENAMED, LAYOUT, CAST}
        for one in self.tensors:
            near = one.change is not None and one.change.largest is not None and tolerance is not None
            if one.kind == ROUNDED and near and one.change.largest <= tolerance:  # type: ignore[union-attr,operator]
                continue
            if one.kind not in kinds:
                return False
        return not (self.ties or self.objects or (strict and self.metadata))

    def _picture(self) -> str:
        """The tensors by verdict."""
        from paramtool.commands.report.differences import KIND_WORDS, TINTS
        from paramtool.drawing.notebook import small_bar
        from paramtool.drawing.strips import stacked

        many = counts(self.tensors)
        parts = stacked(
            (KIND_WORDS[kind], count, TINTS[kind], "", plural(count, "tensor")) for kind, count in many.items()
        )
        return small_bar(parts, "tensors by verdict") if parts else ""

    def _rows(self, most: int) -> Iterator[Row]:
        """The verdict, and each tensor that differs."""
        yield "a", self.a
        yield "b", self.b
        yield "verdict", ", ".join(f"{count} {kind}" for kind, count in counts(self.tensors).items()) or "no tensors"
        others = (one for one in self.tensors if one.kind != SAME)
        yield from some_rows(most, "differs", (f"{one.kind}: {', '.join(one.b or one.a)}" for one in others))
        yield from some_rows(most, "ties", self.ties)
        yield from some_rows(most, "objects", self.objects)


@limiting
def diff(
    a: Path,
    b: Path,
    *,
    only: str | None = None,
    memory: int = MEMORY_NBYTES,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> Diffed:
    """How checkpoint `b` differs from `a`: tensors by name and by content, ties, objects and metadata.

    A tensor that differs is looked for under other names, in other layouts and dialects, and as a cast; every verdict
    is proved by comparing all bytes.  `only` compares one section of both; `memory` is in bytes.  Errors, `allow_class`
    and `allow_unknown` as of `read`.
    """
    began = time.monotonic()
    allowed = Allowed(allow_class, allow_unknown)
    first, second = (opened(path, None, progress, allowed).checkpoint for path in (a, b))
    if only is not None:
        first, second = section_of(first, only), section_of(second, only)
    with Sides(first, second, memory) as sides:
        work = _Comparing(first, second, sides, memory)
        tensors = work.all(progress)
        nbytes = sides.nbytes_read
    objects = object_differences(second, first)
    metadata = [text for text in objects.differences if text.startswith("metadata ")]
    renamed = {
        old: new for one in tensors if one.kind in (SAME, RENAMED) for old, new in zip(one.a, one.b, strict=False)
    }
    return Diffed(
        os.fspath(a),
        os.fspath(b),
        tensors,
        tuple(_ties(first, second, renamed)),
        tuple(_of_sides(text) for text in objects.differences if text not in metadata),
        tuple(map(_of_sides, metadata)),
        tuple(map(_of_sides, objects.notes)),
        nbytes,
        time.monotonic() - began,
    )


def _of_sides(text: str) -> str:
    """A difference as `verify` words it, of A and B."""
    for word, side in (("the source's", "A's"), ("the source", "A"), ("the output", "B")):
        text = text.replace(word, side)
    return text


class _Comparing:
    """The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next."""

    def __init__(self, a: Checkpoint, b: Checkpoint, sides: Sides, memory: int) -> None:
        self.memory = memory
        self.a, self.b, self.sides = dict(a.windows()), dict(b.windows()), sides
        self.checkpoints = (a, b)
        self.left_a, self.left_b = dict(self.a), dict(self.b)
        """Tensors without a verdict."""
        self.found: dict[str, TensorDiff] = {}
        """{name in the second: its verdict}"""
        self.gone: list[TensorDiff] = []
        self.twins: dict[tuple[str, str], str] = {}
        """{(side, name): which tensor of the other side holds the same bytes}, of those of several names"""
        self.used: dict[str, list[View]] = {}
        """{name in the first: the windows on it that tensors of the second are made of}"""

    def all(self, progress: Progress) -> tuple[TensorDiff, ...]:
        """Every verdict, in the order of the second checkpoint; then what only the first has."""
        with progress("diff", sum(view.nbytes for view in self.b.values())) as advance:
            self._by_name(advance)
        if self.left_b:
            self._by_content()
        if self.left_b:
            self._by_tables()
        if self.left_b:
            self._by_casts()
        if self.left_b:
            self._by_rows(progress)
        self._rest()
        self._without_data()
        order = [*self.b, *(name for name in self.found if name not in self.b)]
        return (*(self.found[name] for name in order if name in self.found), *self.gone)

    def _settle(self, kind: str, olds: Iterable[str], new: str, **more: object) -> None:
        """A verdict on a tensor of the second."""
        names = tuple(olds)
        view, old = self.b[new], self.a[names[0]]
        shapes = (old.shape if len(names) == 1 else None, view.shape)
        one = TensorDiff(kind, names, (new,), (old.dtype.name, view.dtype.name), shapes, nbytes=view.nbytes)
        self.found[new] = replace(one, **more)  # type: ignore[arg-type]
        self.left_b.pop(new, None)
        for name in names:
            self.left_a.pop(name, None)

    def _by_name(self, advance: Advance) -> None:
        """Tensors of one name, type and shape that hold the same bytes."""
        pairs = {
            name: WindowPair(old, self.b[name])
            for name, old in self.a.items()
            if name in self.b and (old.dtype, old.shape) == (self.b[name].dtype, self.b[name].shape)
        }
        same = self.sides.same(pairs.values(), advance)
        for name, pair in pairs.items():
            if same[pair]:
                self._settle(SAME, [name], name)

    def _by_content(self) -> None:
        """Tensors that hold the same bytes under another name."""
        proven = {name: name for name, one in self.found.items() if one.kind == SAME}
        unsure: list[tuple[list[str], list[str]]] = []
        for old, new in self._classes():
            if len(old) == len(new) == 1 and not self._may_be_chance(old[0]):
                self._settle(RENAMED, old, new[0])
                proven[old[0]] = new[0]
            else:
                unsure.append((old, new))
        renames = Renames(proven)
        for old, new in unsure:
            self._match(old, new, renames)

    def _match(self, old: list[str], new: list[str], renames: Renames) -> None:
        """Equal tensors of several names, by the renames that others show; those of real content by their order."""
        free = dict.fromkeys(new)
        left: list[str] = []
        is_sure = not self._may_be_chance(old[0])
        if is_sure:
            self.twins |= {("b", name): f"the same bytes as {old[0]!r} of A" for name in new}
            self.twins |= {("a", name): f"the same bytes as {new[0]!r} of B" for name in old}
        for name in old:
            wanted = next((one for one in renames.of(name) if one in free), None)
            if wanted is None:
                left.append(name)
                continue
            del free[wanted]
            self._settle(RENAMED, [name], wanted)
        if is_sure:
            for name, other in zip(left, list(free), strict=False):
                self._settle(RENAMED, [name], other, is_unique=len(left) == len(free) == 1)

    def _may_be_chance(self, name: str) -> bool:
        """Whether a tensor of the first can equal others by chance: it is tiny, or repeats one element."""
        view = self.a[name]
        return view.nbytes < SURE_NBYTES or is_constant(self.sides.a.source, view)

    def _classes(self) -> Iterator[tuple[list[str], list[str]]]:
        """Names without a verdict whose tensors hold the same bytes, of both checkpoints."""
        groups: dict[object, tuple[list[str], list[str]]] = {}
        for side, names in enumerate((self.left_a, self.left_b)):
            for name, view in names.items():
                groups.setdefault((view.dtype, view.shape), ([], []))[side].append(name)
        both = [(old, new) for old, new in groups.values() if old and new]
        views = [([self.a[name] for name in old], [self.b[name] for name in new]) for old, new in both]
        for (old, new), classes in zip(both, self.sides.equal(views), strict=True):
            for mine, theirs in classes:
                yield [old[k] for k in mine], [new[k] for k in theirs]

    def _by_tables(self) -> None:
        """Tensors that are made of those of the first as a layout or a dialect makes them."""
        for proposed in _diff_tables.proposals(*self.checkpoints):
            for one in proposed:
                if one.target.name in self.left_b:
                    self._try(one)

    def _try(self, one: _diff_tables.Proposal) -> None:
        """Settle a tensor if every byte is what a table says."""
        name = one.target.name
        pairs = _pairs(one.target, self.b[name])
        if pairs is None and self._is_calculated(one):
            self._explain(one)
            return
        if pairs is None or not all(self.sides.same(pairs, lambda nbytes: None).values()):
            return
        olds = dict.fromkeys(name for copy in one.target.copies for name in copy.names)
        names = [old for old in olds if old in self.a]
        if not names:
            return
        if len(names) == 1 and pairs == [WindowPair(self.a[names[0]], self.b[name])]:
            self._settle(RENAMED, names, name)
            return
        for copy in one.target.copies:
            for old in copy.names:
                self.used.setdefault(old, []).append(copy.terms[0][1])
        self._settle(LAYOUT, names, name, how=one.how, layout=one.layout)

    def _is_calculated(self, one: _diff_tables.Proposal) -> bool:
        """Whether a tensor of the second is what arithmetic makes of the first: a sum of biases, a forget bias."""
        target, there = one.target, self.b[one.target.name]
        if all(copy.is_plain for copy in target.copies) or target.nbytes > MAX_CALCULATED_NBYTES:
            return False
        if (there.shape, there.dtype) != (target.shape, target.dtype):
            return False
        made = computed(target, self.sides.a.source)
        return bool(made.tobytes() == self.sides.b.source.array(there).all().tobytes())

    def _explain(self, one: _diff_tables.Proposal) -> None:
        """A tensor that holds other numbers for a known reason: changed, since they do not lead back."""
        names = [name for name in dict.fromkeys(n for copy in one.target.copies for n in copy.names) if name in self.a]
        is_moved = all(len(copy.terms) <= 1 and not copy.shift for copy in one.target.copies)
        summed = any(len(copy.terms) > 1 for copy in one.target.copies)
        why = "a sign" if is_moved else "sums of biases" if summed else "a number that is added (a forget bias)"
        for name in names:
            self.used.setdefault(name, []).append(self.a[name])
        if is_moved and names:  # bits move, and one is flipped: they lead back
            self._settle(LAYOUT, names, one.target.name, how=f"{one.how}, with {why}", layout=one.layout)
        elif names:
            self._settle(CHANGED, names, one.target.name, how=f"explained by {why}, {one.how}", layout=one.layout)

    def _by_rows(self, progress: Progress) -> None:
        """Tensors whose rows are rows, columns or negated rows of those of the first, by a search without tables."""
        search = Search(dict(self.left_a), dict(self.left_b), self.sides, self.memory)
        with progress("rows", search.nbytes) as advance:
            for one in search.found(advance):
                if one.name in self.left_b:
                    self._by_map(one, search)
        if search.missed:
            self._undecided()

    def _by_map(self, one: FoundMap, search: Search) -> None:
        """A tensor whose rows were found, and what stands beside it by the same map."""
        beside = list(search.beside(one, self.left_b))
        for old, windows in one.used.items():
            self.used.setdefault(old, []).extend(windows)
        self._settle(ROUNDED if one.is_cast else LAYOUT, one.olds, one.name, how=one.how, is_unique=one.is_unique)
        for name, olds in beside:
            self._settle(LAYOUT, olds, name, how=f"{one.how}, as {one.name!r}")

    def _undecided(self) -> None:
        """Tensors that the search had no room for."""
        for name, view in list(self.left_b.items()):
            if next(forms(view), None) is not None:
                old = [name] if name in self.left_a else []
                how = "--memory was too small for the rows of A"
                one = TensorDiff(UNDECIDED, tuple(old), (name,), how=how, nbytes=view.nbytes)
                self.found[name] = one
                del self.left_b[name]
                self.left_a.pop(name, None)

    def _by_casts(self) -> None:
        """Tensors of another type, under the same name or under that which others show."""
        proven = {one.a[0]: name for name, one in self.found.items() if len(one.a) == 1}
        renames = Renames(proven)
        pairs: dict[tuple[str, str], WindowPair] = {}
        for name, old in self.left_a.items():
            every = (name, *renames.of(name))
            new = next((one for one in every if one in self.left_b and self.left_b[one].shape == old.shape), None)
            if new is not None and self.left_b[new].dtype != old.dtype:
                pairs[name, new] = WindowPair(old, self.left_b[new])
        verdicts = self.sides.casts(pairs.values())
        rounded = [key for key, pair in pairs.items() if verdicts[pair] == ROUNDED]
        changes = dict(zip(rounded, self.sides.changes([[pairs[key]] for key in rounded]), strict=True))
        for key, pair in pairs.items():
            if verdicts[pair] in (CAST, ROUNDED):
                self._settle(verdicts[pair], key[:1], key[1], change=changes.get(key))

    def _rest(self) -> None:
        """What has the same name and other numbers, and what only one of the two has."""
        names = [name for name in self.left_b if name in self.left_a]
        alike = [name for name in names if self.a[name].shape == self.b[name].shape]
        changes = self.sides.changes([[WindowPair(self.a[name], self.b[name])] for name in alike])
        found = dict(zip(alike, changes, strict=True))
        for name in names:
            self._settle(CHANGED, [name], name, change=found.get(name))
        for name, view in list(self.left_b.items()):
            self.found[name] = TensorDiff(
                ADDED, (), (name,), ("", view.dtype.name), (None, view.shape), self.twins.get(("b", name), ""),
                nbytes=view.nbytes,
            )  # fmt: skip
        for name, windows in self.used.items():
            if name in self.a and (lost := unread(self.a[name], windows)):
                how = f"{lost} of {plural(self.a[name].numel, 'element')} in no tensor of B"
                self.gone.append(TensorDiff(REMOVED, (name,), (), how=how))
        for name, view in self.left_a.items():
            self.gone.append(
                TensorDiff(
                    REMOVED, (name,), (), (view.dtype.name, ""), (view.shape, None), self.twins.get(("a", name), ""),
                    nbytes=view.nbytes,
                )
            )  # fmt: skip

    def _without_data(self) -> None:
        """Names that have no tensor in one of the two: their kinds are compared."""
        a, b = (one.entries for one in self.checkpoints)
        for name in b:
            if isinstance(b[name].value, NoData) and name not in self.found:
                kind = ADDED if name not in a else SAME if a[name].value == b[name].value else CHANGED
                self.found[name] = TensorDiff(kind, (name,) if name in a else (), (name,))
        for name in a:
            if isinstance(a[name].value, NoData) and name not in b:
                self.gone.append(TensorDiff(REMOVED, (name,)))


def _pairs(target: Target, there: View) -> list[WindowPair] | None:
    """The windows of the first that a target is made of, and where they are in a tensor of the second.

    None where it is not made of their bytes alone, or the tensor has another shape or is not stored row by row.
    """
    if there.shape != target.shape or there.dtype != target.dtype or not there.is_contiguous:
        return None
    return [_pair(copy, there) for copy in target.copies] if all(copy.is_plain for copy in target.copies) else None


def _pair(copy: Copy, there: View) -> WindowPair:
    here = copy.destination
    return WindowPair(
        copy.terms[0][1], View(there.storage, there.dtype, there.offset + here.offset, here.shape, here.strides)
    )


def _ties(a: Checkpoint, b: Checkpoint, renamed: Mapping[str, str]) -> Iterator[str]:
    """Names that share memory in one checkpoint and not in the other, of those that both have."""
    mine = {renamed[name]: renamed.get(head, head) for name, head in alias_sets(a).items() if name in renamed}
    theirs = {name: head for name, head in alias_sets(b).items() if name in mine}
    for one, other, where in ((mine, theirs, "A"), (theirs, mine, "B")):
        first: dict[str, str] = {}
        for name in one:
            head = first.setdefault(one[name], name)
            if other.get(name) != other.get(head):
                yield f"{name!r}: shares memory with {head!r} in {where} only"
