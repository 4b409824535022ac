"""The last step of a comparison: tensors of one name with other numbers, and what only one checkpoint has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from paramtool.commands._differences import declared_names
from paramtool.commands.diff.same_places import NEAR, names_in_front
from paramtool.commands.diff.settled import Settled, may_be_cast
from paramtool.commands.diff.tied_parts import SharedNames
from paramtool.commands.diff.ties import memory_of
from paramtool.engine.compare.sides import WindowPair, is_number
from paramtool.engine.read.pairs import same_bytes
from paramtool.errors import plural
from paramtool.grouping import grouped, omit
from paramtool.model.checkpoint import GRAPH
from paramtool.model.diff import ADDED, CHANGED, LED_BACK, REMOVED, RENAMED, UNDECIDED, TensorDiff
from paramtool.model.tiling import unread
from paramtool.model.view import View


class Rest:
    """What no step has settled."""

    def __init__(self, state: Settled) -> None:
        self.state = state
        self._ties: dict[str, set[tuple[str, ...]]] = {}
        """{side: names of it that the config.json of the other side ties}"""

    @cached_property
    def tied(self) -> tuple[SharedNames, SharedNames]:
        """The names of both by the memory that they share."""
        a, b = map(memory_of, self.state.checkpoints)
        return a, b

    def settle(self) -> None:
        """A verdict on every tensor that has none, and on the elements of A that no tensor of B holds."""
        self._changed()
        self._changed_under_renames()
        self._added()
        self._removed()

    def _changed(self) -> None:
        state = self.state
        names = [name for name in state.left_b if name in state.a]
        alike = [name for name in names if state.a[name].shape == state.b[name].shape]
        changes = state.sides.changes([[WindowPair(state.a[name], state.b[name])] for name in alike])
        found = dict(zip(alike, changes, strict=True))
        for name in names:
            change = found.get(name)
            if self._is_of_graph(0, name) and self._is_of_graph(1, name):
                state.settle(GRAPH, [name], name, change=change)
                continue
            is_one_type = state.a[name].dtype == state.b[name].dtype
            only_bits = is_one_type and change is not None and change.largest == 0 and "bits differ, and no number"
            how = only_bits or state.twins.get(("b", name), "") or self._longer(name)
            state.settle(CHANGED, [name], name, change=change, how=how)

    def _changed_under_renames(self) -> None:
        """Tensors of one shape under a name that others show; or, of a whole model, with other names in front."""
        state, pairs = self.state, dict[str, str]()
        renames = state.renames()
        olds, news = (
            {name: view for name, view in left.items() if not self._is_of_graph(side, name)}
            for side, left in enumerate((state.left_a, state.left_b))
        )
        for name, view in olds.items():
            names = (one for one in renames.of(name) if one in news and one not in pairs)
            new = next((one for one in names if news[one].shape == view.shape and may_be_cast(view, news[one])), None)
            if new is not None:
                pairs[new] = name
        left = omit(news, pairs)
        paired = {*pairs.values()}
        in_front, _ = names_in_front(left, omit(olds, paired))
        every = pairs | in_front
        changes = state.sides.changes([[WindowPair(state.a[old], state.b[new])] for new, old in every.items()])
        found = dict(zip(every, changes, strict=True))
        near = sum(left[new].nbytes for new in in_front if (found[new].relative or 0) < NEAR)
        if 2 * near < sum(view.nbytes for view in state.b.values()):  # no fine-tune, but another model
            every = pairs
        for new, old in every.items():
            change = found[new]
            if change.elements:  # equal ones of a fine-tune prove nothing
                state.settle(CHANGED, [old], new, change=change, how=state.twins.get(("b", new), ""))

    def _longer(self, name: str) -> str:
        """Of a tensor with more rows in one of the two: that the others are the same, as of a padded vocabulary."""
        sides, a, b = self.state.sides, self.state.a[name], self.state.b[name]
        if (
            a.dtype != b.dtype
            or a.dtype.block_elements > 1
            or not a.shape
            or len(a.shape) != len(b.shape)
            or a.shape[1:] != b.shape[1:]
        ):
            return ""
        count, longest = sorted((*a.shape[:1], *b.shape[:1]))
        first = WindowPair(_rows(a, 0, count), _rows(b, 0, count))
        if count == longest or not first.a.numel or not sides.same([first], lambda nbytes: None)[first]:
            return ""
        where, view, source = ("A", a, sides.a.source) if a.shape[0] > count else ("B", b, sides.b.source)
        zeros = " of zeros" if is_number(source, _rows(view, count, longest), 0.0) else ""
        return f"{where} has {plural(longest - count, 'more row')}{zeros}; the other {count} are the same"

    def _added(self) -> None:
        state = self.state
        for name in list(state.left_b):
            if other := self._tied(1, name):
                state.settle_only_b(RENAMED, name, f"tied to {other!r} in B; A does not store this name")
                continue
            if other := self._equal_to_tied("b", name):
                kind = RENAMED if state.b[name].dtype == state.a[other].dtype else state.found[other].kind
                how = f"the config.json of A ties it to {other!r}"
                how += ", with the same bytes" if kind == RENAMED else ""
                change = None if kind == RENAMED else state.found[other].change
                state.settle(kind, [other], name, how=how, change=change)
                self._note_untied("b", name, other)
                continue
            kind, how = ADDED, state.twins.get(("b", name), "")
            if self._is_of_graph(1, name):
                kind, how = GRAPH, "only in B"
            state.settle_only_b(kind, name, how)

    def _removed(self) -> None:
        state = self.state
        is_bounded = any(one.kind == UNDECIDED for one in state.found.values())
        for name in state.used:
            if name in state.a and (lost := state.unread(name)):
                how = f"{lost} of {plural(state.a[name].numel, 'element')} not found in B"
                state.gone.append(TensorDiff(REMOVED, (name,), (), how=how))
        moved = {state.a[old]: new for new, one in state.found.items() for old in one.a}
        for name, view in list(state.left_a.items()):
            if name in state.b and view in moved and state.found[name].kind != CHANGED:
                continue  # another name of a tensor that is found, and the second has that name, too
            kind, how = REMOVED, state.twins.get(("a", name), "")
            if other := self._tied(0, name):
                kind, how = RENAMED, f"tied to {other!r} in A; B does not store this name"
            elif other := self._equal_to_tied("a", name):
                kind, how = RENAMED, f"the config.json of B ties it to {other!r}, with the same bytes"
                self._note_untied("a", name, other)
            if self._is_of_graph(0, name):
                kind, how = GRAPH, "only in A"
            if kind == REMOVED and is_bounded and not how:
                kind, how = UNDECIDED, "may be what is undecided in B"
            state.settle_only_a(kind, name, how)

    def _is_of_graph(self, side: int, name: str) -> bool:
        """Whether a tensor is a constant of a graph, and no weight."""
        entry = self.state.checkpoints[side].entries.get(name)
        return entry is not None and entry.role == GRAPH

    def _tied(self, side: int, name: str) -> str:
        """Of a name that one side lacks: a tensor that has all its memory on this side, and that both have."""
        mine, views = self.tied[side], (self.state.a, self.state.b)[side]
        sets, view = mine.sets, views[name]
        mates = [other for other in self._mates[side].get(sets.get(name, ""), ()) if other != name]
        windows = [views[other] for other in mates if views[other].dtype == view.dtype]
        if not windows or unread(view, windows):
            return ""
        return next((other for other in mates if views[other] == view), mates[0])

    @cached_property
    def _mates(self) -> tuple[Mapping[str, list[str]], ...]:
        """{alias set: the names of it that have a verdict with tensors of both}, of each side."""
        both = [one for one in self.state.found.values() if one.a and one.b]
        names = [old for one in both for old in one.a], [new for one in both for new in one.b]
        return tuple(
            grouped((tied.sets[name], name) for name in dict.fromkeys(own) if name in tied.sets)
            for own, tied in zip(names, self.tied, strict=True)
        )

    def _equal_to_tied(self, side: str, name: str) -> str:
        """The same of a name that has memory of its own there, with the bytes of the tensor that both have."""
        state = self.state
        views, source = (state.b, state.sides.b.source) if side == "b" else (state.a, state.sides.a.source)
        for other in sorted({one for names in self._declared(side) if name in names for one in names} - {name}):
            found = state.found.get(other)
            if found is None or found.kind not in LED_BACK or other not in state.a or other not in views:
                continue
            if (views[other].dtype, views[other].shape) != (views[name].dtype, views[name].shape):
                continue
            if same_bytes(source, views[other], source, views[name]):
                return other
        return ""

    def _note_untied(self, side: str, name: str, other: str) -> None:
        """A tie that the config.json of the other side declares, unless that of this side declares it, too."""
        own = self.state.checkpoints["ab".index(side)]
        if not any({name, other} <= {*names} for names in declared_names(own, own.path) or ()):
            here, there = ("A", "B") if side == "a" else ("B", "A")
            text = f"{name!r}: tied to {other!r} by the config.json of {there}, and stored apart in {here}"
            self.state.untied.append(text)

    def _declared(self, side: str) -> set[tuple[str, ...]]:
        """Names of one side that the config.json of the other side ties."""
        if side not in self._ties:
            own, lacking = self.state.checkpoints[:: -1 if side == "b" else 1]
            self._ties[side] = declared_names(own, lacking.path) or set()
        return self._ties[side]


def _rows(view: View, start: int, stop: int) -> View:
    """Some rows of a tensor."""
    offset = view.offset + start * view.strides[0]
    return View(view.storage, view.dtype, offset, (stop - start, *view.shape[1:]), view.strides)
