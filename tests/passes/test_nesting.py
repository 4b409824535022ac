"""Where the tensors of two trees are, by trees made here; tests/commands/test_diff_nesting.py has those of files."""

from __future__ import annotations

from paramtool.model.objects import Leaf, Mapping, Node, Opaque, Sequence, TensorRef
from paramtool.passes.nesting import nesting_differences

W = TensorRef("a.0")


def under(*keys: object, kind: str = "dict") -> Node:
    node: Node = W
    for key in reversed(keys):
        node = Mapping(kind, ((key, node),))  # type: ignore[arg-type]
    return node


def test_keys_of_one_name() -> None:
    """Equal by Python's rules is not the same key, and the class of a mapping is not part of the nesting."""
    assert [*nesting_differences(under("a", 0), under("a", 0, kind="collections.OrderedDict"))] == []
    assert [*nesting_differences(under("a", 0), under("a", "0"))] == [
        "object 'a': key '0' is an int; the source has a str"
    ]
    assert [*nesting_differences(under("a", True), under("a", 1))] != []
    number = Opaque("numpy.int64", (("args", Leaf(0)),))
    assert [*nesting_differences(under("a", number), under("a", number))] == []


def test_containers_of_one_name() -> None:
    listed, tupled, called = Sequence("list", (W,)), Sequence("tuple", (W,)), Opaque("m.Net", (("state", W),))
    said = [*nesting_differences(Mapping("dict", (("a", listed),)), Mapping("dict", (("a", tupled),)))]
    assert said == ["object 'a': is a list; the source has a tuple"]
    said = [*nesting_differences(called, listed)]
    assert said == ["object 'at the top': is an object of m.Net; the source has a list"]


def test_names_of_one_tree_alone_say_nothing() -> None:
    """They are removed or added tensors."""
    assert [*nesting_differences(under("a", 0), Mapping("dict", (("b", TensorRef("b")),)))] == []
    assert [*nesting_differences(W, under("a.0"))] == [
        "object 'a.0': is at the top; the source has it under the key 'a.0'"
    ]
