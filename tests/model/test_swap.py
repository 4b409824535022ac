"""`objects.swap`: tensors of a tree give way to others, and everything else stays."""

from __future__ import annotations

from paramtool.model.objects import Leaf, Mapping, Node, Opaque, Sequence, TensorRef, swap, tensor_names

SWAPS = {"m.rnn.W": ("m.rnn.weight_ih_l0", "m.rnn.weight_hh_l0"), "m.rnn.b": ()}


def state(*pairs: tuple[object, Node], kind: str = "dict") -> Mapping:
    """A mapping."""
    return Mapping(kind, pairs)  # type: ignore[arg-type]


def test_a_key_becomes_several_in_its_place() -> None:
    """In a flat state dict the new keys are the new names, between the neighbours of the old one."""
    tree = state(("a", TensorRef("a")), ("m.rnn.W", TensorRef("m.rnn.W")), ("z", TensorRef("z")))
    names = ["a", "m.rnn.weight_ih_l0", "m.rnn.weight_hh_l0", "z"]
    assert swap(tree, SWAPS) == state(*((name, TensorRef(name)) for name in names))


def test_nested_keys_lose_what_stands_above_them() -> None:
    """Below `m` the keys are `rnn....`, below `m`, `rnn` they are the last words."""
    flat = state(("m", state(("rnn.W", TensorRef("m.rnn.W")))))
    deep = state(("m", state(("rnn", state(("W", TensorRef("m.rnn.W")))))))
    ih, hh = TensorRef("m.rnn.weight_ih_l0"), TensorRef("m.rnn.weight_hh_l0")
    assert swap(flat, SWAPS) == state(("m", state(("rnn.weight_ih_l0", ih), ("rnn.weight_hh_l0", hh))))
    assert swap(deep, SWAPS) == state(("m", state(("rnn", state(("weight_ih_l0", ih), ("weight_hh_l0", hh))))))


def test_a_tensor_without_heirs_leaves_no_key() -> None:
    """What goes nowhere is taken out."""
    assert swap(state(("m.rnn.b", TensorRef("m.rnn.b")), ("n", Leaf(1))), SWAPS) == state(("n", Leaf(1)))


def test_lists_grow_and_shrink() -> None:
    """In a list the others stand where the one stood."""
    tree = Sequence("list", (TensorRef("m.rnn.W"), TensorRef("m.rnn.b"), TensorRef("x")))
    assert list(tensor_names(swap(tree, SWAPS))) == ["m.rnn.weight_ih_l0", "m.rnn.weight_hh_l0", "x"]


def test_kinds_attributes_and_other_nodes_stay() -> None:
    """Container kinds, attributes, typed keys and foreign objects are as they were, and are looked into."""
    inside = Opaque("lib.Thing", (("state", state((0, TensorRef("m.rnn.W")), kind="OrderedDict")),))
    tree = Mapping("OrderedDict", ((3, inside), ("lr", Leaf(0.1))), state(("_metadata", TensorRef("m.rnn.b"))))
    found = swap(tree, SWAPS)
    assert isinstance(found, Mapping)
    assert (found.kind, [key for key, _ in found.items], found.attributes) == ("OrderedDict", [3, "lr"], state())
    assert list(tensor_names(found)) == ["m.rnn.weight_ih_l0", "m.rnn.weight_hh_l0"]


def test_nothing_to_swap_changes_nothing() -> None:
    """A tree without those names is the same tree."""
    tree = state(("a", Sequence("tuple", (TensorRef("a"), Leaf("m.rnn.W")))), ("m.rnn.W", Leaf(2)))
    assert swap(tree, SWAPS) == tree
