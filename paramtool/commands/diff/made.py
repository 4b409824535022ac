"""The steps of a comparison that ask tables: tensors that a layout or a dialect makes of others, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from paramtool.commands.diff import axes, explained
from paramtool.commands.diff.found import companions, map_of, proved
from paramtool.commands.diff.parts import PartSearch
from paramtool.commands.diff.settled import MadeOf, Settled, made_of
from paramtool.commands.diff.tables import Proposal, facts_of, of_dialects, of_networks
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.sides import is_constant, is_number
from paramtool.model.diff import CHANGED, LAYOUT, LED_BACK, RENAMED, TensorDiff
from paramtool.model.plan import Target
from paramtool.model.view import View
from paramtool.passes.diff.moves import moves_of
from paramtool.passes.diff.names import NUMBER


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
            if any(one.constants or not _names(one.target) for one in proposed):
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
                if name in held or name not in state.b or not _names(one.target):
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
        numbers, *others = [NUMBER.findall(name) for name in (one.target.name, *_names(one.target))]
        are_alike = all(mine == numbers[: len(mine)] or numbers == mine[: len(numbers)] for mine in others)
        return not are_alike and is_constant(self.state.sides.b.source, self.state.b[one.target.name])

    def constants(self) -> None:
        """Numbers that only one of two layouts has, of networks whose other tensors are all found: zero biases."""
        for proposed in self._networks:
            self._constants(proposed)

    def _constants(self, proposed: Sequence[Proposal]) -> None:
        state = self.state
        made = [one for one in proposed if not _names(one.target)]
        rest = [state.found.get(one.target.name) for one in proposed if one not in made]
        if not rest or not all(one is not None and (one.kind in LED_BACK or _is_explained(one)) for one in rest):
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
        sources = self.state.sides.a.source, self.state.sides.b.source
        return bool(
            self._kind(one.target) or explained.calculated(one, sources[0], self.state.b[one.target.name], sources[1])
        )

    def _kind(self, target: Target) -> str:
        """LAYOUT, CAST or ROUNDED where a tensor of the second is made as a table says; "" where it is not."""
        made = made_of(target, self.state.b[target.name])
        return self._proved(made) if made is not None else ""

    def _proved(self, made: MadeOf) -> str:
        source = self.state.sides.b.source
        kind = self.state.proved(made.pairs) if made.pairs else LAYOUT
        return kind if kind and all(is_number(source, view, number) for view, number in made.constants) else ""

    def _try(self, one: Proposal, *, is_unique: bool = True) -> None:
        """Settle a tensor if every number is what a table says."""
        state, name = self.state, one.target.name
        there = state.b[name]
        made = made_of(one.target, there)
        if made is None and any(len(copy.terms) > 1 for copy in one.target.copies):
            one = one._replace(target=explained.without_zeros(one.target, state.sides.a.source))
            made = made_of(one.target, there)
        names = [old for old in _names(one.target) if old in state.a]
        if made is None:
            if how := explained.calculated(one, state.sides.a.source, there, state.sides.b.source):
                self._explain(one, names, how)
            return
        kind = self._proved(made)
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
        how = ", ".join([one.how, *_beyond_moves(made)])
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

    def _explain(self, one: Proposal, names: Sequence[str], how: str) -> None:
        """A tensor that holds other numbers for a known reason: changed, since they do not lead back."""
        for name in names:
            self.state.use(name, [self.state.a[name]])
        if names:
            self.state.settle(CHANGED, names, one.target.name, how=how, layout=one.layout)

    def strays(self) -> None:
        """Biases that are where they were, of matrices whose rows or axes moved: together they are other weights."""
        state = self.state
        axes.strays(state)
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


def _names(target: Target) -> dict[str, None]:
    return dict.fromkeys(name for copy in target.copies for name in copy.names)


def _is_explained(one: TensorDiff) -> bool:
    """Whether a tensor holds what a table makes of its sources with arithmetic."""
    return one.kind == CHANGED and bool(one.layout) and one.how.startswith("explained by")


def _beyond_moves(made: MadeOf) -> list[str]:
    """What a map has beside moved numbers, in words."""
    if any(pair.sign < 0 for pair in made.pairs):
        return ["with a sign"]
    return ["with constants that A's layout leaves out"] if made.constants else []
