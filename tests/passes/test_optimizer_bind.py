"""`passes/optimizer`: reading an optimizer from a tree, the orders of its parameters, and the words of a proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paramtool.errors import Defects
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Section
from paramtool.model.objects import EMPTY, Leaf, Mapping, Node, Sequence, TensorRef
from paramtool.model.optimizer import Binding, Group, OptimizerState, Order, Parameter, Slot, StateEntry
from paramtool.passes.optimizer import copies, read, slots
from paramtool.passes.optimizer import order as orders
from paramtool.passes.optimizer.bind import bind, contradictions, entries_of
from paramtool.passes.optimizer.order import ClassParameter, ClassParameters
from paramtool.passes.optimizer.tree import LIST
from tests.passes.made import Tensors, checkpoint, view

Names = dict[str, tuple[int, ...]]
ADAM = ("step", "exp_avg", "exp_avg_sq")

ASSUMED = ", assuming the order of model.parameters()"


def node(value: object) -> Node:
    """Plain data as a tree; strings that begin with `@` are tensors."""
    if isinstance(value, dict):
        return Mapping("dict", tuple((key, node(child)) for key, child in value.items()))
    if isinstance(value, (list, tuple)):
        return Sequence("list" if isinstance(value, list) else "tuple", tuple(map(node, value)))
    if isinstance(value, str) and value.startswith("@"):
        return TensorRef(value[1:])
    assert value is None or isinstance(value, (int, float, str))
    return Leaf(value)


def saved(tree: dict[str, object], tensors: Tensors, form: str = "torch zip") -> Checkpoint:
    """A checkpoint with a tree; what it has under `model` and `optimizer` are sections."""
    sections = [
        Section(name, f"{name}.", role)
        for name, role in (("model", "model"), ("optimizer", "optimizer"))
        if name in tree
    ]
    return checkpoint(tensors, format=form, objects=node(tree), sections=sections)


def trained(model: Names, groups: list[list[str]], **more: object) -> Checkpoint:
    """A model, and Adam's state for those of its parameters that groups have, numbered as torch does."""
    tensors: dict[str, Entry] = {}
    for k, (name, shape) in enumerate(model.items()):
        tensors[f"model.{name}"] = Entry(view(k, *shape))
    state, listed, storage = {}, [], len(model)
    for names in groups:
        keys = []
        for name in names:
            key = len(state)
            keys.append(key)
            state[key] = {slot: f"@optimizer.state.{key}.{slot}" for slot in ADAM}
            for slot in ADAM:
                shape = () if slot == "step" else model[name]
                tensors[f"optimizer.state.{key}.{slot}"] = Entry(view(storage, *shape), role="optimizer")
                storage += 1
        listed.append({"lr": 0.1, "betas": [0.9, 0.99], "amsgrad": False, **more, "params": keys})
    tree = {"model": {name: f"@model.{name}" for name in model}, "optimizer": {"state": state, "param_groups": listed}}
    return saved(tree, tensors)


def order_of(names: list[str], shapes: Names) -> Order:
    """Parameters in the order of a list of names."""
    return Order(tuple(Parameter(name, shapes[name]) for name in names), "X", True)


def bound(one: Checkpoint, source: str = "the state dict's order") -> Binding:
    """The binding of its only optimizer to its section `model`."""
    (state,) = read.optimizers(one)
    return bind(state, [orders.of_checkpoint(one, "model", source)], read.shapes_of(one))


MODEL: Names = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (2, 3), "b.bias": (2,)}


def test_by_the_order_of_a_state_dict() -> None:
    found = bound(trained(MODEL, [list(MODEL)], decoupled_weight_decay=True))
    assert found.names == dict(enumerate(MODEL)) and found.optimizer.section == "model"
    assert found.optimizer.algorithm == "AdamW" and found.optimizer.at == "optimizer"
    assert (
        found.words == f"bound by order of the model's 4 parameters (the state dict's order) and their shapes{ASSUMED}"
    )


def test_what_is_frozen_makes_neighbours_of_one_shape_ambiguous() -> None:
    """Whether the first or the second of two weights is frozen does not show."""
    found = bound(trained(MODEL, [["a.weight", "a.bias", "b.bias"]]))
    assert found.is_unique and found.unbound == ("b.weight",), "the first weight comes before the first bias"
    found = bound(trained({**MODEL, "c": (7,)}, [["a.weight", "c"]]))
    assert found.ambiguous == (("a.weight", "b.weight"),) and found.names == {1: "c"}
    assert found.words == "ambiguous: 2 neighbours of one shape, several places fit in the state dict's order"
    found = bound(trained({**MODEL, "c": (7,)}, [["b.bias", "c"]]), "")
    assert found.words == "ambiguous: 2 neighbours of one shape, order not known (torch zip does not keep it)"


def test_frozen_parameters_are_named() -> None:
    found = bound(trained({"a": (2,), "b": (3,), "c": (2, 2)}, [["a", "c"]]))
    assert found.is_unique and found.unbound == ("b",)
    assert (
        found.words
        == f"bound by order of 2 of the model's 3 parameters (the state dict's order) and their shapes{ASSUMED}"
    )


def test_several_groups() -> None:
    """Weights and biases have shapes of their own; two groups of one shape have no order between them."""
    found = bound(trained(MODEL, [["a.weight", "b.weight"], ["a.bias", "b.bias"]]))
    assert list(found.names.values()) == ["a.weight", "b.weight", "a.bias", "b.bias"] and found.is_unique
    found = bound(trained(MODEL, [["b.weight", "a.bias"], ["a.weight", "b.bias"]]))
    assert not found.is_unique


def test_names_in_alphabetical_order_are_no_order() -> None:
    """A state dict that was loaded from safetensors and saved again has the bias before the weight."""
    found = bound(trained(dict(sorted(MODEL.items())), [list(MODEL)]))
    assert not found.is_unique and "alphabetical" in found.words


def test_aliases_are_one_parameter() -> None:
    one = trained({"emb": (5, 3), "fc": (3, 3)}, [["emb", "fc"]])
    tied = {**one.entries, "model.head": one.entries["model.emb"]}
    order = orders.of_checkpoint(
        checkpoint(tied, format="torch zip", sections=one.sections), "model", "the state dict's order"
    )
    assert order.aliases == {"head": "emb"} and [one.name for one in order.parameters] == ["emb", "fc"]
    (state,) = read.optimizers(one)
    found = bind(state, [order], read.shapes_of(one), given=({0: "head", 1: "fc"}, "given", "names.txt"))
    assert found.is_unique and found.names[0] == "head" and found.unbound == ()


def test_buffers_integers_and_state_of_others_are_left_out() -> None:
    made = checkpoint({
        "a": (2,), "n": Entry(view(1, 2, dtype="int64")), "bn.running_mean": Entry(view(2, 2), role="buffer"),
        "teacher.w": Entry(view(3, 2), role="ema"), "optimizer.x": Entry(view(4, 2), role="optimizer"),
    })  # fmt: skip
    assert [one.name for one in orders.of_checkpoint(made, None).parameters] == ["a", "teacher.w"]


def test_a_tensor_that_cannot_be_read_leaves_nothing_to_bind_to() -> None:
    made = checkpoint({"a": (2,), "q": Entry(Compound("quantized", {}))})
    order = orders.of_checkpoint(made, None, "the state dict's order")
    assert order.missing == "'q' is quantized"
    state = OptimizerState("", "torch", "", (StateEntry(0, 0, ()),), (Group((0,), EMPTY),))
    found = bind(state, [order], {})
    assert not found.is_unique and found.words == "not bound: 'q' is quantized"
    assert bind(state, [], {}).words == "not bound: no model is known that it belongs to"


def test_a_dict_of_old_python_has_no_order() -> None:
    one = trained(MODEL, [list(MODEL)])
    assert orders.is_ordered(one, "model")
    old = checkpoint(one.entries, format="torch stacked pickles", objects=one.objects, sections=one.sections)
    assert not orders.is_ordered(old, "model")


def test_a_folder_of_torch_keeps_the_order_of_nested_values_alone() -> None:
    """Without the places of values, names are in the order of the ranks that stored them."""
    one = trained(MODEL, [list(MODEL)])
    nested = checkpoint(one.entries, format="dcp", objects=one.objects, sections=one.sections)
    assert orders.is_ordered(nested, "model") and not orders.is_ordered(nested, None)
    names = Mapping("dict", tuple((name, TensorRef(name)) for name in one.entries))
    flat = checkpoint(one.entries, format="dcp", objects=names, sections=one.sections)
    assert not orders.is_ordered(flat, "model")


def test_sections_that_may_be_models() -> None:
    one = trained(MODEL, [list(MODEL)])
    assert orders.sections_of_models(one) == ("model",)
    assert orders.sections_of_models(checkpoint({"a": (2,)})) == (None,)
    nested = checkpoint(one.entries, sections=[Section("all", "", "model"), *one.sections])
    assert orders.sections_of_models(nested) == ("model",)


def test_several_sections_are_joined_under_whole_names() -> None:
    made = checkpoint({"g.a": (2,), "d.a": (3,)}, sections=[Section("g", "g.", "model"), Section("d", "d.", "model")])
    assert [one.name for one in orders.of_sections(made, ["d", "g"]).parameters] == ["d.a", "g.a"]


def test_the_class_decides_where_the_file_is_sorted() -> None:
    """By the first name that the file has; a parameter that one of the two lacks makes them different models."""
    made = checkpoint({"b": (2,), "emb": (3, 2), "head": view(1, 3, 2), "w": (2, 2)}, format="safetensors")
    file = orders.of_checkpoint(made, None)
    own = [(("w",), (2, 2), False), (("b",), (2,), False), (("head", "emb"), (3, 2), True)]
    said = ClassParameters("the class X", tuple(ClassParameter(*one) for one in own), frozenset())
    order = orders.of_class(said, file)
    assert [(one.name, one.decays) for one in order.parameters] == [("w", True), ("b", True), ("emb", False)]
    assert order.is_known and not order.missing and order.aliases == {"head": "emb"}
    assert orders.of_class(ClassParameters("it", said.parameters[1:], frozenset("w")), file).missing == ""
    assert orders.of_class(ClassParameters("it", said.parameters[1:], frozenset()), file).missing == "'w' is not in it"
    more = (*said.parameters, ClassParameter(("z",), (1,), False))
    assert orders.of_class(ClassParameters("it", more, frozenset()), file).missing == "'z' of it is not in the file"
    other = ClassParameter(("w",), (4,), False)
    missing = orders.of_class(ClassParameters("it", (other, *said.parameters[1:]), frozenset()), file).missing
    assert missing == "'w' is [2, 2], and [4] in it"


def test_the_class_has_in_one_tensor_what_its_files_hold_apart() -> None:
    """Such parameters have the names of the class; a file that lacks a part, or has more, is of another model."""
    made = checkpoint({"a": (2,), "e.0": (3,), "e.1": (3,)}, format="safetensors")
    own = (ClassParameter(("e",), (2, 3), False), ClassParameter(("b", "a"), (2,), False))
    said = ClassParameters("the class X", own, frozenset(), {"e.0": (3,), "e.1": (3,)})
    order = orders.of_class(said, orders.of_checkpoint(made, None))
    assert not order.missing and [(one.name, one.shape) for one in order.parameters] == [("e", (2, 3)), ("a", (2,))]
    assert order.aliases == {"b": "a"}
    fewer = checkpoint({"a": (2,), "e.0": (3,)}, format="safetensors")
    assert "'e' of the class X is not in the file" in orders.of_class(said, orders.of_checkpoint(fewer, None)).missing
    other = checkpoint({"a": (2,), "e.0": (3,), "e.1": (4,)}, format="safetensors")
    assert orders.of_class(said, orders.of_checkpoint(other, None)).missing


def decaying(names: list[tuple[str, bool | None]]) -> Order:
    return Order(tuple(Parameter(name, (2,), decays) for name, decays in names), "the class X", True)


def stateless(*counts: int) -> OptimizerState:
    """Groups of entries that show no shape."""
    groups, entries, key = [], [], 0
    for k, count in enumerate(counts):
        keys = tuple(range(key, key + count))
        entries += [StateEntry(one, k, ()) for one in keys]
        groups.append(Group(keys, EMPTY))
        key += count
    return OptimizerState("", "torch", "AdamW", tuple(entries), tuple(groups))


def test_the_groups_of_the_trainer() -> None:
    order = decaying([("a.weight", True), ("a.bias", False), ("ln.weight", False), ("b.weight", True)])
    found = bind(stateless(2, 2), [order], {}, trainer=True)
    assert list(found.names.values()) == ["a.weight", "b.weight", "a.bias", "ln.weight"]
    assert (
        found.words == f"bound by order of the model's 4 parameters (the class X, in the Trainer's two groups){ASSUMED}"
    )
    assert not bind(stateless(2, 2), [order], {}).is_unique
    assert not bind(stateless(2, 1), [order], {}, trainer=True).is_unique
    assert bind(stateless(4), [order], {}, trainer=True).is_unique


def test_where_the_numbers_are_not_those_of_the_rule_only_biases_are_sure() -> None:
    order = decaying([("norm.weight", False), ("a.bias", False), ("a.weight", True)])
    first, second = orders.allowed(order, (1, 1))
    assert [[allows(one) for one in order.parameters] for allows in (first, second)] == [
        [True, False, True],
        [True] * 3,
    ]
    assert orders.allowed(order, (3,)) == ()


def test_two_orders_that_differ_are_ambiguous() -> None:
    one = Order((Parameter("a", (2,)), Parameter("b", (2,))), "the class X", True)
    other = Order(one.parameters[::-1], "the state dict's order", True)
    found = bind(stateless(2), [one, other], {})
    assert not found.is_unique and found.ambiguous == (("a", "b"), ("b", "a"))
    assert "the class X and the state dict's order, which differ" in found.words
    assert bind(stateless(2), [one, one], {}).is_unique


def test_two_models_of_one_form_are_not_told_apart() -> None:
    here = [Order((Parameter("w", (2,)),), "the state dict's order", True, section) for section in ("net_g", "net_d")]
    found = bind(stateless(1), here, {})
    assert found.words == "not bound: its entries fit the sections 'net_g' and 'net_d'"
    named = bind(stateless(1), here, {}, given=({0: "w"}, "names", "param_names"))
    assert not named.is_unique and "several sections" in named.words


def test_contradictions_are_named() -> None:
    model = trained(MODEL, [list(MODEL)])
    (state,) = read.optimizers(model)
    fewer = order_of(["a.weight", "a.bias", "b.weight"], MODEL)
    found = bind(state, [fewer], read.shapes_of(model))
    assert found.defects == ("optimizer: 4 entries, more than the model's 3 parameters (X)",)
    other = order_of(["w", *list(MODEL)[1:]], {**MODEL, "w": (9,), "b.weight": (9,)})
    found = bind(state, [other], read.shapes_of(model))
    shapes = "exp_avg [2, 3], exp_avg_sq [2, 3]"
    assert found.defects[0] == f"optimizer: entry 0: no parameter has the shape of {shapes}; expected that of 'w', [9]"
    assert found.words == f"not bound: {found.defects[0]} (and 1 more)"
    assert tuple(contradictions(entries_of(state, read.shapes_of(model)), other)) == found.defects


def named(names: list[str], model: Names) -> Binding:
    """Entries with keys that are names, and their moments."""
    entries = tuple(StateEntry(name, 0, (Slot("exp_avg", "first", name),)) for name in names)
    state = OptimizerState("optim", "dcp", "", entries, (Group(tuple(names), EMPTY),))
    return bind(state, [order_of(list(model), model)], dict.fromkeys(names, (2, 3)))


def test_names_of_entries() -> None:
    assert named(["b.weight", "a.weight"], MODEL).words == "bound by names (the names of its entries)"
    wrapped = ["_orig_mod.a._fsdp_wrapped_module.weight", "_orig_mod.b._checkpoint_wrapped_module.weight"]
    assert list(named(wrapped, MODEL).names.values()) == ["a.weight", "b.weight"]
    assert named(["a.weight", "x"], MODEL).defects == (
        "optim: entry 'x': state for 'x', which the model does not have",
    )
    assert named(["a.bias"], MODEL).defects == ("optim: entry 'a.bias': has exp_avg [2, 3]; 'a.bias' is [2]",)


def test_param_names_bind_and_are_passed_over_where_they_are_of_another_model() -> None:
    """torch keeps the names that it loads, also those of another model."""
    one = trained(MODEL, [list(MODEL)], param_names=["b.weight", "b.bias", "a.weight", "a.bias"])
    found = bound(one)
    assert found.how == "names" and found.names[0] == "b.weight" and found.words == "bound by names (param_names)"
    found = bound(trained(MODEL, [list(MODEL)], param_names=["x", "y", "z", "w"]))
    assert found.how == "order" and found.is_unique


def test_param_names_that_contradict_the_model_or_each_other_are_defects() -> None:
    """Those that are partly of the model are not of another one: nothing is assumed instead."""
    found = bound(trained(MODEL, [list(MODEL)], param_names=["a.weight"] * 4))
    assert not found.names and found.defects[0] == "optimizer: entry 1: is of 'a.weight', as entry 0 is"
    found = bound(trained(MODEL, [list(MODEL)], param_names=["b.weight", "a.bias", "a.weight", "head.bias"]))
    assert found.defects == ("optimizer: entry 3: state for 'head.bias', which the model does not have",)
    found = bound(trained(MODEL, [list(MODEL)], param_names=["a.bias", "a.weight", "b.weight", "b.bias"]))
    assert found.defects[0] == "optimizer: entry 0: has exp_avg [2, 3], exp_avg_sq [2, 3]; 'a.bias' is [2]"


def test_lbfgs_has_one_vector_over_all_parameters() -> None:
    """Its length says whether the parameters are all of them."""
    state = {0: {"d": "@d", "t": 0.1, "prev_flat_grad": "@g", "old_dirs": ["@o"]}}
    groups = [{"history_size": 10, "tolerance_grad": 0.1, "params": [0, 1]}]
    for length, fits in ((5, True), (4, False)):
        tree = {"model": {"a": "@model.a", "b": "@model.b"}, "optimizer": {"state": state, "param_groups": groups}}
        one = saved(tree, {"model.a": (2,), "model.b": (3,), "d": (length,), "g": (length,), "o": (length,)})
        found = bound(one)
        assert found.is_unique == fits and found.optimizer.algorithm == "LBFGS"
        assert {slot.kind for slot in found.optimizer.entries[0].slots} == {"global"}


# Reading


def optimizer(state: object, groups: object, tensors: Tensors | None = None, **beside: object) -> OptimizerState:
    (found,) = read.optimizers(
        checkpoint(tensors or {}, objects=node({"state": state, "param_groups": groups, **beside}))
    )
    return found


@pytest.mark.parametrize(("state", "groups", "words"), [
    ({3: {}}, [{"params": [0]}], "`state` has 1 entry that no group has: 3; the groups have 1 entry"),
    ({}, [{"params": [0]}, {"params": [1, 0]}], "entry 0 is in groups 0 and 1"),
    ({}, [{"params": [0, 0]}], "entry 0 is in group 0 twice"),
    ({}, [{"lr": 1}], "group 0 has no list `params`"),
    ({}, [{"params": [0.5]}], "`params` of group 0 are not all numbers or names"),
    ({}, [{"params": [0], "param_names": ["a", "b"]}], "group 0 has 2 `param_names` for 1 entry"),
    ({}, {"params": []}, "`param_groups` is not a list"),
    ({"x": {}}, [{"params": ["a"]}], "that no group has: 'x'"),
])  # fmt: skip
def test_an_optimizer_that_contradicts_itself(state: object, groups: object, words: str) -> None:
    with pytest.raises(Defects) as caught:
        optimizer(state, groups)
    assert words in str(caught.value) and caught.value.exit_code == 3


def test_all_contradictions_are_gathered() -> None:
    with pytest.raises(Defects) as caught:
        optimizer({3: {}}, [{"params": [0]}, {"params": [0]}])
    assert len(caught.value.defects) == 2


def test_wherever_it_is_in_the_tree() -> None:
    """Lightning's list, and optimizers inside other mappings; nothing else is one."""
    one = {"state": {}, "param_groups": [{"params": [0]}]}
    tree = node({"optimizer_states": [one, one], "app": {"optim": one}, "state": {"x": 1}, "state.x": 3})
    assert [found.at for found in read.optimizers(checkpoint({}, objects=tree))] == [
        "optimizer_states.0", "optimizer_states.1", "app.optim",
    ]  # fmt: skip


def test_kinds_of_slots() -> None:
    """A slot that is no plain tensor is unknown; a plain value is kept as it is."""
    tensors: Tensors = {"m": (2,), "k": (2, 2), "q": Entry(Compound("quantized", {}))}
    state = {0: {"exp_avg": "@m", "kron": "@k", "exp_avg_sq": "@q", "step": 3}}
    (entry,) = optimizer(state, [{"params": [0]}], tensors).entries
    assert [(slot.key, slot.kind, slot.tensor) for slot in entry.slots] == [
        ("exp_avg", "first", "m"), ("kron", "unknown", "k"), ("exp_avg_sq", "unknown", "q"), ("step", "scalar", ""),
    ]  # fmt: skip
    assert entry.slots[-1].value == Leaf(3)


def test_what_bitsandbytes_keeps_in_float32_are_moments() -> None:
    eight = {"state1": view(0, 512, dtype="uint8"), "absmax1": view(1, 2)}
    assert slots.kinds_of(eight, "bitsandbytes") == {"state1": "blockwise", "absmax1": "blockwise"}
    both = {"state1": view(0, 3), "state2": view(1, 3)}
    assert slots.kinds_of(both, "bitsandbytes") == {"state1": "first", "state2": "second"}
    assert slots.kinds_of({"state1": view(0, 3)}, "bitsandbytes") == {"state1": "unknown"}
    entry = StateEntry(0, 0, (Slot("state1", "blockwise", "s"), Slot("absmax1", "blockwise", "a")))
    assert slots.expected_shape(entry, {"s": (2, 300), "a": (3,)}).allows((2, 300))
    assert not slots.expected_shape(entry, {"s": (2, 300), "a": (2,)}).allows((2, 300))


def test_shapes_of_factored_statistics() -> None:
    """torch keeps the axis, and transformers does not."""
    for row, column in (((3, 1), (1, 2)), ((3,), (2,))):
        entry = StateEntry(0, 0, (Slot("row_var", "factored", "r"), Slot("exp_avg_sq_col", "factored", "c")))
        expected = slots.expected_shape(entry, {"r": row, "c": column})
        assert expected.allows((3, 2)) and not expected.allows((2, 3)) and not expected.allows((3,))


def test_refused_optimizers() -> None:
    groups = [{"params": [0], "update_proj_gap": 200}]
    assert "GaLore" in optimizer({}, groups).refused and not optimizer({}, [{"params": [0]}]).refused
    assert "Shampoo" in optimizer({0: {"precond_0": "@p"}}, [{"params": [0]}], {"p": (2,)}).refused
    assert (
        optimizer({"count": 3}, [{"params": [0]}]).refused
        == "it keeps 'count', which is not the state of one parameter"
    )


def test_flattened_state() -> None:
    """Names with the same settings are a group."""
    tree = {
        "state.a.w.step": "@s", "state.a.w.exp_avg": "@m", "param_groups.a.w.lr": 0.1, "param_groups.b.lr": 0.2,
        "param_groups.c.lr": 0.1,
    }  # fmt: skip
    one = checkpoint({"s": (), "m": (2, 3)}, objects=node({"optim": tree}), format="dcp")
    (found,) = read.optimizers(one)
    assert (found.form, found.at, [group.keys for group in found.groups]) == (
        "dcp-flat",
        "optim",
        [("a.w", "c"), ("b",)],
    )
    assert [slot.tensor for slot in found.entries[0].slots] == ["s", "m"]
    tree["state.z.exp_avg"] = "@m"
    with pytest.raises(Defects, match="1 name without settings: z"):
        read.optimizers(checkpoint({"m": (2, 3)}, objects=node(tree)))


def test_master_copies() -> None:
    """Beside the state by name, or in lists that have one for each entry of every group."""
    found = optimizer({}, [{"params": ["a", "b"]}], {"m": (2,)}, fp32={"a": "@m"})
    assert found.masters == {"a": "m"} and found.form == "dcp"
    one = {"state": {}, "param_groups": [{"params": [0]}, {"params": [1]}]}
    for lists, masters in (([["@m"], ["@n"]], {0: "m", 1: "n"}), ([["@m", "@n"], []], {})):
        tree = node({"optimizer": one, "fp32_from_fp16_params": lists})
        (found,) = read.optimizers(checkpoint({"m": (2,), "n": (3,)}, objects=tree))
        assert found.masters == masters


def test_master_copies_by_name_are_bound_as_the_entries() -> None:
    """Only those under the optimizer's own `fp32`; a copy with another name is not moved."""
    found = optimizer({}, [{"params": ["a", "b"]}], {"fp32.a": (2,), "m": (2,)}, fp32={"a": "@fp32.a"})
    (bound,) = copies.masters(Binding(found, {"a": "x.a", "b": "x.b"}, "names", "", True))
    state = bound.optimizer
    assert (state.at, state.form, [entry.key for entry in state.entries]) == ("fp32", LIST, ["a"])
    assert bound.names == {"a": "x.a", "b": "x.b"} and bound.is_unique and copies.are_listed(found)
    other = replace(found, masters={"a": "m"})
    assert not [*copies.masters(Binding(other, {"a": "x.a"}, "names", "", True))] and not copies.are_listed(other)


def test_an_optimizer_that_was_pickled_with_its_parameters() -> None:
    """They are numbered in the order of the groups, and it is never moved."""
    state = Mapping("dict", ((TensorRef("k"), node({"exp_avg": "@m"})),))
    tree = Mapping("dict", (("state", state), ("param_groups", node([{"params": ["@p", "@q"]}]))))
    (found,) = read.optimizers(checkpoint({"p": (2,), "q": (3,), "k": view(1, 3), "m": (3,)}, objects=tree))
    assert [(entry.key, len(entry.slots)) for entry in found.entries] == [(0, 0), (1, 1)]
    assert "pickled as an object" in found.refused
