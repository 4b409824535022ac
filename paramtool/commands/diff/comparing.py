"""The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.commands.diff import explained
from paramtool.commands.diff.casts import casts, casts_by_name, casts_by_renames, reshaped
from paramtool.commands.diff.changed_layers import changed_layers
from paramtool.commands.diff.compounds import compounds, other_scales
from paramtool.commands.diff.folds import folds
from paramtool.commands.diff.graphs import stored_once
from paramtool.commands.diff.kept_sums import kept_sums
from paramtool.commands.diff.lines import by_lines
from paramtool.commands.diff.made import MadeByTables
from paramtool.commands.diff.recorded import recorded
from paramtool.commands.diff.renames import by_content, by_later_renames, tiny
from paramtool.commands.diff.rest import Rest
from paramtool.commands.diff.settled import Settled
from paramtool.commands.diff.taken import taken, taken_as_casts
from paramtool.commands.diff.unread import unread
from paramtool.commands.progress import Advance, Progress
from paramtool.engine.compare.sides import WindowPair
from paramtool.model.diff import CHANGED, LED_BACK, RENAMED, SAME, TensorDiff


class Comparing(Settled):
    """The comparison of two open checkpoints: each step settles some tensors, and leaves the others to the next."""

    def all(self, progress: Progress) -> tuple[TensorDiff, ...]:
        """Every verdict, in the order of the second checkpoint; then what only the first has."""
        made, rest = MadeByTables(self), Rest(self)
        with progress("diff", sum(view.nbytes for view in self.b.values())) as advance:
            self._by_name(advance)
        if self.left_b:
            taken(self)
        if self.left_b:
            by_content(self)
        if self.left_b:
            casts_by_name(self)
            taken_as_casts(self)
        if self.left_b:
            casts(self)
        if self.left_b or self.left_a:
            made.by_tables()
        elif any(one.kind == RENAMED for one in self.found.values()):
            made.look_at_networks()
        if self.left_b:
            made.by_parts()
        if self.left_a or self.left_b or self.taken or any(one.kind not in LED_BACK for one in self.found.values()):
            self.as_made = recorded(self)
        if self.left_b:
            reshaped(self)
        if self.left_b:
            by_content(self, is_squeezed=True)
        if self.left_b:
            by_lines(self, made, progress)
        if self.left_b:
            by_later_renames(self)
            casts_by_renames(self)
        if self.left_b:
            self._by_reasons()
            made.constants()
            folds(self)
            tiny(self)
        self.cut_with_others()
        stored_once(self)
        if self.left_b:
            changed_layers(self)
        self.left_b |= self.taken
        rest.settle()
        made.strays()
        unread(self)
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

    def _by_reasons(self) -> None:
        """Tensors whose numbers changed for a reason that both show: norms stored less 1, sums that A holds."""
        pairs = list(self._pairs_by_name())
        left = self.left_a, self.left_b
        for one in [*explained.norms(pairs, left, self.sides),
                    *explained.read_back(self.checkpoints, self.networks, left, self.sides),
                    *kept_sums(self)]:  # fmt: skip
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
        """What no byte shows: facts of compounds, entries of headers, and signs that only one has."""
        for one in list(compounds(self)):
            if one.b:
                known = self.found.get(one.b[0])
                self.found[one.b[0]] = known if known is not None and known.kind not in LED_BACK else one
            else:
                self.gone.append(one)
        for one in other_scales(*self.checkpoints, [*self.found.values()]):
            self.found[one.b[0]] = one
