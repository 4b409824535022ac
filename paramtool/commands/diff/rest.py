"""The last steps of a comparison: tensors of one name with other numbers, what only one has, and what has no bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from paramtool.commands._differences import declared_names
from paramtool.commands.config_ties import denied
from paramtool.commands.diff.find_base import NEAR, names_in_front
from paramtool.commands.diff.settled import Settled, may_be_cast
from paramtool.commands.diff.ties import SharedNames, memory_of
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.sides import is_number
from paramtool.engine.read.pairs import same_bytes
from paramtool.errors import plural
from paramtool.grouping import grouped, omit
from paramtool.model.checkpoint import GRAPH, Entry, NoData, Unreadable, Value
from paramtool.model.diff import ADDED, CHANGED, LED_BACK, REMOVED, RENAMED, SAME, UNDECIDED, TensorDiff
from paramtool.model.tiling import unread
from paramtool.model.view import Shape, View


class Rest:
    """What no step has settled."""

    def __init__(self, state: Settled) -> None:
        self.state = state

    @cached_property
    def tied(self) -> tuple[SharedNames, SharedNames]:
        """The names of both by the memory that they share."""
        a, b = map(memory_of, self.state.checkpoints)
        return a, b

    def settle(self) -> None:
        """A verdict on every tensor that has none, and on the elements of A that no tensor of B holds."""
        self._changed()
        self._changed_under_renames()
        self._only_in(1)
        state = self.state
        for name in state.used:
            if name in state.a and (lost := state.unread(name)):
                how = f"{lost} of {plural(state.a[name].numel, 'element')} not found in B"
                state.gone.append(TensorDiff(REMOVED, (name,), (), how=how))
        self._only_in(0)

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
        first = WindowPair(a.rows(0, count), b.rows(0, count))
        if count == longest or not first.a.numel or not sides.same([first])[first]:
            return ""
        where, view, source = ("A", a, sides.a.source) if a.shape[0] > count else ("B", b, sides.b.source)
        zeros = " of zeros" if is_number(source, view.rows(count, longest), 0.0) else ""
        return f"{where} has {plural(longest - count, 'more row')}{zeros}; the other {count} are the same"

    def _only_in(self, side: int) -> None:
        """Tensors that one of the two has."""
        state, (here, there) = self.state, ("AB", "BA")[side]
        is_bounded = not side and any(one.kind == UNDECIDED for one in state.found.values())
        moved = {} if side else {state.a[old]: new for new, one in state.found.items() for old in one.a}
        for name, view in list((state.left_a, state.left_b)[side].items()):
            if name in state.b and view in moved and state.found[name].kind != CHANGED:
                continue  # another name of a tensor that is found, and the second has that name, too
            kind, how = (REMOVED, ADDED)[side], state.twins.get(("ab"[side], name), "")
            if name in self._denied[side]:
                how = f"the config.json of {there} does not tie it: its model begins it with random numbers"
            elif other := self._tied(side, name):
                kind, how = RENAMED, f"tied to {other!r} in {here}; {there} does not store this name"
            elif other := self._equal_to_tied(side, name):
                own = self.state.checkpoints[side]
                if not any({name, other} <= {*names} for names in declared_names(own, own.path) or ()):
                    text = f"{name!r}: tied to {other!r} by the config.json of {there}, and stored apart in {here}"
                    state.untied.append(text)
                kind, how = RENAMED, f"the config.json of {there} ties it to {other!r}, with the same bytes"
                if side:
                    one = state.found[other]
                    if view.dtype == state.a[other].dtype:
                        state.settle(kind, [other], name, how=how)
                    else:
                        how = how.removesuffix(", with the same bytes")
                        state.settle(one.kind, [other], name, how=how, change=one.change)
                    continue
            if self._is_of_graph(side, name) and (not side or kind == ADDED):
                kind, how = GRAPH, f"only in {here}"
            if kind == REMOVED and is_bounded and not how:
                kind, how = UNDECIDED, "may be what is undecided in B"
            state.settle_only(side, kind, name, how)

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

    def _equal_to_tied(self, side: int, name: str) -> str:
        """The same of a name that has memory of its own there, with the bytes of the tensor that both have."""
        state = self.state
        views, source = (state.a, state.b)[side], state.sides.sources[side]
        for other in sorted({one for names in self._declared[side] if name in names for one in names} - {name}):
            found = state.found.get(other)
            if found is None or found.kind not in LED_BACK or other not in state.a or other not in views:
                continue
            if (views[other].dtype, views[other].shape) != (views[name].dtype, views[name].shape):
                continue
            if same_bytes(source, views[other], source, views[name]):
                return other
        return ""

    @cached_property
    def _declared(self) -> Sequence[set[tuple[str, ...]]]:
        """Names of each side that the config.json of the other side ties."""
        a, b = self.state.checkpoints
        return [declared_names(own, lacking.path) or set() for own, lacking in ((a, b), (b, a))]

    @cached_property
    def _denied(self) -> Sequence[set[str]]:
        """Names of each side that the other side lacks, and its config.json does not tie."""
        a, b = self.state.checkpoints
        return denied(b), denied(a)


# --- Tensors that no bytes can be compared of: those without data, and those that paramtool cannot read --------------


def without_bytes(state: Settled) -> None:
    """A verdict on each name that has no bytes in one of the two; after all others."""
    a, b = (one.entries for one in state.checkpoints)
    for name in dict.fromkeys((*b, *a)):
        old, new = a.get(name), b.get(name)
        if not (_why(old) or _why(new)):
            continue
        if new is None:
            state.gone.append(_verdict(state, name, old, new))
        elif old is None:
            state.found[name] = _verdict(state, name, old, new)
        elif name not in state.found or state.found[name].kind == ADDED:  # another tensor of A can have B's bytes
            state.gone = [one for one in state.gone if (one.kind, one.a) != (REMOVED, (name,))]
            state.found[name] = _verdict(state, name, old, new)


def _verdict(state: Settled, name: str, old: Entry | None, new: Entry | None) -> TensorDiff:
    """The verdict on a name, by what each of the two has under it."""
    entries = [one for one in (old, new) if one is not None]
    values = [one.value for one in entries]
    kind = ADDED if old is None else REMOVED
    if len(values) == 2:
        is_unread = any(isinstance(value, Unreadable) for value in values)
        is_same = values[0] == values[1] and (not is_unread or state.sides.are_same_files())
        kind = SAME if is_same else UNDECIDED if is_unread else CHANGED
    if kind != SAME and all(one.role == GRAPH for one in entries):
        kind = GRAPH
    said = [(_why(old), "A"), (_why(new), "B")]
    whys = dict.fromkeys(why for why, _ in said if why)
    how = ", ".join(f"{why} in {' and '.join(side for one, side in said if one == why)}" for why in whys)
    one, other = (_form(entry.value if entry else None) for entry in (old, new))
    return TensorDiff(
        kind, (name,) if old else (), (name,) if new else (), (one[0], other[0]), (one[1], other[1]),
        how="" if kind == SAME else how,
    )  # fmt: skip


def _why(entry: Entry | None) -> str:
    """Why a tensor has no bytes to compare; "" where it has."""
    match entry.value if entry else None:
        case NoData(why=why):
            return f"no data ({why})"
        case Unreadable(needs=needs):
            return f"not read (needs {needs})"
    return ""


def _form(value: Value | None) -> tuple[str, Shape | None]:
    """The type and the shape, where both are known."""
    return (value.dtype.name, value.shape) if isinstance(value, View | NoData) else ("", None)
