"""The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from paramtool.commands import _diff_explained, _diff_tables
from paramtool.commands._diff_beside import NamedRun, beside, runs_of
from paramtool.commands._diff_compounds import compounds, labelled, pending_signs
from paramtool.commands._diff_parts import PartSearch
from paramtool.commands._diff_search import FoundMap, Search
from paramtool.commands.progress import Advance, Progress
from paramtool.engine.compare.rows import forms
from paramtool.engine.compare.sides import Sides, WindowPair, is_constant, is_number
from paramtool.errors import plural
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
)
from paramtool.model.plan import Copy, Target
from paramtool.model.tiling import unread
from paramtool.model.view import View
from paramtool.passes.diff.moves import moves_of
from paramtool.passes.diff.names import Renames, packed

NUMBERS = ("float", "bfloat", "complex")
"""What the names of types begin with that no codes are packed in."""
SURE_NBYTES = 64
"""Equal tensors of fewer bytes are equal by chance: a step counter, a scale."""


class Comparing:
    """The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next."""

    def __init__(self, a: Checkpoint, b: Checkpoint, sides: Sides, memory: int) -> None:
        self.memory = memory
        self.signed = pending_signs(a, b)
        self.a, self.b, self.sides = labelled(a, self.signed), labelled(b, self.signed), sides
        self.checkpoints = (a, b)
        self.left_a, self.left_b = dict(self.a), dict(self.b)
        """Tensors without a verdict."""
        self.found: dict[str, TensorDiff] = {}
        """{name in the second: its verdict}"""
        self.gone: list[TensorDiff] = []
        self.twins: dict[tuple[str, str], str] = {}
        """{(side, name): which tensor of the other side holds the same bytes}, of those of several names"""
        self._firsts: dict[str, Mapping[View, str]] = {}
        self.maps: dict[str, Sequence[NamedRun]] = {}
        """{name in the second: the rows of the first that it is made of}, of maps that are the only ones"""
        self.used: dict[str, list[View]] = {}
        """{name in the first: the windows on it that tensors of the second are made of}"""

    def all(self, progress: Progress) -> tuple[TensorDiff, ...]:
        """Every verdict, in the order of the second checkpoint; then what only the first has."""
        with progress("diff", sum(view.nbytes for view in self.b.values())) as advance:
            self._by_name(advance)
        if self.left_b:
            self._by_content()
        if self.left_b or self.left_a:
            self._by_tables()
        if self.left_b:
            self._by_parts()
        if self.left_b:
            self._by_shape()
        if self.left_b:
            self._by_casts()
        if self.left_b:
            self._by_rows(progress)
        if self.left_b:
            self._by_reasons()
        self._rest()
        self._strays()
        self._without_data()
        self._compounds()
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

    def _by_shape(self) -> None:
        """Tensors of one name, type and number of elements that hold the same bytes in another shape."""
        pairs = {}
        for name, view in self.left_b.items():
            old = self.left_a.get(name)
            if old is None or (old.dtype, old.numel) != (view.dtype, view.numel) or not view.numel:
                continue
            if old.shape != view.shape and old.is_contiguous and view.is_contiguous:
                flat = (View(one.storage, one.dtype, one.offset, (one.numel,), (1,)) for one in (old, view))
                pairs[name] = WindowPair(*flat)
        same = self.sides.same(pairs.values(), lambda nbytes: None)
        for name, pair in pairs.items():
            if same[pair]:
                self._settle(LAYOUT, [name], name, how="reshaped")

    def _by_content(self) -> None:
        """Tensors that hold the same bytes under another name."""
        proven = {name: name for name, one in self.found.items() if one.kind == SAME}
        unsure: list[tuple[list[str], list[str]]] = []
        for old, new in self._classes():
            if len(old) == len(new) == 1 and not self._may_be_chance(old[0]):
                if self._is_exchanged(old[0], new[0]):
                    self.twins["b", new[0]] = f"the same bytes as {old[0]!r} of A"
                    continue
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
        more = "" if is_sure else ", which prove nothing: they are few, or one element repeated"
        self.twins |= {("b", name): f"the same bytes as {old[0]!r} of A{more}" for name in new}
        self.twins |= {("a", name): f"the same bytes as {new[0]!r} of B{more}" for name in old}
        for name in old:
            wanted = next((one for one in renames.of(name) if one in free and not self._is_exchanged(name, one)), None)
            if wanted is None:
                left.append(name)
                continue
            del free[wanted]
            self._settle(RENAMED, [name], wanted)
        if is_sure:
            places = [one for one in free if one not in self.a]
            for name, other in zip(left, places, strict=False):
                self._settle(RENAMED, [name], other, is_unique=len(left) == len(free) == 1)

    def _is_exchanged(self, old: str, new: str) -> bool:
        """Whether the second has a tensor under a name that the first has for another one: no rename, other weights."""
        return new in self.a and self.a[new] != self.a[old]

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
            self._constants(proposed)

    def _constants(self, proposed: Sequence[_diff_tables.Proposal]) -> None:
        """Numbers that only one of two layouts has, of a network whose other tensors are all found: zero biases."""
        made = [one for one in proposed if not any(copy.terms for copy in one.target.copies)]
        rest = [self.found.get(one.target.name) for one in proposed if one not in made]
        if not rest or any(one is None or one.kind not in (SAME, RENAMED, LAYOUT) for one in rest):
            return
        sources = self.sides.a.source, self.sides.b.source
        for one in made:
            name = one.target.name
            if name in self.left_b and _diff_explained.is_calculated(one.target, sources[0], self.b[name], sources[1]):
                how = f"{one.how}, constants that A's layout leaves out"
                view = self.left_b.pop(name)
                dtypes, shapes = ("", view.dtype.name), (None, view.shape)
                self.found[name] = TensorDiff(LAYOUT, (), (name,), dtypes, shapes, how, one.layout, nbytes=view.nbytes)
        for window, number in dict.fromkeys(constant for one in proposed for constant in one.constants):
            if is_number(sources[0], window, number):
                self._leave_out(window, f"{proposed[0].how}, constants that B's layout leaves out")

    def _leave_out(self, window: View, how: str) -> None:
        """What only the first has, and whose absence changes nothing."""
        for name, view in self.a.items():
            if view.storage != window.storage or not view.byte_start <= window.byte_start < view.byte_stop:
                continue
            self.used.setdefault(name, []).append(window)
            if name in self.left_a and not unread(view, self.used[name]):
                dtypes, shapes = (view.dtype.name, ""), (view.shape, None)
                self.gone.append(TensorDiff(LAYOUT, (name,), (), dtypes, shapes, how, nbytes=view.nbytes))
                del self.left_a[name]

    def _by_parts(self) -> None:
        """Tensors that are parts, or fused of them, in layouts for which no config.json gives the sizes."""
        proven = {one.a[0]: name for name, one in self.found.items() if len(one.a) == 1}
        for proposed in PartSearch(self.a, self.b, self.sides, Renames(proven)).found(self.left_b):
            holding = [one for one in proposed if self._is_made_so(one.target)] if len(proposed) > 1 else proposed
            for one in holding[:1]:
                self._try(one, is_unique=len(holding) == 1)

    def _is_made_so(self, target: Target) -> bool:
        """Whether every byte of a tensor of the second is that of the first which a table says."""
        pairs = _pairs(target, self.b[target.name])
        return pairs is not None and all(self.sides.same(pairs, lambda nbytes: None).values())

    def _try(self, one: _diff_tables.Proposal, *, is_unique: bool = True) -> None:
        """Settle a tensor if every byte is what a table says."""
        name = one.target.name
        pairs = _pairs(one.target, self.b[name])
        sources = self.sides.a.source, self.sides.b.source
        if pairs is None and _diff_explained.is_calculated(one.target, sources[0], self.b[name], sources[1]):
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
        for repeated in one.repeats:
            if self._is_made_so(repeated):
                for copy in repeated.copies:
                    self.used.setdefault(copy.names[0], []).append(copy.terms[0][1])
        moves = moves_of(one.target, self.a)
        self._settle(LAYOUT, names, name, how=one.how, layout=one.layout, is_unique=is_unique, moves=moves)
        if not one.repeats:
            runs = runs_of(one.target, self.b[name], self.a)
            self.maps |= {name: runs} if is_unique else {}
            self._beside(self.found[name], runs)

    def _explain(self, one: _diff_tables.Proposal) -> None:
        """A tensor that holds other numbers for a known reason: changed, since they do not lead back."""
        names = [name for name in dict.fromkeys(n for copy in one.target.copies for n in copy.names) if name in self.a]
        why = _diff_explained.reason(one.target)
        for name in names:
            self.used.setdefault(name, []).append(self.a[name])
        if not why and names:  # bits move, and one is flipped: they lead back
            how, moves = f"{one.how}, {_with(one.target)}", moves_of(one.target, self.a)
            self._settle(LAYOUT, names, one.target.name, how=how, layout=one.layout, moves=moves)
        elif names:
            self._settle(CHANGED, names, one.target.name, how=f"explained by {why}, {one.how}", layout=one.layout)

    def _by_rows(self, progress: Progress) -> None:
        """Tensors whose rows are rows, columns or negated rows of those of the first, by a search without tables."""
        source = self.sides.b.source
        codes = packed(self.b)
        varied = {
            name: view
            for name, view in self.left_b.items()
            if not (name in codes and not view.dtype.name.startswith(NUMBERS)) and not is_constant(source, view)
        }
        search = Search(dict(self.left_a), varied, self.sides, self.memory)
        with progress("rows", search.nbytes) as advance:
            for one in search.found(advance):
                if one.name in self.left_b and not all(self._is_exchanged(old, one.name) for old in one.olds):
                    self._by_map(one, search)
        if search.missed:
            self._undecided()

    def _by_map(self, one: FoundMap, search: Search) -> None:
        """A tensor whose rows were found, and what stands beside it by the same map."""
        found = list(search.beside(one, self.left_b))
        for old, windows in one.used.items():
            self.used.setdefault(old, []).extend(windows)
        kind = LAYOUT if not one.is_cast else self._cast_kind(one)
        self._settle(kind, one.olds, one.name, how=one.how, is_unique=one.is_unique, moves=search.moves(one))
        for name, olds in found:
            self._settle(LAYOUT, olds, name, how=f"{one.how}, as {one.name!r}")
        runs = search.named(one)
        self.maps |= {one.name: runs} if one.is_unique else {}
        self._beside(self.found[one.name], runs)

    def _cast_kind(self, one: FoundMap) -> str:
        """Of rows that were cast to the type of the second: whether it holds every number of the first's."""
        types = [(self.a[old].dtype, self.b[one.name].dtype) for old in one.olds]
        wider = all(new.block_bytes > old.block_bytes for old, new in types)
        return CAST if wider else ROUNDED

    def _strays(self) -> None:
        """Biases that are where they were, of matrices whose rows moved: together they are other weights."""
        for name, runs in self.maps.items():
            stem = name.removesuffix(".weight")
            for bias in (f"{stem}.bias", f"{stem}_bias"):
                view, one = self.b.get(bias), self.found.get(bias)
                if view is None or one is None or one.kind == CHANGED or is_constant(self.sides.b.source, view):
                    continue
                for followed in beside(name, runs, self.a, {bias: view}):
                    if not all(self.sides.same([pair for _, pair in followed.pairs], lambda nbytes: None).values()):
                        self.found[bias] = replace(one, kind=CHANGED, how=f"does not follow the rows of {name!r}")

    def _beside(self, one: TensorDiff, runs: Sequence[NamedRun]) -> None:
        """The bias, the scales and the low-rank factors beside a matrix, by the same rows."""
        for followed in list(beside(one.b[0], runs, self.a, self.left_b)) if runs else ():
            if all(self.sides.same([pair for _, pair in followed.pairs], lambda nbytes: None).values()):
                for old, pair in followed.pairs:
                    self.used.setdefault(old, []).append(pair.a)
                olds = dict.fromkeys(old for old, _ in followed.pairs)
                self._settle(LAYOUT, olds, followed.name, how=f"{one.how}, as {one.b[0]!r}", layout=one.layout)

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

    def _by_reasons(self) -> None:
        """Tensors whose numbers changed for a reason that both show: norms stored less 1, sums that A holds."""
        pairs = list(self._pairs_by_name())
        left = self.left_a, self.left_b
        for one in [*_diff_explained.norms(pairs, left, self.sides),
                    *_diff_explained.read_back(*self.checkpoints, left, self.sides)]:  # fmt: skip
            if one.name not in self.left_b:
                continue
            change = None
            if self.a[one.olds[0]].shape == self.b[one.name].shape and len(one.olds) == 1:
                (change,) = self.sides.changes([[WindowPair(self.a[one.olds[0]], self.b[one.name])]])
            self._settle(CHANGED, one.olds, one.name, how=one.how, layout=one.layout, change=change)

    def _pairs_by_name(self) -> Iterator[tuple[str, str]]:
        """(tensor of the first, tensor of the second) without verdicts, of one name or of a name that others show."""
        proven = {one.a[0]: name for name, one in self.found.items() if len(one.a) == 1}
        renames = Renames(proven)
        for name in self.left_a:
            new = next((one for one in (name, *renames.of(name)) if one in self.left_b), None)
            if new is not None:
                yield name, new

    def _rest(self) -> None:
        """What has the same name and other numbers, and what only one of the two has."""
        names = [name for name in self.left_b if name in self.left_a]
        alike = [name for name in names if self.a[name].shape == self.b[name].shape]
        changes = self.sides.changes([[WindowPair(self.a[name], self.b[name])] for name in alike])
        found = dict(zip(alike, changes, strict=True))
        for name in names:
            change = found.get(name)
            only_bits = change is not None and change.largest == 0 and "bits differ, and no number"
            self._settle(CHANGED, [name], name, change=change, how=only_bits or self.twins.get(("b", name), ""))
        for name, view in list(self.left_b.items()):
            self.found[name] = TensorDiff(
                ADDED, (), (name,), ("", view.dtype.name), (None, view.shape), self._twin("b", name, self.b),
                nbytes=view.nbytes,
            )  # fmt: skip
        for name, windows in self.used.items():
            if name in self.a and (lost := unread(self.a[name], windows)):
                how = f"{lost} of {plural(self.a[name].numel, 'element')} in no tensor of B"
                self.gone.append(TensorDiff(REMOVED, (name,), (), how=how))
        moved = {self.a[old] for one in self.found.values() for old in one.a}
        for name, view in self.left_a.items():
            if name in self.b and view in moved and self.found[name].kind != CHANGED:
                continue  # another name of a tensor that is found, and the second has that name, too
            self.gone.append(
                TensorDiff(
                    REMOVED, (name,), (), (view.dtype.name, ""), (view.shape, None), self._twin("a", name, self.a),
                    nbytes=view.nbytes,
                )
            )  # fmt: skip

    def _twin(self, side: str, name: str, views: Mapping[str, View]) -> str:
        """Of a name that one side lacks: which tensor it shares memory with, or whose bytes it has."""
        other = self._first_of_both(side, views).get(views[name])
        return self.twins.get((side, name), "") if other is None else f"shares memory with {other!r}, which both have"

    def _first_of_both(self, side: str, views: Mapping[str, View]) -> Mapping[View, str]:
        """{window: its first name that both have}, made once for each side."""
        if side not in self._firsts:
            found: dict[View, str] = {}
            for name, view in views.items():
                if name in self.a and name in self.b:
                    found.setdefault(view, name)
            self._firsts[side] = found
        return self._firsts[side]

    def _compounds(self) -> None:
        """Facts of tensors that several windows make up: scales, the dense shape; and signs that only one has."""
        for one in compounds(*self.checkpoints, self.signed, self.sides):
            if one.b:
                self.found[one.b[0]] = one
            else:
                self.gone.append(one)

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


def _with(target: Target) -> str:
    """What a map has beside moved bits."""
    signs = any(sign < 0 for copy in target.copies for sign, _ in copy.terms)
    return "with a sign" if signs else "with constants that A's layout leaves out"


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
