"""Which parameter each entry of an optimizer belongs to: proved, or not.

A binding by order assumes that an optimizer was given its parameters in the order of the model, some left out, in
groups; it is unique if exactly one way to do so fits the shapes of the state (`PlaceSearch`).

Without an order, each entry is a group by itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import NamedTuple

from paramtool.errors import plural
from paramtool.grouping import connected, grouped
from paramtool.model.optimizer import Binding, EntryKey, How, OptimizerState, Order, Parameter, StateEntry
from paramtool.model.view import Shape, Shapes
from paramtool.passes.optimizer import order as trainers
from paramtool.passes.optimizer.slots import FLAT, ExpectedShape, expected_shape
from paramtool.passes.select import WRAPPERS, wrapper

_WRAPPED = (*WRAPPERS, "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Parts of names that wrappers put anywhere: torch/distributed/fsdp/_common_utils.py,
torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py of torch 2.13."""
PARAM_NAMES = "param_names"
"""The source of a binding by the names in torch's groups."""
Given = tuple[Mapping[EntryKey, str], How, str]
"""Names that somebody gives, how, and where."""


def bind(
    state: OptimizerState, orders: Sequence[Order], shapes: Shapes, trainer: bool = False, given: Given | None = None
) -> Binding:
    """Bind an optimizer by given names, else by its own, else by an order of parameters, else by shapes alone.

    `orders` are those of the models that it may belong to, the surest first; `shapes` are those of the tensors of the
    optimizer.  With `trainer`, its groups are those of the Trainer of transformers, if they can be.  `defects` of the
    result say what does not fit.
    """
    asked = entries_of(state, shapes)
    complete = [order for order in orders if not order.missing]
    if given is not None:
        return _named(asked, given[0], complete, *given[1:])
    by_key: dict[EntryKey, str] = {key: key for key in asked.keys if isinstance(key, str)}
    if by_key and len(by_key) == len(asked.keys):
        return _named(asked, by_key, complete, "names", "the names of its entries")
    if state.param_names and (found := _by_param_names(asked, state.param_names, complete)):
        return found
    if not complete:
        missing = orders[0].missing if orders else "no model is known that it belongs to"
        return Binding(state, {}, "shapes", missing, False)
    return _by_order(asked, complete, trainer)


# By names


def _by_param_names(asked: Entries, names: Mapping[EntryKey, str], orders: Sequence[Order]) -> Binding | None:
    """The binding by `param_names`, or what is wrong with them; None where they are all of another model.

    torch keeps the names that it loads (`load_state_dict` in torch/optim/optimizer.py of torch 2.13).
    """
    if defects := tuple(_unclear(asked, names)):
        found = Binding(asked.state, {}, "names", PARAM_NAMES, False, defects=defects)
    else:
        found = _named(asked, names, orders, "names", PARAM_NAMES)
    return found if found.is_unique or (found.defects and _knows(orders, names.values())) else None


def _knows(orders: Sequence[Order], names: Collection[str]) -> bool:
    """Whether a model has one of these names, in wrappers or not."""
    said = {*names, *map(_unwrapped, names)}
    known = {name for order in orders for name in (*(one.name for one in order.parameters), *order.aliases)}
    return not said.isdisjoint({*known, *map(_unwrapped, known)})


def _unclear(asked: Entries, names: Mapping[EntryKey, str]) -> Iterator[str]:
    """What is wrong with names that do not give each entry one of its own."""
    taken: dict[str, EntryKey] = {}
    for key in asked.keys:
        if key not in names:
            yield f"{entry_text(asked, key)}: no name, although others have `param_names`"
        elif (first := taken.setdefault(names[key], key)) != key:
            yield f"{entry_text(asked, key)}: is of {names[key]!r}, as entry {first!r} is"


def _named(asked: Entries, names: Mapping[EntryKey, str], orders: Sequence[Order], how: How, source: str) -> Binding:
    """The binding to the parameters that have these names, in the first model that has all of them."""
    state = asked.state
    if not orders:
        return Binding(state, dict(names), how, f"{source}; no model to compare them with", True)
    tried = [_in_order(asked, names, order) for order in orders]
    fitting = [(order, found) for order, (found, defects) in zip(orders, tried, strict=True) if not defects]
    if not fitting:
        fewest = min((defects for _, defects in tried), key=len)
        return Binding(state, {}, how, source, False, defects=tuple(fewest))
    order, found = fitting[0]
    if others := {other.section for other, _ in fitting} - {order.section}:
        sections = ", ".join(sorted({order.section, *others}))
        return Binding(state, {}, how, f"{source} fit several sections: {sections}", False)
    return _bound(asked, found, order, how, source)


def _in_order(asked: Entries, names: Mapping[EntryKey, str], order: Order) -> tuple[dict[EntryKey, str], list[str]]:
    """Each entry with the parameter that has its name; and what does not fit."""
    table = {parameter.name: parameter for parameter in order.parameters}
    table |= {alias: replace(table[first], name=alias) for alias, first in order.aliases.items() if first in table}
    said = _translated([names[key] for key in asked.keys if key in names], table)
    found: dict[EntryKey, str] = {}
    taken: dict[str, EntryKey] = {}
    defects = []
    for entry, expected in zip(asked.state.entries, asked.expected, strict=True):
        key = entry.key
        name = said.get(names.get(key, ""), "")
        if name not in table:
            has = f"state for {names[key]!r}, which the model does not have" if key in names else "no name"
            defects.append(f"{entry_text(asked, key)}: {has}")
            continue
        if not expected.allows(shape := table[name].shape):
            defects.append(f"{entry_text(asked, key)}: has {shown_slots(asked, entry)}; {name!r} is {list(shape)}")
        first = taken.setdefault(order.aliases.get(name, name), key)
        if first != key:
            defects.append(f"{entry_text(asked, key)}: is of {name!r}, as entry {first!r} is")
        found[key] = name
    return found, defects


def _translated(names: Sequence[str], table: Mapping[str, Parameter]) -> dict[str, str]:
    """{name: the name of the model}: the same, without wrappers, or below a module that holds the whole model."""
    outer, inner = wrapper(names), wrapper(list(table))
    for strip in (str, lambda name: name.removeprefix(outer), _unwrapped):
        own = {name: strip(name) for name in names}
        for holder in dict.fromkeys(("", inner, *_holder([*own.values()], table))):
            if all(holder + name in table for name in own.values()):
                return {name: holder + one for name, one in own.items()}
    return {name: name for name in names}


def _holder(names: Sequence[str], table: Mapping[str, Parameter]) -> list[str]:
    """The prefix under which the model has all of the names, if there is one: Lightning keeps models in attributes."""
    first = names[0] if names else ""
    found = [name.removesuffix(first) for name in table if first and name.endswith(f".{first}")]
    fitting = [prefix for prefix in found if all(prefix + name in table for name in names)]
    return fitting if len(fitting) == 1 else []


def _unwrapped(name: str) -> str:
    for part in _WRAPPED:
        name = f".{name}".replace(f".{part}", ".").removeprefix(".")
    return name


def _bound(asked: Entries, names: Mapping[EntryKey, str], order: Order, how: How, source: str) -> Binding:
    """A unique binding to the parameters of an order."""
    state = replace(asked.state, section=order.section)
    taken = {order.aliases.get(name, name) for name in names.values()}
    unbound = tuple(parameter.name for parameter in order.parameters if parameter.name not in taken)
    return Binding(state, names, how, source, True, unbound=unbound)


# By order


class _Placings(NamedTuple):
    """What one order of parameters allows."""

    order: Order
    source: str
    names: dict[EntryKey, str]
    """Those that are sure."""
    candidates: Callable[[int], set[str]] | None
    """The parameters that an entry can have, by its position; None where none are left."""
    sets: tuple[tuple[str, ...], ...] = ()


def _by_order(asked: Entries, complete: Sequence[Order], trainer: bool) -> Binding:
    """The binding by the first order that allows only one, if no other contradicts it; else by shapes alone."""
    known = [_placed(asked, order, trainer) for order in complete if order.is_known]
    if found := _settled(asked, known, "order"):
        return found
    loose = [_search(asked, order, [[k] for k in range(len(asked.keys))], ()) for order in complete]
    if found := _settled(asked, loose, "shapes"):
        return found
    known, loose = ([one for one in tried if one.candidates is not None] for tried in (known, loose))
    if known or loose:
        one = (known or loose)[0]
        why = one.source if known or not one.order.is_known else f"that of {one.source} does not fit"
        return Binding(asked.state, one.names, "order" if known else "shapes", why, False, one.sets)
    defects = min(([*contradictions(asked, order)] for order in complete), key=len)
    return Binding(asked.state, {}, "order", complete[0].source, False, defects=tuple(defects))


def _settled(asked: Entries, tried: Sequence[_Placings], how: How) -> Binding | None:
    """The first unique binding, unless another order contradicts it; None where none is unique."""
    first = next((one for one in tried if one.candidates is not None and not one.sets), None)
    if first is None:
        return None
    for other in tried:
        if other is first or other.candidates is None or not asked.keys:
            continue
        if other.order.section != first.order.section:
            sections = first.order.section, other.order.section
            named = " and ".join(repr(name) if name else "the top" for name in sections)
            return Binding(asked.state, {}, "order", f"its entries fit the sections {named}", False)
        pairs = ((first.names[key], other.candidates(k)) for k, key in enumerate(asked.keys))
        if sets := tuple((name, *sorted(allowed)) for name, allowed in pairs if name not in allowed):
            source = f"{first.source} and {other.source}, which differ"
            return Binding(asked.state, {}, "order", source, False, sets)
    return _bound(asked, first.names, first.order, how, first.source)


def _placed(asked: Entries, order: Order, trainer: bool) -> _Placings:
    """What a known order allows, with the Trainer's groups where they fit."""
    groups: list[list[int]] = [[] for _ in asked.state.groups]
    for k, entry in enumerate(asked.state.entries):
        groups[entry.group].append(k)
    allowed = trainers.allowed(order, [len(group) for group in groups]) if trainer else ()
    if allowed:
        found = _search(asked, order, groups, allowed)
        if found.candidates is not None:
            return found._replace(source=f"{order.source}, in the Trainer's two groups")
    return _search(asked, order, groups, ())


def _search(
    asked: Entries, order: Order, groups: Sequence[Sequence[int]], allowed: Sequence[Callable[[Parameter], bool]]
) -> _Placings:
    """What an order allows; with `allowed`, each group has only some of the parameters."""
    kinds = [
        (expected, entry.group if allowed else 0)
        for entry, expected in zip(asked.state.entries, asked.expected, strict=True)
    ]
    shapes = {one.shape for one in order.parameters}  # there are few
    places: dict[tuple[ExpectedShape, int], list[int]] = {}
    for expected, group in dict.fromkeys(kinds):
        fitting = {*filter(expected.allows, shapes)}
        places[expected, group] = [
            j for j, one in enumerate(order.parameters) if one.shape in fitting and (not allowed or allowed[group](one))
        ]
    numbers = {kind: k for k, kind in enumerate(places)}
    search = PlaceSearch([numbers[kind] for kind in kinds], list(places.values()), groups, len(order.parameters))
    nothing = _Placings(order, order.source, {}, None)
    if not search.run():
        return nothing
    named = [parameter.name for parameter in order.parameters]
    names = {asked.keys[k]: named[place] for k, place in enumerate(search.fixed) if place >= 0}
    sets = tuple(tuple(named[j] for j in places) for places in search.components())
    if not sets and not _is_flat_length(asked, [order.parameters[j].shape for j in search.fixed]):
        return nothing
    return _Placings(order, order.source, names, lambda k: {named[j] for j in search.candidates(k)}, sets)


def _is_flat_length(asked: Entries, shapes: Iterable[Shape]) -> bool:
    """Whether the vectors that L-BFGS keeps over all parameters have as many elements as the parameters."""
    flat = [slot for entry in asked.state.entries for slot in entry.slots if slot.kind == "global" and slot.key in FLAT]
    lengths = {prod(asked.shapes[slot.tensor]) for slot in flat if slot.tensor in asked.shapes}
    return not lengths or lengths == {sum(map(prod, shapes))}


# --- The entries of an optimizer with what they say of their parameters' shapes, and which of them fit no parameter --


class Entries(NamedTuple):
    """An optimizer, and what its entries say of the shapes of their parameters."""

    state: OptimizerState
    expected: list[ExpectedShape]
    shapes: Shapes
    keys: list[EntryKey]


def entries_of(state: OptimizerState, shapes: Shapes) -> Entries:
    expected = [expected_shape(entry, shapes, state.masters.get(entry.key)) for entry in state.entries]
    return Entries(state, expected, shapes, [entry.key for entry in state.entries])


def contradictions(asked: Entries, order: Order) -> Iterator[str]:
    """Why nothing fits, for people: counts, and entries of which no parameter has the shape."""
    entries, parameters = asked.keys, order.parameters
    at = asked.state.at or "the optimizer"
    if len(entries) > len(parameters):
        many_entries = plural(entries, "entry", "entries")
        yield f"{at}: {many_entries}, more than the model's {plural(len(parameters), 'parameter')} ({order.source})"
    many = {parameter.shape for parameter in parameters}
    same = order.is_known and len(entries) == len(parameters)
    strange = [k for k, expected in enumerate(asked.expected) if not any(map(expected.allows, many))]
    for k in strange:
        wanted = f"; expected that of {parameters[k].name!r}, {list(parameters[k].shape)}" if same else ""
        has = shown_slots(asked, asked.state.entries[k])
        yield f"{entry_text(asked, entries[k])}: no parameter has the shape of {has}{wanted}"
    if not strange and len(entries) <= len(parameters):
        yield f"{at}: more entries of some shapes than the model has parameters of them"


def entry_text(asked: Entries, key: EntryKey) -> str:
    return f"{asked.state.at or 'the optimizer'}: entry {key!r}"


def shown_slots(asked: Entries, entry: StateEntry) -> str:
    """The slots of an entry that say what shape its parameter has."""
    found = [slot for slot in entry.slots if slot.tensor in asked.shapes and slot.kind != "scalar"]
    return ", ".join(f"{slot.key} {list(asked.shapes[slot.tensor])}" for slot in found)


# --- The places that entries of an optimizer can have in an order of parameters, by their kinds and their groups -----
#
# For each entry, `PlaceSearch` keeps the first and the last place that it can have.  Both come from the leftmost and
# the rightmost placing of its group, which agree exactly where one group has one placing; places that are taken are
# taken from the other groups.  For several groups this is sound, and may call ambiguous what is unique; it never
# calls unique what is not.


_PASSES = 200
"""The most rounds of the search; what is not settled after them counts as ambiguous."""


class PlaceSearch:
    """The places that entries can have in an order.

    `kinds` has the kind of each entry, and `places` the ascending places that entries of each kind can have.
    """

    def __init__(self, kinds: list[int], places: list[list[int]], groups: Sequence[Sequence[int]], count: int) -> None:
        self.kinds = kinds
        self.places = places
        self.groups = groups
        self.count = count
        self.low = [0] * len(kinds)
        self.high = [count - 1] * len(kinds)
        self.fixed = [-1] * len(kinds)
        self.free = [True] * count

    def run(self) -> bool:
        """Narrow all places as far as it goes; False where nothing fits."""
        if len(self.kinds) > self.count:
            return False
        is_full = len(self.kinds) == self.count
        for _ in range(_PASSES):
            before = (self.low[:], self.high[:], self.fixed[:])
            if not all(self._narrow(group, True) and self._narrow(group, False) for group in self.groups):
                return False
            if not self._fix([(k, low) for k, low in enumerate(self.low) if low == self.high[k] and self.fixed[k] < 0]):
                return False
            if is_full and not self._fix_full():
                return False
            if before == (self.low, self.high, self.fixed):
                break
        return True

    def _narrow(self, group: Sequence[int], is_left: bool) -> bool:
        """The smallest place of each entry of a group, in order, or the largest, from the last."""
        last = -1 if is_left else self.count
        for k in group if is_left else reversed(group):
            places = self.places[self.kinds[k]] if self.fixed[k] < 0 else [self.fixed[k]]
            if is_left:
                at = bisect_left(places, max(self.low[k], last + 1))
            else:
                at = bisect_right(places, min(self.high[k], last - 1)) - 1
            if not 0 <= at < len(places) or not self.low[k] <= places[at] <= self.high[k]:
                return False
            (self.low if is_left else self.high)[k] = last = places[at]
        return True

    def _fix(self, found: Iterable[tuple[int, int]]) -> bool:
        """Give entries their places, which no other entry then has; False where two have one."""
        changed = False
        for k, place in found:
            if not self.free[place]:
                return False
            self.free[place], changed = False, True
            self.fixed[k] = self.low[k] = self.high[k] = place
        if changed:
            self.places = [[j for j in places if self.free[j]] for places in self.places]
        return True

    def _fix_full(self) -> bool:
        """Where each place is taken: a place that one entry alone can have is its place; False where none can."""
        takers, who = [0] * self.count, [0] * self.count
        for (place, *_), many, total in self._takers():
            takers[place] += many
            who[place] += total
        open_places = [j for j in range(self.count) if self.free[j]]
        if any(not takers[j] for j in open_places):
            return False
        alone = {j: who[j] for j in open_places if takers[j] == 1}
        return len(set(alone.values())) == len(alone) and self._fix((k, j) for j, k in alone.items())

    def _takers(self, less: int = 0) -> Iterator[tuple[list[int], int, int]]:
        """[(a place of a kind and its next one, how many entries may have it, their sum)], without those that have one.

        With `less` 1, they are those that may have both.
        """
        steps = [([0] * (len(places) + 1), [0] * (len(places) + 1)) for places in self.places]
        for k, kind in enumerate(self.kinds):
            if self.fixed[k] < 0:
                start = bisect_left(self.places[kind], self.low[k])
                stop = bisect_right(self.places[kind], self.high[k]) - less
                for steps_of, step in zip(steps[kind], (1, k), strict=True):
                    steps_of[start] += step
                    steps_of[stop] -= step
        for places, (many, total) in zip(self.places, steps, strict=True):
            for j, (count, sum_of) in enumerate(zip(accumulate(many[:-1]), accumulate(total), strict=False)):
                yield places[j : j + 2], count, sum_of

    def candidates(self, k: int) -> list[int]:
        """The places that an entry can have."""
        if self.fixed[k] >= 0:
            return [self.fixed[k]]
        places = self.places[self.kinds[k]]
        return places[bisect_left(places, self.low[k]) : bisect_right(places, self.high[k])]

    def components(self) -> list[list[int]]:
        """Sets of places that entries without a place of their own share, each in order."""
        pairs = ((near[1], near[0]) for near, many, _ in self._takers(1) if many > 0)
        root = connected(self.count, pairs)
        used = sorted({near[0] for near, many, _ in self._takers() if many})
        return [*grouped((root[j], j) for j in used).values()]
