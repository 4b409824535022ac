"""The last step of a comparison: tensors of one name with other numbers, and what only one checkpoint has."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.commands._diff_settled import Settled
from paramtool.engine.compare.sides import WindowPair
from paramtool.errors import plural
from paramtool.model.checkpoint import NoData
from paramtool.model.diff import ADDED, CHANGED, REMOVED, SAME, TensorDiff
from paramtool.model.tiling import unread
from paramtool.model.view import View


class Rest:
    """What no step has settled."""

    def __init__(self, state: Settled) -> None:
        self.state = state
        self._firsts: dict[str, Mapping[View, str]] = {}

    def settle(self) -> None:
        """A verdict on every tensor that has none, and on the elements of A that no tensor of B holds."""
        self._changed()
        self._added()
        self._removed()

    def _changed(self) -> None:
        state = self.state
        names = [name for name in state.left_b if name in state.left_a]
        alike = [name for name in names if state.a[name].shape == state.b[name].shape]
        changes = state.sides.changes([[WindowPair(state.a[name], state.b[name])] for name in alike])
        found = dict(zip(alike, changes, strict=True))
        for name in names:
            change = found.get(name)
            only_bits = change is not None and change.largest == 0 and "bits differ, and no number"
            how = only_bits or state.twins.get(("b", name), "")
            state.settle(CHANGED, [name], name, change=change, how=how)

    def _added(self) -> None:
        state = self.state
        for name, view in list(state.left_b.items()):
            state.found[name] = TensorDiff(
                ADDED, (), (name,), ("", view.dtype.name), (None, view.shape), self._twin("b", name, state.b),
                nbytes=view.nbytes,
            )  # fmt: skip

    def _removed(self) -> None:
        state = self.state
        for name, windows in state.used.items():
            if name in state.a and (lost := unread(state.a[name], windows)):
                how = f"{lost} of {plural(state.a[name].numel, 'element')} in no tensor of B"
                state.gone.append(TensorDiff(REMOVED, (name,), (), how=how))
        moved = {state.a[old] for one in state.found.values() for old in one.a}
        for name, view in state.left_a.items():
            if name in state.b and view in moved and state.found[name].kind != CHANGED:
                continue  # another name of a tensor that is found, and the second has that name, too
            state.gone.append(
                TensorDiff(
                    REMOVED, (name,), (), (view.dtype.name, ""), (view.shape, None), self._twin("a", name, state.a),
                    nbytes=view.nbytes,
                )
            )  # fmt: skip

    def _twin(self, side: str, name: str, views: Mapping[str, View]) -> str:
        """Of a name that one side lacks: which tensor it shares memory with, or whose bytes it has."""
        other = self._first_of_both(side, views).get(views[name])
        twin = self.state.twins.get((side, name), "")
        return twin if other is None else f"shares memory with {other!r}, which both have"

    def _first_of_both(self, side: str, views: Mapping[str, View]) -> Mapping[View, str]:
        """{window: its first name that both have}, made once for each side."""
        if side not in self._firsts:
            found: dict[View, str] = {}
            for name, view in views.items():
                if name in self.state.a and name in self.state.b:
                    found.setdefault(view, name)
            self._firsts[side] = found
        return self._firsts[side]

    def without_data(self) -> None:
        """Names that have no tensor in one of the two: their kinds are compared."""
        state = self.state
        a, b = (one.entries for one in state.checkpoints)
        for name in b:
            if isinstance(b[name].value, NoData) and name not in state.found:
                kind = ADDED if name not in a else SAME if a[name].value == b[name].value else CHANGED
                state.found[name] = TensorDiff(kind, (name,) if name in a else (), (name,))
        for name in a:
            if isinstance(a[name].value, NoData) and name not in b:
                state.gone.append(TensorDiff(REMOVED, (name,)))
