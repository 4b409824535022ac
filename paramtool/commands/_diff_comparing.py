"""The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.commands import _diff_explained
from paramtool.commands._diff_casts import casts, reshaped_casts
from paramtool.commands._diff_compounds import compounds
from paramtool.commands._diff_lines import by_lines
from paramtool.commands._diff_made import Made
from paramtool.commands._diff_rest import Rest
from paramtool.commands._diff_settled import Settled
from paramtool.commands.progress import Advance, Progress
from paramtool.engine.compare.sides import WindowPair
from paramtool.model.diff import CHANGED, LAYOUT, RENAMED, SAME, TensorDiff
from paramtool.model.view import View
from paramtool.passes.diff.names import Renames


class Comparing(Settled):
    """The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next."""

    def all(self, progress: Progress) -> tuple[TensorDiff, ...]:
        """Every verdict, in the order of the second checkpoint; then what only the first has."""
        made, rest = Made(self), Rest(self)
        with progress("diff", sum(view.nbytes for view in self.b.values())) as advance:
            self._by_name(advance)
        if self.left_b:
            self._by_content()
        if self.left_b:
            casts(self)
        if self.left_b or self.left_a:
            made.by_tables()
        if self.left_b:
            made.by_parts()
        if self.left_b:
            self._by_shape()
            reshaped_casts(self)
        if self.left_b:
            by_lines(self, made, progress)
        if self.left_b:
            self._by_reasons()
        rest.settle()
        made.strays()
        rest.without_data()
        self._compounds()
        order = [*self.b, *(name for name in self.found if name not in self.b)]
        return (*(self.found[name] for name in order if name in self.found), *self.gone)

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
                self.settle(SAME, [name], name)

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
                self.settle(LAYOUT, [name], name, how="reshaped")

    def _by_content(self) -> None:
        """Tensors that hold the same bytes under another name."""
        proven = {name: name for name, one in self.found.items() if one.kind == SAME}
        unsure: list[tuple[list[str], list[str]]] = []
        for old, new in self._classes():
            if len(old) == len(new) == 1 and not self.may_be_chance(old[0]):
                if self.is_exchanged(old[0], new[0]):
                    self.twins["b", new[0]] = f"the same bytes as {old[0]!r} of A"
                    continue
                self.settle(RENAMED, old, new[0])
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
        is_sure = not self.may_be_chance(old[0])
        more = "" if is_sure else ", which prove nothing: they are few, or one element repeated"
        self.twins |= {("b", name): f"the same bytes as {old[0]!r} of A{more}" for name in new}
        self.twins |= {("a", name): f"the same bytes as {new[0]!r} of B{more}" for name in old}
        for name in old:
            wanted = next((one for one in renames.of(name) if one in free and not self.is_exchanged(name, one)), None)
            if wanted is None:
                left.append(name)
                continue
            del free[wanted]
            self.settle(RENAMED, [name], wanted)
        if is_sure:
            places = [one for one in free if one not in self.a]
            for name, other in zip(left, places, strict=False):
                self.settle(RENAMED, [name], other, is_unique=len(left) == len(free) == 1)

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
            self.settle(CHANGED, one.olds, one.name, how=one.how, layout=one.layout, change=change)

    def _pairs_by_name(self) -> Iterator[tuple[str, str]]:
        """(tensor of the first, tensor of the second) without verdicts, of one name or of a name that others show."""
        renames = self.renames()
        for name in self.left_a:
            new = next((one for one in (name, *renames.of(name)) if one in self.left_b), None)
            if new is not None:
                yield name, new

    def _compounds(self) -> None:
        """Facts of tensors that several windows make up: scales, the dense shape; and signs that only one has."""
        for one in compounds(*self.checkpoints, self.signed, self.sides):
            if one.b:
                self.found[one.b[0]] = one
            else:
                self.gone.append(one)
