"""Changing one optimizer in a tree of objects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paramtool.model.objects import Leaf, Mapping, Node, Opaque, Sequence, TensorRef, node_at, tensor_names
from paramtool.passes.optimizer import read, tree
from tests.passes.made import checkpoint
from tests.passes.test_optimizer_bind import node


def dict_of(**items: Node) -> Mapping:
    """A dict."""
    return Mapping("dict", tuple(items.items()))


def test_a_node_is_changed_at_its_path_and_nowhere_else() -> None:
    before = dict_of(a=Sequence("list", (dict_of(x=Leaf(1)), dict_of(x=Leaf(2)))), b=Leaf(3))
    after = tree.put(before, "a.1.x", Leaf(9))
    assert after == dict_of(a=Sequence("list", (dict_of(x=Leaf(1)), dict_of(x=Leaf(9)))), b=Leaf(3))
    assert tree.put(before, "a.1", None) == dict_of(a=Sequence("list", (dict_of(x=Leaf(1)),)), b=Leaf(3))
    assert tree.put(before, "c", Leaf(0)) == before
    assert node_at(before, "a.1") == dict_of(x=Leaf(2)) and node_at(before, "a.x") == dict_of()


AROUND = {
    "list": lambda one: Sequence("list", (Leaf(0), one)),
    "dict": lambda one: dict_of(other=Leaf(1), optimizer=one),
    "object": lambda one: Opaque("argparse.Namespace", (("state", dict_of(optim=one)),)),
    "object of a class": lambda one: Opaque("torch.optim.adam.Adam", (("args", Sequence("tuple", ())), ("state", one))),
}


@given(st.lists(st.sampled_from([*AROUND]), max_size=5))
def test_an_optimizer_that_is_found_can_be_taken_out(around: list[str]) -> None:
    """The path under which it is found is one under which it is changed, whatever is around it."""
    one = node({"state": {0: {"exp_avg": "@m"}}, "param_groups": [{"params": [0]}]})
    for what in around:
        one = AROUND[what](one)
    whole = dict_of(model=node({"p": "@p"}), of_training=one)
    (found,) = read.optimizers(checkpoint({"p": (2,), "m": (2,)}, objects=whole))
    there = node_at(whole, found.at)
    assert {*tensor_names(there)} == {"m"} and isinstance(there, Opaque) == bool(found.refused)
    rest = tree.put(whole, found.at, None)
    assert not read.optimizers(checkpoint({"p": (2,)}, objects=rest))
    assert bool(found.refused) == (around[:1] == ["object of a class"])


def test_a_state_dict_is_sorted_only_if_it_was_before() -> None:
    def state(*names: str) -> Mapping:
        return Mapping("dict", tuple((name, TensorRef(name)) for name in names))

    new = state("q.weight", "k.weight", "q.bias", "k.bias")
    assert tree.sorted_as(new, state("c.weight", "c.bias")) == state("q.weight", "q.bias", "k.weight", "k.bias")
    assert tree.sorted_as(new, state("a.weight", "b.weight", "a.bias")) == new


def test_entries_groups_and_names_are_written_anew() -> None:
    group = dict_of(lr=Leaf(0.1), params=Sequence("list", (Leaf(0), Leaf(1))),
                    param_names=Sequence("list", (Leaf("a"), Leaf("b"))))  # fmt: skip
    state = Mapping("dict", ((0, dict_of(m=TensorRef("state.0.m"))), (1, dict_of(m=TensorRef("state.1.m")))))
    before = dict_of(state=state, param_groups=Sequence("list", (group,)))
    entry = dict_of(m=TensorRef("state.0.m"))
    found = tree.rewritten(before, "torch", [[(0, "ab")]], {0: entry})
    assert isinstance(found, Mapping)
    after = dict(found.items)
    groups = after["param_groups"]
    assert isinstance(groups, Sequence)
    assert after["state"] == Mapping("dict", ((0, entry),))
    assert groups.items[0] == dict_of(
        lr=Leaf(0.1), params=Sequence("list", (Leaf(0),)), param_names=Sequence("list", (Leaf("ab"),))
    )


def test_copies_by_name_have_new_names_and_order() -> None:
    """A mapping of float32 copies, as a list of them."""
    before = dict_of(a=TensorRef("fp32.a"), b=TensorRef("fp32.b"), c=TensorRef("fp32.c"))
    assert list(tree.entries_of(before, tree.LIST).items()) == list(before.items)
    new = {"ab": TensorRef("fp32.ab"), "c": TensorRef("fp32.c")}
    assert tree.rewritten(before, tree.LIST, [[("c", ""), ("ab", "")]], new) == dict_of(
        c=TensorRef("fp32.c"), ab=TensorRef("fp32.ab")
    )


def test_a_flattened_state_keeps_the_settings_of_what_it_was() -> None:
    before = dict_of(**{
        "state.a.w.m": TensorRef("state.a.w.m"), "state.b.w.m": TensorRef("state.b.w.m"),
        "param_groups.a.w.lr": Leaf(0.1), "param_groups.b.w.lr": Leaf(0.1),
    })  # fmt: skip
    assert tree.entries_of(before, tree.FLAT)["b.w"] == dict_of(m=TensorRef("state.b.w.m"))
    new = {"ab.w": dict_of(m=TensorRef("x"))}
    assert tree.rewritten(before, tree.FLAT, [[("ab.w", "")]], new) == dict_of(
        **{"state.ab.w.m": TensorRef("x"), "param_groups.ab.w.lr": Leaf(0.1)}
    )


def test_a_list_has_its_tensors_in_order() -> None:
    before = Sequence("list", (TensorRef("l.0"), TensorRef("l.1")))
    assert tree.entries_of(before, tree.LIST) == {0: TensorRef("l.0"), 1: TensorRef("l.1")}
    new = {0: TensorRef("l.0"), 1: TensorRef("y")}
    assert tree.rewritten(before, tree.LIST, [[(1, ""), (0, "")]], new) == Sequence(
        "list", (TensorRef("y"), TensorRef("l.0"))
    )
