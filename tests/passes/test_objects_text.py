"""Canonical text of objects: equal just where `objects_differ` finds no difference."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.model.objects import Array, Leaf, Mapping, Node, Opaque, Sequence, TensorRef
from paramtool.passes.objects_differ import Comparison
from paramtool.passes.objects_text import MAX_WORDS, canonical, in_short, rows

SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, float("nan"), "a", b"a", 1j])
)
LEAVES = SCALARS.map(Leaf) | st.sampled_from([TensorRef("w"), Array("<U1", (1,), "C", b"abcd")])
NODES: st.SearchStrategy[Node] = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(Sequence, st.sampled_from(["list", "tuple", "builtins.set"]), st.lists(inner, max_size=3).map(tuple))
        | st.dictionaries(st.sampled_from(["a", "b", 1, True, 1.5]), inner, max_size=3).map(
            lambda items: Mapping("dict", tuple(items.items()))
        )
        | st.builds(
            Opaque, st.sampled_from(["numpy.core.x", "numpy._core.x", "m.C"]), inner.map(lambda one: (("state", one),))
        )
    ),
    max_leaves=6,
)


@given(NODES, NODES)
def test_equal_text_is_equal_objects(one: Node, other: Node) -> None:
    assert (canonical(one) == canonical(other)) == (not Comparison().run(one, other).differences)


@given(NODES, st.randoms())
def test_the_order_of_keys_does_not_matter(node: Node, random: object) -> None:
    pairs = [("k", node), ("l", Leaf(1)), ("m", Leaf(2))]
    random.shuffle(pairs)  # type: ignore[attr-defined]
    assert canonical(Mapping("dict", tuple(pairs))) == canonical(Mapping("dict", tuple(sorted(pairs))))


@given(NODES)
def test_a_value_in_short_is_short(node: Node) -> None:
    assert len(in_short(node)) <= MAX_WORDS


def test_a_long_tree_is_cut_early() -> None:
    deep: Node = Leaf("x" * 1000)
    for _ in range(150):
        deep = Sequence("list", (deep, deep))  # 2**150 leaves, if all were written
    assert in_short(deep).endswith("...")


def test_rows_are_what_holds_more_than_tensors() -> None:
    state = Mapping("dict", (("w", TensorRef("model.w")), ("inner", Mapping("dict", (("b", TensorRef("model.b")),)))))
    root = Mapping(
        "dict", (("model", state), ("w", TensorRef("w")), ("epoch", Leaf(3)), (1, Leaf("a")), ("1", Leaf("b")),
                 ("empty", Mapping("dict", ())),
                 ("both", Mapping("dict", (("w", TensorRef("both.w")), ("n", Leaf(1)))))),
    )  # fmt: skip
    found = {key: words for key, _, words in rows(root)}
    assert found == {"1": "[string, string]", "both": "{n: 1}", "empty": "{}", "epoch": "3"}
    assert [key for key, _, _ in rows(replace(root, attributes=Leaf(1)))] == sorted(found)
    assert [row[0] for row in rows(Sequence("list", (Leaf(1),)))] == [""]
    assert not list(rows(TensorRef("w")))


@pytest.mark.parametrize(("one", "other"), [(Leaf(1), Leaf(True)), (Leaf(1), Leaf(1.0)), (Leaf("1"), Leaf(1))])
def test_types_matter(one: Node, other: Node) -> None:
    assert canonical(one) != canonical(other)
