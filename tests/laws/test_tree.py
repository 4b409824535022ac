"""The law of the record: a tree of objects written as JSON and read again is the same tree."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.formats import object_tree
from paramtool.model.objects import Again, Array, Leaf, Mapping, Node, Opaque, Sequence, TensorRef, map_tensors, walk
from tests.examples import examples

law = settings(max_examples=examples(150), deadline=None)
TEXTS = st.sampled_from(["", "a", "b", "0", "1", "a.b", "ü", "map", "items", "tensor", "left_out"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | TEXTS
    | st.binary(max_size=3)
)
KINDS = st.sampled_from(["dict", "collections.OrderedDict", "collections.defaultdict"])


def _mapping(items: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    keys = SCALARS | st.lists(SCALARS, max_size=2).map(tuple)
    pairs = st.lists(st.tuples(keys, items), max_size=4).map(tuple)
    return st.builds(Mapping, KINDS, pairs, st.none() | items)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Node, tuple[str, ...]]:
    """A tree whose tensors have the names of their places, and these names in file order."""
    leaves = st.builds(Leaf, SCALARS) | st.just(TensorRef("?")) | st.builds(Again, TEXTS)
    leaves |= st.builds(
        Array,
        st.sampled_from(["<f4", "|u1"]),
        st.tuples(st.integers(0, 3)),
        st.sampled_from("CF"),
        st.binary(max_size=12),
    )
    nested = st.recursive(
        leaves,
        lambda inner: (
            _mapping(inner)
            | st.builds(
                Sequence, st.sampled_from(["list", "tuple", "torch.Size"]), st.lists(inner, max_size=3).map(tuple)
            )
            | st.builds(
                Opaque,
                st.sampled_from(["argparse.Namespace", "x.Y"]),
                st.lists(st.tuples(TEXTS, inner), max_size=2).map(tuple),
            )
        ),
        max_leaves=14,
    )
    tree, names = named(draw(nested))
    return tree, names


def named(tree: Node) -> tuple[Node, tuple[str, ...]]:
    """Give every tensor the name of its place where it is free, as a reader does, and a number where not."""
    names: dict[str, None] = {}

    def visit(node: Node, path: tuple[str, ...]) -> Node:
        if isinstance(node, TensorRef):
            name = ".".join(path) or "tensor"
            while name in names:
                name += "\\2"
            names[name] = None
            return TensorRef(name)
        if isinstance(node, Sequence):
            return Sequence(node.kind, tuple(visit(x, (*path, str(k))) for k, x in enumerate(node.items)))
        if isinstance(node, Mapping):
            pairs = tuple((key, visit(x, (*path, str(key)))) for key, x in node.items)
            return Mapping(node.kind, pairs, node.attributes and visit(node.attributes, path))
        if isinstance(node, Opaque):
            return Opaque(node.path, tuple((label, visit(x, path)) for label, x in node.parts))
        return node

    made = visit(tree, ())
    return made, tuple(names)


def typed(tree: Node) -> str:
    """A tree as text that tells 1 from True and 0.0 from -0.0, which equality does not."""
    return repr(tree)


@law
@given(trees(), st.booleans())
def test_a_tree_survives_json(case: tuple[Node, tuple[str, ...]], runs: bool) -> None:
    """Encoded, written as JSON text, read and decoded, a tree is the same to the type of each number."""
    tree, order = case
    text = json.dumps(object_tree.encode(tree, order, runs), allow_nan=False)
    assert typed(tree) == typed(object_tree.decode(json.loads(text), order))


@law
@given(trees(), st.booleans(), st.randoms())
def test_a_tree_survives_another_order_of_names(case: tuple[Node, tuple[str, ...]], runs: bool, random: object) -> None:
    """The order of the file's names need not be that of the tree: a section of it, or a sharded file, differs."""
    tree, names = case
    order = list(names)
    random.shuffle(order)  # type: ignore[attr-defined]
    data = json.loads(json.dumps(object_tree.encode(tree, tuple(order), runs)))
    assert typed(tree) == typed(object_tree.decode(data, tuple(order)))


@law
@given(trees())
def test_a_tensor_that_is_not_written_is_said_to_be_left_out(case: tuple[Node, tuple[str, ...]]) -> None:
    """A name that the file does not hold comes back as left out; every other tensor keeps its place."""
    tree, order = case
    kept = order[::2]
    found = object_tree.decode(json.loads(json.dumps(object_tree.encode(tree, kept))), kept)
    assert list(kept) == [node.name for node in walk(found) if isinstance(node, TensorRef)]
    assert len(order) - len(kept) == sum(isinstance(n, Opaque) and n.path == object_tree.LEFT_OUT for n in walk(found))


@law
@given(trees())
def test_tensors_as_keys_survive(case: tuple[Node, tuple[str, ...]]) -> None:
    """Optimizer state keyed by tensors (torch 0.x): the key is a tensor of the file like any other."""
    tree, order = case
    keyed = Mapping("dict", ((TensorRef("key"), tree), ("epoch", Leaf(1))))
    names = ("key", *order)
    data = json.loads(json.dumps(object_tree.encode(keyed, names)))
    assert typed(keyed) == typed(object_tree.decode(data, names))


def test_a_key_that_is_left_out_keeps_its_name() -> None:
    """A tensor that is a key and is not written: what stands under it comes back."""
    tree = Mapping("dict", ((TensorRef("@0"), Leaf(1)),))
    found = object_tree.decode(json.loads(json.dumps(object_tree.encode(tree, ()))), ())
    assert found == Mapping("dict", (("@0", Leaf(1)),))


@law
@given(trees())
def test_a_name_outside_the_tree_comes_to_its_top(case: tuple[Node, tuple[str, ...]]) -> None:
    """What is written has every name: a reader refuses a tree that lacks one."""
    tree, order = case
    more = Mapping("dict", (("tree", tree),))
    found = object_tree.complete(more, (*order, "new"))
    assert found == Mapping("dict", (("tree", tree), ("new", TensorRef("new"))))
    with pytest.raises(ValueError, match="'new' is missing"):
        object_tree.decode(json.loads(json.dumps(object_tree.encode(more, (*order, "new")))), (*order, "new"))


@law
@given(st.lists(TEXTS, unique=True, max_size=6))
def test_a_flat_state_dict_needs_no_record(names: list[str]) -> None:
    """A plain dict of tensors under their own names says nothing that the names do not."""
    tree = Mapping("dict", tuple((name, TensorRef(name)) for name in names))
    assert object_tree.is_flat(tree, tuple(names))
    assert not names[1:] or not object_tree.is_flat(tree, tuple(names[::-1]))
    assert not object_tree.is_flat(Mapping("dict", ((0, Leaf(1)),)), ())


@law
@given(trees())
def test_map_tensors_changes_nothing_else(case: tuple[Node, tuple[str, ...]]) -> None:
    """Renaming every tensor and renaming it back gives the tree."""
    tree, _ = case
    assert tree == map_tensors(map_tensors(tree, lambda name: f"p.{name}"), lambda name: name.removeprefix("p."))
