"""From an alias graph to a plan: every owner once, every name found again, and what has no form is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from paramtool.errors import PlanError
from paramtool.model import alias
from paramtool.model.alias import AliasGraph, Derived
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Module, NoData, Unreadable, Value
from paramtool.model.dtype import DTYPES
from paramtool.model.objects import Leaf, Mapping, TensorRef
from paramtool.model.plan import Copy, Plan, check, whole
from paramtool.model.view import View, contiguous
from paramtool.passes.dedup import plan as passes
from paramtool.passes.dedup.placement import join
from tests.examples import examples
from tests.passes.made import checkpoint, view
from tests.passes.test_dedup_placement import Bytes, checkpoints, classes, keeps, read

FLOAT, COMPLEX = DTYPES["float32"], DTYPES["complex64"]


def planned(made: Checkpoint, graph: AliasGraph | None = None, **options: bool) -> Plan:
    """The plan of a checkpoint, proved."""
    graph = graph or alias.build(made, parts=False)
    found = passes.plan(made, graph, **options)
    names = made.entries if not options else found.order
    check(found, names, made.storages)
    return found


def pending(kind: str, window: View) -> Entry:
    """A tensor whose sign was not carried out yet."""
    return Entry(Compound(kind, {"data": window}), requires_grad=True)


@settings(max_examples=examples(50), deadline=None)
@given(checkpoints(), keeps)
def test_what_is_written_is_what_was_read(found: tuple[Checkpoint, Bytes], keep: str) -> None:
    """Every target is filled once, and every name has its elements on one, by storage and by content."""
    made, data = found
    graph = alias.build(made, keep)
    for one in (graph, join(graph, classes(made, graph, data), keep)):
        plan = planned(made, one)
        assert list(plan.names) == list(made.entries) and {t.name for t in plan.targets} == set(one.owners)
        stored = {}
        for target in plan.targets:
            (copy,) = target.copies
            assert copy.is_plain and copy.destination == target.view
            stored[target.name] = read(copy.terms[0][1], data[int(copy.terms[0][1].storage)])
        assert plan.nbytes == sum(map(len, stored.values())) == one.stored_nbytes
        for name, member in plan.names.items():
            assert read(member.window, stored[member.owner]) == read(member.source, data[int(member.source.storage)])
            assert (member.alias_set, member.set_evidence) == (graph.names[name].alias_set, "storage")


def test_the_order_of_the_source() -> None:
    """Targets and names stand as in the file, whoever owns; a span where its first name is."""
    span = {"b": view(1, 4), "c": view(1, 4, offset=2)}
    made = checkpoint({"a": (4,), "z": view(3, 4), **span, "d": view(2, 4), "tied": view(0, 4)})
    graph = alias.build(made, "last")
    plan = planned(made, replace(graph, owners=dict(reversed(graph.owners.items()))))
    assert [target.name for target in plan.targets] == ["z", "paramtool.span/0", "d", "tied"]
    assert plan.order == ("a", "z", "b", "c", "d", "tied") and plan.anonymous == {"paramtool.span/0"}
    moved = planned(made, replace(graph, names=dict(reversed(graph.names.items()))))
    assert moved.order == plan.order


def test_what_goes_with_the_tensors() -> None:
    """Texts, the tree, networks and what is calculated, which is no target."""
    tree, modules = Mapping("dict", (("a", TensorRef("a")), ("epoch", Leaf(3)))), (Module("rnn", "torch"),)
    made = checkpoint({"a": (4,), "b": (4,)}, objects=tree)
    made = replace(made, metadata={"format": "pt"}, index_metadata={"total": 1}, modules=modules)
    derived = {"b": Derived(None, b"1234")}
    plan = planned(made, replace(alias.build(made), derived=derived))
    assert [target.name for target in plan.targets] == ["a"] and plan.derived == derived
    assert plan.names["b"].window == contiguous("b", FLOAT, (4,))
    assert (plan.objects, plan.metadata, plan.index_metadata, plan.modules) == (
        tree,
        {"format": "pt"},
        {"total": 1},
        modules,
    )
    assert plan.source == "made.safetensors"


@pytest.mark.parametrize("keep, owner", [("first", "c1"), ("last", "c2")])
def test_signs_are_carried_out_once_for_each_window(keep: str, owner: str) -> None:
    """Two conjugates of one window are one target, tied; another sign or window is another."""
    data, turned = view(0, 2, 3, dtype="complex64"), View(0, COMPLEX, 0, (3, 2), (1, 3))
    made = checkpoint(
        {"w": data, "c1": pending("conj", data), "n": pending("neg", data), "c2": pending("conj", data)}
        | {"t": pending("conj", turned)}
    )
    plan = planned(made, alias.build(made, keep, parts=False))
    assert {target.name for target in plan.targets} == {"w", owner, "n", "t"}
    assert {n: (m.owner, m.alias_set, m.evidence) for n, m in plan.names.items()} == {
        "w": ("w", "w", "storage"),
        "c1": (owner, "c1", "storage"),
        "n": ("n", "n", "storage"),
        "c2": (owner, "c1", "storage"),
        "t": ("t", "t", "storage"),
    }
    assert plan.names["t"].window == contiguous("t", COMPLEX, (3, 2)) and plan.names["c2"].requires_grad
    signs = {t.name: [(copy.terms[0][0], copy.terms[0][1].offset) for copy in t.copies] for t in plan.targets}
    assert signs == {"w": [(1, 0)], owner: [(1, 0), (-1, 1)], "n": [(-1, 0), (-1, 1)], "t": [(1, 0), (-1, 1)]}
    real = planned(checkpoint({"w": (4,), "n": pending("neg", view(0, 4))}), None)
    assert real.targets[1].copies == (Copy(contiguous("n", FLOAT, (4,)), ((-1, view(0, 4)),)),)


NO_FORM: dict[str, tuple[Value, str]] = {
    "meta": (NoData(FLOAT, (4,)), r"'x': meta tensor, the file holds no data"),
    "unknown": (
        Unreadable("my.rebuild"),
        r"'x': cannot be read without running my\.rebuild, which paramtool never does",
    ),
    "sparse": (
        Compound("sparse_coo", {"indices": view(0, 2), "values": view(0, 2)}),
        "'x': sparse_coo .*indices, values",
    ),
}


@pytest.mark.parametrize("key", NO_FORM)
def test_what_has_no_form(key: str) -> None:
    """Refused by name with all its fellows; left out where that is asked for, and nothing else is."""
    value, words = NO_FORM[key]
    made = checkpoint({"w": (4,), "x": Entry(value), "v": (4,), "y": Entry(NoData(FLOAT, (1,)))})
    with pytest.raises(PlanError, match=f"2 tensors cannot be stored in the output(.|\n)*{words}(.|\n)*'y'") as caught:
        planned(made)
    assert "--skip-unsupported" in caught.value.hint and "'w'" not in str(caught.value)
    plan = planned(made, skip_unsupported=True)
    assert plan.order == ("w", "v") and [target.name for target in plan.targets] == ["w", "v"]
    with pytest.raises(PlanError, match=words):
        passes.plain(made, ["w", "x"])


def test_plain() -> None:
    """Each of the names that are asked for is a tensor of its own, also where the file ties or overlaps them."""
    made = checkpoint(
        {"w": (2, 3), "tied": view(0, 2, 3), "row": view(0, 3, offset=3), "n": pending("neg", view(0, 6)), "not": (4,)}
    )
    names = ["row", "tied", "w", "n"]
    plan = passes.plain(made, names)
    check(plan, names, made.storages)
    assert [target.name for target in plan.targets] == names == list(plan.names)
    assert plan.targets[0] == whole("row", view(0, 3, offset=3)) and plan.aliases == ()
    assert [member.alias_set for member in plan.names.values()] == names
    assert plan.targets[3].copies[0].terms == ((-1, view(0, 6)),)


def test_a_plan_that_leaves_something_out_is_refused() -> None:
    """`check` sees a name that is lost, a window outside its owner, and a target that is gone."""
    made = checkpoint({"w": (4,), "tied": view(0, 4), "v": (4,)})
    plan = planned(made)
    fewer = {name: one for name, one in plan.names.items() if name != "tied"}
    outside = plan.names["tied"]._replace(window=contiguous("w", FLOAT, (4,), 1))
    for wrong in (
        replace(plan, names=fewer),
        replace(plan, names={**plan.names, "tied": outside}),
        replace(plan, targets=plan.targets[:1]),
        replace(plan, targets=(*plan.targets, plan.targets[0])),
    ):
        with pytest.raises(PlanError):
            check(wrong, made.entries, made.storages)
