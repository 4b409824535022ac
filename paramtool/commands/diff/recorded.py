"""The step of a comparison that asks the record of a side which says that it was made of the other.

    A  m.weight float8_e4m3fn, m.weight_scale   B  m.weight float32, which its record says was dequantised
    A  optimizer.state.4.exp_avg                B  optimizer.state.1.exp_avg, since four parameters became one

What it says is proved as `verify` proves it, in both directions.  A tensor of the source is found where every tensor
that is made of it holds what making it again gives; one that the output lacks, only where the whole output is as its
record says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paramtool.commands._differences import RECORDS
from paramtool.commands.diff.settled import Settled, made_of
from paramtool.commands.diff.tables import REFUSED
from paramtool.commands.expected import MadeAgain, made_again
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.write.verify import same_targets
from paramtool.errors import PlanError
from paramtool.formats.record import edits
from paramtool.grouping import grouped, omit
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.diff import CAST, DEQUANTISED, KINDS, LAYOUT, LED_BACK, RECORD, RENAMED, ROUNDED
from paramtool.model.plan import Target
from paramtool.model.view import View, overlaps


class _Proved(NamedTuple):
    """A tensor of an output, and what it is made of."""

    kind: str
    olds: tuple[str, ...]
    """Names in the source."""
    pairs: tuple[WindowPair, ...] = ()
    is_summed: bool = False
    """Whether it is calculated, so that the numbers of the source do not follow from it: sums of biases."""


def recorded(state: Settled) -> tuple[Checkpoint, Checkpoint]:
    """Verdicts on what the record of either side proves; both checkpoints, each as it is without what was made."""
    for output in (1, 0):
        found, source = state.checkpoints[output], state.checkpoints[1 - output]
        says = [(one.modules, [one.metadata.get(key) for key in RECORDS]) for one in (found, source)]
        if says[0] == says[1]:
            continue
        try:
            again = made_again(found, source, source.path)
        except (*REFUSED, PlanError):
            continue
        if _Recorded(state, again, output).settle():
            return (again.expected, again.found) if output else (again.found, again.expected)
    return state.checkpoints


class _Recorded:
    """What one of the two checkpoints was made of, the other."""

    def __init__(self, state: Settled, again: MadeAgain, output: int) -> None:
        self.state, self.again, self.output = state, again, output
        views, sources = (state.a, state.b), state.sides.sources
        self.made, self.views = views[output], views[1 - output]
        self.there, self.source = sources[output], sources[1 - output]
        self.cast = edits.types_of(again.found.path, again.found.metadata).cast
        self.targets = (*again.moved.targets, *again.weights, *again.networks.remade)

    def settle(self) -> bool:
        """Whether the whole output is as its record says."""
        if any(self.again.broken(self.source)):
            return False
        proved: dict[str, _Proved] = {}
        is_whole = bool(self.targets or self.again.moved.renamed)
        failed: set[str] = set()
        for target in self.targets:
            olds = self._read(target)
            one = self._proved(target, olds)
            if one is None:
                is_whole = False
                failed |= {*olds}
            else:
                proved[target.name] = one
        proved |= self._renamed({target.name for target in self.targets})
        moved = self.again.moved
        is_whole = is_whole and not (moved.differences or moved.unknown or self.again.networks.unsure)
        readers = grouped((old, name) for name, one in proved.items() for old in one.olds)
        readers = omit(readers, failed)
        left = {entry.value for entry in self.again.expected.entries.values() if isinstance(entry.value, View)}
        absent = [old for old, view in self.views.items() if not (view in left or old in readers or old in failed)]
        (self._of_second if self.output else self._of_first)(proved, readers, absent if is_whole else [])
        return is_whole

    def _of_second(self, proved: dict[str, _Proved], readers: dict[str, list[str]], absent: list[str]) -> None:
        """The verdicts where the second was made of the first."""
        state = self.state
        for old in readers:
            state.use(old, [self.views[old]])
        for name, one in proved.items():
            if not self._is_open(name, one.kind):
                state.left_b.pop(name, None)
            elif one.olds:
                lost = state.lost(one.kind, one.pairs)
                state.settle(one.kind, one.olds, name, how=self._how(one), layout=RECORD, change=lost)
            else:
                state.settle_only(1, LAYOUT, name, self._how(one), RECORD)
        for old in readers.keys() & state.left_a.keys():
            del state.left_a[old]
        for old in absent:
            if old in state.left_a:
                state.settle_only(0, LAYOUT, old, "not in B, as its record says", RECORD)

    def _of_first(self, proved: dict[str, _Proved], readers: dict[str, list[str]], absent: list[str]) -> None:
        """The verdicts where the first was made of the second."""
        state = self.state
        for old, names in readers.items():
            made = [proved[name] for name in names]
            kind = max((one.kind for one in made), key=KINDS.index)
            if self._is_open(old, kind):
                pairs = [pair for one in made for pair in one.pairs]
                lost = state.lost(kind, pairs) if len(names) == 1 else None
                state.settle(kind, names, old, how=self._how(*made), layout=RECORD, change=lost)
        for old in absent:
            if self._is_open(old):
                state.settle_only(1, LAYOUT, old, "not in A, as its record says", RECORD)
        for name, one in proved.items():
            state.use(name, [self.made[name]])
            if name in state.left_a and not one.olds:
                state.settle_only(0, LAYOUT, name, self._how(one), RECORD)
            state.left_a.pop(name, None)

    def _is_open(self, name: str, kind: str = LAYOUT) -> bool:
        """Whether no other step has found where the numbers of a tensor of the second are.

        That they are codes under scales says more than that they are the codes, where every scale is 1.
        """
        one = self.state.found.get(name)
        self.state.taken.pop(name, None)
        return one is None or one.kind not in LED_BACK or kind == DEQUANTISED

    def _how(self, *made: _Proved) -> str:
        if all(one.kind == RENAMED for one in made):
            return ""
        return f"{'summed, ' if any(one.is_summed for one in made) else ''}by the record of {'AB'[self.output]}"

    def _read(self, target: Target) -> tuple[str, ...]:
        """The tensors of the source that a target is made of."""
        views = {view: None for copy in target.copies for view in copy.sources}
        names = (
            name
            for view in views
            for name, one in self.views.items()
            if one.storage == view.storage and overlaps(one, view)
        )
        return tuple(dict.fromkeys(names))

    def _proved(self, target: Target, olds: tuple[str, ...]) -> _Proved | None:
        """A tensor of the output that holds what making it again gives; None for one that does not."""
        view = self.made.get(target.name)
        storages = self.again.source.storages
        if (
            view is None
            or view.shape != target.shape
            or any(one.storage not in storages for copy in target.copies for one in copy.sources)
        ):
            return None
        made = made_of(target, view)
        if made is not None:
            pairs = tuple(pair if self.output else WindowPair(pair.b, pair.a, pair.sign) for pair in made.pairs)
            kind = self.state.proved_made(made, pairs, self.output)
            return _Proved(kind, olds, pairs) if kind else None
        kind = LAYOUT
        if view.dtype != target.dtype and self.cast.get(target.name) == target.dtype.name:
            kind = CAST if view.dtype.block_bytes > target.dtype.block_bytes else ROUNDED
            target = target.cast(view.dtype)
        if view.dtype != target.dtype or not same_targets((self.there, self.source), [(view, target)])[0]:
            return None
        is_scaled = any(isinstance(copy.scale, View) for copy in target.copies)
        return _Proved(DEQUANTISED if is_scaled else kind, olds, is_summed=not is_scaled)

    def _renamed(self, targets: set[str]) -> dict[str, _Proved]:
        """Tensors that are those of the source as they are, under the names that the output should have."""
        pairs = dict(self._pairs(targets))
        same = self.state.sides.same(pair for _, pair in pairs.values())
        return {name: _Proved(RENAMED, (old,)) for name, (old, pair) in pairs.items() if same[pair]}

    def _pairs(self, targets: set[str]) -> Iterator[tuple[str, tuple[str, WindowPair]]]:
        names = grouped((view, name) for name, view in self.views.items())
        for name, entry in self.again.expected.entries.items():
            old, mine = entry.value, self.made.get(name)
            if name in targets or not isinstance(old, View) or old not in names or mine is None:
                continue
            if (mine.dtype, mine.shape) == (old.dtype, old.shape):
                pair = WindowPair(old, mine) if self.output else WindowPair(mine, old)
                yield name, (name if name in names[old] else names[old][0], pair)
