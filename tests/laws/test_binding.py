"""Binding an optimizer's entries to parameters: what is called unique is right, and is the only possibility.

A model has parameters of few shapes, some of which are aliases, buffers or frozen; an optimizer has the others in
groups, each in the order of the model.  Brute force places the entries in every possible way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from paramtool.model.objects import EMPTY
from paramtool.model.optimizer import Binding, Group, OptimizerState, Order, Parameter, Slot, StateEntry
from paramtool.passes.optimizer.bind import bind

SHAPES = ((2,), (3,), (2, 2))
MOST = 7
"""Entries, where brute force tries all."""


@dataclass(frozen=True)
class Case:
    """A model in an order, and an optimizer with what is true of it."""

    parameters: tuple[Parameter, ...]
    groups: tuple[tuple[int, ...], ...]
    truth: dict[int, str]
    stateless: frozenset[int]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of the optimizer's tensors."""
        there = {parameter.name: parameter.shape for parameter in self.parameters}
        return {f"m{key}": there[name] for key, name in self.truth.items() if key not in self.stateless}

    @property
    def state(self) -> OptimizerState:
        entries = tuple(
            StateEntry(key, k, () if key in self.stateless else (Slot("exp_avg", "first", f"m{key}"),))
            for k, group in enumerate(self.groups)
            for key in group
        )
        groups = tuple(Group(group, EMPTY) for group in self.groups)
        return OptimizerState("optimizer", "torch", "Adam", entries, groups)

    def bound(self, is_known: bool = True, trainer: bool = False) -> Binding:
        order = Order(self.parameters, "the order", is_known)
        return bind(self.state, [order], self.shapes, trainer)


@st.composite
def cases(draw: st.DrawFn, most: int = MOST, groups: int = 3) -> Case:
    """A model of up to `most` parameters, some of them frozen or buffers, and an optimizer of up to `groups` groups."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=most))
    parameters = tuple(Parameter(f"p{j}", shape) for j, shape in enumerate(shapes))
    where = draw(st.lists(st.integers(-1, groups - 1), min_size=len(shapes), max_size=len(shapes)))
    truth, members = {}, []
    for k in range(max([*where, 0]) + 1):
        keys = []
        for parameter, group in zip(parameters, where, strict=True):
            if group == k:
                keys.append(len(truth))
                truth[len(truth)] = parameter.name
        members.append(tuple(keys))
    stateless = draw(st.frozensets(st.sampled_from([*truth]), max_size=2)) if truth else frozenset()
    return Case(parameters, tuple(members), truth, stateless)


def placings(
    case: Case, groups: tuple[tuple[int, ...], ...], shapes: dict[str, tuple[int, ...]]
) -> Iterator[dict[int, str]]:
    """Every way to place the entries that keeps the order of each group."""
    if not groups:
        yield {}
        return
    *others, group = groups
    for before in placings(case, tuple(others), shapes):
        free = [parameter for parameter in case.parameters if parameter.name not in before.values()]
        for chosen in combinations(free, len(group)):
            pairs = [*zip(group, chosen, strict=True)]
            if all(shapes.get(f"m{key}", one.shape) == one.shape for key, one in pairs):
                yield before | {key: one.name for key, one in pairs}


@given(cases())
def test_a_unique_binding_is_right_and_the_only_one(case: Case) -> None:
    found = case.bound()
    every = [*placings(case, case.groups, case.shapes)]
    assert case.truth in every and not found.defects
    assert all(one.items() >= found.names.items() for one in every)
    if found.is_unique:
        assert found.names == case.truth and len(every) == 1
        there = {parameter.name for parameter in case.parameters}
        assert set(found.unbound) == there - set(case.truth.values())
    else:
        assert all(len(names) > 1 for names in found.ambiguous) and found.ambiguous


@given(cases(groups=1))
def test_one_group_is_unique_exactly_where_one_placing_fits(case: Case) -> None:
    assert case.bound().is_unique == (len([*placings(case, case.groups, case.shapes)]) == 1)


@given(cases())
def test_without_an_order_only_shapes_bind(case: Case) -> None:
    """Each entry is a group by itself."""
    found = case.bound(is_known=False)
    every = [*placings(case, tuple((key,) for key in case.truth), case.shapes)]
    assert found.is_unique == (len(every) == 1) or len(every) == 1
    assert not found.is_unique or found.names == case.truth == every[0]


@given(cases(), st.randoms(use_true_random=False))
def test_a_shuffled_order_that_is_called_known_never_gives_what_does_not_fit(case: Case, random: object) -> None:
    """The order is what is assumed: with a wrong one, what is bound still has the shapes, each parameter once."""
    shuffled = list(case.parameters)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = bind(case.state, [Order(tuple(shuffled), "the order", True)], case.shapes)
    there = {parameter.name: parameter.shape for parameter in shuffled}
    assert len(set(found.names.values())) == len(found.names)
    assert all(case.shapes.get(f"m{key}", there[name]) == there[name] for key, name in found.names.items())


@given(cases(), st.data())
def test_two_models_that_fit_are_ambiguous(case: Case, data: st.DataObject) -> None:
    """A generator and a discriminator of the same shapes: no order says whose optimizer it is."""
    orders = [Order(case.parameters, "the order", True, section) for section in ("a", "b")]
    found = bind(case.state, orders, case.shapes)
    assert found.is_unique == (not case.truth)


@given(cases(), st.integers(0, 20))
def test_an_entry_too_many_is_a_contradiction(case: Case, extra: int) -> None:
    keys = tuple(range(len(case.parameters) + 1 + extra))
    state = OptimizerState("", "torch", "", tuple(StateEntry(key, 0, ()) for key in keys), (Group(keys, EMPTY),))
    found = bind(state, [Order(case.parameters, "the order", True)], {})
    assert found.defects and not found.is_unique and not found.names


@given(cases(), st.data())
def test_names_bind_whatever_the_order(case: Case, data: st.DataObject) -> None:
    """With and without a wrapper, or below a module of the model; a shape that differs is a defect."""
    shuffled = data.draw(st.permutations(case.parameters))
    ours = data.draw(st.sampled_from(["", "net."]))
    theirs = data.draw(st.sampled_from(["", "module.", "_orig_mod."]))
    order = Order(tuple(Parameter(ours + one.name, one.shape) for one in shuffled), "the order", False)
    state = case.state
    groups = tuple(
        Group(one.keys, EMPTY, tuple(theirs + case.truth[int(key)] for key in one.keys)) for one in state.groups
    )
    named = OptimizerState("", "torch", "", state.entries, groups)
    found = bind(named, [order], case.shapes)
    if case.truth:
        assert (found.is_unique, found.how) == (True, "names")
        assert found.names == {key: ours + name for key, name in case.truth.items()}
