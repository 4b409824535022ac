"""The states of optax and Gluon, and numbers that follow the parameters: trees by hand, without the libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.objects import EMPTY, Leaf, Mapping, Node, Opaque, Sequence, TensorRef
from paramtool.model.optimizer import Binding, Group, MovedState, NumberedSlots, OptimizerState, Slot, StateEntry
from paramtool.model.plan import whole
from paramtool.model.storage import SourceFile
from paramtool.model.view import contiguous
from paramtool.passes.optimizer import gluon, move, optax
from paramtool.passes.optimizer.read import shapes_of


def tree(**items: Node) -> Mapping:
    """A dict of flax's."""
    return Mapping("dict", tuple(items.items()))


def tensors(at: str, **shapes: tuple[int, ...]) -> Mapping:
    """A dict of tensors, which are called by their paths."""
    return tree(**{name: TensorRef(f"{at}/{name}") for name in shapes})


SHAPES = {"w": (2, 3), "mu": (3,), "b": (3,)}
"""Of parameters, one of which is called as a field of Adam's state."""


def checkpoint(opt: Mapping, more: dict[str, tuple[int, ...]]) -> Checkpoint:
    """A training of flax's with this state, of whose tensors `more` has the shapes."""
    shapes = {**{f"params/{name}": shape for name, shape in SHAPES.items()}, **more}
    entries = {
        name: Entry(contiguous(k, DTYPES["float32"], shape), "optimizer" if name.startswith("opt/") else "model")
        for k, (name, shape) in enumerate(shapes.items())
    }
    objects = tree(params=tensors("params", **SHAPES), opt=opt)
    return Checkpoint("msgpack", (SourceFile("m.msgpack", 0, 0),), {}, entries, objects=objects)


def moments(at: str, **changed: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """{tensor: shape} of a tree of the parameters."""
    return {f"{at}/{name}": shape for name, shape in {**SHAPES, **changed}.items()}


class TestOptax:
    """Mappings that have the names of the parameters."""

    def test_fields_are_no_parameters(self) -> None:
        opt = tree(**{"0": tree(count=TensorRef("opt/0/count"), mu=tensors("opt/0/mu", **SHAPES),
                                nu=tensors("opt/0/nu", **SHAPES)), "1": EMPTY})  # fmt: skip
        found = checkpoint(opt, {"opt/0/count": (), **moments("opt/0/mu"), **moments("opt/0/nu")})
        (state,) = optax.states(found, shapes_of(found))
        kept = {entry.key: [(slot.key, slot.kind, slot.tensor) for slot in entry.slots] for entry in state.entries}
        assert kept == {
            f"params/{name}": [("0/mu", "first", f"opt/0/mu/{name}"), ("0/nu", "second", f"opt/0/nu/{name}")]
            for name in SHAPES
        }
        assert not state.refused

    def test_a_masked_parameter_has_no_state(self) -> None:
        opt = tree(trace=tree(w=TensorRef("opt/trace/w"), mu=EMPTY, b=TensorRef("opt/trace/b")))
        found = checkpoint(opt, {"opt/trace/w": (2, 3), "opt/trace/b": (3,)})
        (state,) = optax.states(found, shapes_of(found))
        assert {entry.key: len(entry.slots) for entry in state.entries} == {
            "params/w": 1, "params/mu": 0, "params/b": 1,
        }  # fmt: skip

    @pytest.mark.parametrize("lost", ["w", "b"])
    def test_a_tree_that_lacks_a_name_is_none(self, lost: str) -> None:
        rest = {name: shape for name, shape in SHAPES.items() if name != lost}
        opt = tree(mu=tensors("opt/mu", **rest), nu=tensors("opt/nu", **SHAPES))
        found = checkpoint(opt, {**{f"opt/mu/{name}": shape for name, shape in rest.items()}, **moments("opt/nu")})
        (state,) = optax.states(found, shapes_of(found))
        assert {slot.key for entry in state.entries for slot in entry.slots} == {"nu"}
        assert "have not the name of a parameter" in state.refused

    def test_another_shape_is_of_no_known_kind(self) -> None:
        opt = tree(mu=tensors("opt/mu", **SHAPES))
        found = checkpoint(opt, moments("opt/mu", w=(10, 2, 3)))
        (state,) = optax.states(found, shapes_of(found))
        assert {entry.key: entry.slots[0].kind for entry in state.entries}["params/w"] == "unknown"

    def test_new_parameters_are_in_every_tree(self) -> None:
        node = tree(mu=tensors("opt/mu", **SHAPES), nu=tree(w=TensorRef("opt/nu/w"), mu=EMPTY, b=EMPTY))
        new = {("w",): [("x", "w")], ("mu",): [], ("b",): [("b",)]}
        held = {("mu", ("x", "w")): "opt/mu/x/w", ("mu", ("b",)): "opt/mu/b", ("nu", ("x", "w")): "opt/nu/x/w"}
        kept = {place: TensorRef(name) for place, name in held.items()}
        assert optax.rebuilt(node, new, kept) == tree(
            mu=tree(x=tree(w=TensorRef("opt/mu/x/w")), b=TensorRef("opt/mu/b")),
            nu=tree(x=tree(w=TensorRef("opt/nu/x/w")), b=EMPTY),
        )


def test_numbers_follow_in_every_block() -> None:
    """One parameter becomes two: two slots by turns, then a block of a third one, and a number at the end."""
    one = NumberedSlots("v/", tuple(f"v/{k}" for k in range(9)), 2, (("m", "v"), ("h",)), 1)
    assert (one.count, one.singles) == (2, ("v/0", "v/1", "v/8"))
    held: list[list[Slot]] = [[], []]
    for at, k, slot in one.places(2):
        held[k].append(Slot(slot, "first", one.names[at]))
    entries = tuple(StateEntry(k, 0, tuple(slots)) for k, slots in enumerate(held))
    state = OptimizerState("v", "keras", "", entries, (Group((0, 1), EMPTY),), numbered=(one,))
    bound = Binding(state, {0: "a", 1: "b"}, "order", "it", True)
    made = checkpoint(EMPTY, {})
    found = MovedState(EMPTY)
    moving = move.Moving(made, bound, (), {}, move.NOTHING_SAID, made, None, found)
    view = contiguous(0, DTYPES["float32"], (1,))
    new = (*(move.NewEntry(name, {slot: whole("", view) for slot in "mvh"}) for name in "xy"),)
    node, names = moving.write_numbers({0: new})
    assert names == {0: "x", 1: "y", 2: "b"}
    assert found.renamed == {"v/4": "v/6", "v/5": "v/7", "v/7": "v/10", "v/8": "v/11"}
    assert [target.name for target in found.targets] == ["v/2", "v/3", "v/4", "v/5", "v/8", "v/9"]
    assert node == tree(**{str(k): TensorRef(f"v/{k}") for k in range(12)})


class TestGluon:
    """The states of a Trainer."""

    @staticmethod
    def state(name: str, node: Node, **settings: object) -> Checkpoint:
        """A file with the state of entry 3."""
        items = tuple((key, Leaf(value)) for key, value in settings.items())  # type: ignore[arg-type]
        optimizer = Opaque(f"{gluon.OPTIMIZERS}.{name}", (("state", Mapping("dict", items)),))
        objects = Sequence("tuple", (Mapping("dict", ((3, node),)), optimizer))
        found = checkpoint(EMPTY, {})
        return replace(found, format=gluon.NAME, objects=objects, entries={})

    @pytest.mark.parametrize(
        ("name", "is_first"), [("Adam", True), ("AdaGrad", True), ("SGD", False), ("NAG", False), ("LARS", False)]
    )
    def test_the_float32_copy_is_where_its_class_has_it(self, name: str, is_first: bool) -> None:
        kept: Node = Sequence("tuple", (TensorRef("m"), TensorRef("v"))) if name == "Adam" else TensorRef("m")
        pair = (TensorRef("copy"), kept) if is_first else (kept, TensorRef("copy"))
        found = self.state(name, Sequence("tuple", pair), multi_precision=True)
        (state,) = gluon.states(found, {})
        assert state.masters == {3: "copy"} and not state.refused
        assert [slot.tensor for slot in state.entries[0].slots] == (["m", "v"] if name == "Adam" else ["m"])

    def test_two_slots_of_a_float32_parameter_are_no_copy(self) -> None:
        found = self.state("Adam", Sequence("tuple", (TensorRef("m"), TensorRef("v"))), multi_precision=True)
        (state,) = gluon.states(found, {})
        assert not state.masters and [slot.key for slot in state.entries[0].slots] == ["mean", "var"]

    def test_a_state_of_another_form_is_refused(self) -> None:
        (state,) = gluon.states(self.state("Adam", TensorRef("m")), {})
        assert "what it keeps for '3' is not known" in state.refused

    def test_names_in_another_form_have_no_order(self) -> None:
        """`save_parameters` calls parameters after attributes."""
        model = replace(checkpoint(EMPTY, {}), format="mxnet V2")
        assert gluon.order(model) is not None
        entries = {name.replace("/", "."): entry for name, entry in model.entries.items()}
        assert gluon.order(replace(model, entries=entries)) is None
