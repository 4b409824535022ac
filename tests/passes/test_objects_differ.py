"""What differs between the objects of two checkpoints: what is equal passes, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from struct import unpack

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paramtool.model.objects import (
    EMPTY,
    LEFT_OUT,
    Again,
    Array,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Sequence,
    TensorRef,
    complex_number,
    map_children,
    tensor_names,
    walk,
)
from paramtool.passes.objects_differ import MAX_SHOWN, Comparison, without
from tests.examples import examples

law = settings(max_examples=examples(50), deadline=None)
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


def differences(found: Node, expected: Node) -> list[str]:
    """What is said of two trees."""
    return Comparison().run(found, expected).differences


def row(*items: Node, kind: str = "list", mark: int = 0) -> Sequence:
    """A list."""
    return Sequence(kind, items, mark=mark)


def table(*items: tuple[object, Node], mark: int = 0) -> Mapping:
    """A dict."""
    return Mapping("dict", items, mark=mark)  # type: ignore[arg-type]  # keys of any type


def numpy(module: str, *items: Node) -> Opaque:
    """A scalar of NumPy's as pickles have it."""
    return Opaque(f"numpy.{module}.multiarray.scalar", (("args", row(*items, kind="tuple")),))


scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["", "a", b"", b"a"])
leaves = (
    scalars.map(Leaf)
    | st.complex_numbers().map(Leaf)
    | st.sampled_from([TensorRef("w"), Again("a"), Array("<f4", (1,), "C", b"1234"), EMPTY])
)
keys = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["0", "1", "a", 0.5, (1, "a"), (True, "a")])


def _deeper(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    some = st.lists(inner, max_size=3).map(tuple)
    by_type = st.lists(st.tuples(keys, inner), max_size=3, unique_by=lambda pair: repr(pair[0])).map(tuple)
    return (
        st.builds(Sequence, st.sampled_from(["list", "tuple", "torch.Size"]), some, some)
        | st.builds(Mapping, st.sampled_from(["dict", "x.Odd"]), by_type, st.none() | inner, some)
        | st.builds(Opaque, st.just("x.Y"), st.tuples(st.tuples(st.sampled_from(["args", "state"]), inner)))
    )


trees = st.recursive(leaves, _deeper, max_leaves=8)


@law
@given(trees)
def test_a_tree_differs_from_itself_in_nothing(tree: Node) -> None:
    """NaN included; a complex number is one however it is spelled."""
    copied = map_children(tree, lambda child: child)
    assert differences(copied, tree) == [] == Comparison().run(tree, copied).notes


def _changed(node: Node, at: list[int], new: Node) -> Node:
    """A tree with another node at a place, counted in the order of `map_children`."""
    at[0] -= 1
    return new if at[0] == -1 else map_children(node, lambda child: _changed(child, at, new))


@law
@given(trees, st.integers(0, 30))
def test_a_change_at_any_place_is_seen(tree: Node, place: int) -> None:
    """Once, whichever of the two trees has it."""
    place %= sum(1 for _ in walk(tree))
    other = _changed(tree, [place], Leaf("something else"))
    assert len(differences(other, tree)) == len(differences(tree, other)) == 1


VALUES = [None, False, 0, 0.0, -0.0, float("nan"), 1, True, 1.0, "1", b"1", 1j, complex(1, -0.0), complex(1, 0.0)]


@pytest.mark.parametrize("k", range(len(VALUES)))
def test_equal_by_type_and_bits(k: int) -> None:
    """No two of these are one value, though Python says so of some."""
    for other in VALUES:
        assert bool(differences(Leaf(VALUES[k]), Leaf(other))) == (other is not VALUES[k])
    (said,) = differences(table(("a", row(Leaf("new")))), table(("a", row(Leaf(VALUES[k])))))
    assert said.startswith("object 'a.0': ") and "'new'" in said


KEYS = [None, False, 0, 1, True, 1.0, "1", b"1", (1,), (True,), TensorRef("1"), float("nan")]


@pytest.mark.parametrize("k", range(len(KEYS)))
def test_keys_by_type(k: int) -> None:
    """A key of another type is another key: one is missing, the other not in the source; order is free."""
    for other in KEYS:
        assert len(differences(table((KEYS[k], EMPTY)), table((other, EMPTY)))) == 2 * (other is not KEYS[k])
    every = [(key, Leaf(n)) for n, key in enumerate(KEYS)]
    assert differences(table(*every), table(*reversed(every))) == []
    (said,) = differences(table(*every), table(*every[:k], *every[k + 1 :]))
    assert "the source does not have it" in said
    (said,) = differences(table(*every[:k], *every[k + 1 :]), table(*every))
    assert "is missing" in said


PAIRS: dict[str, tuple[Node, Node, str]] = {
    "kind": (row(), row(kind="tuple"), "is a list; the source has a tuple"),
    "class": (table(), Mapping("collections.OrderedDict", ()), "is a dict; the source has a collections.OrderedDict"),
    "length": (row(EMPTY), row(), "has 1 items; the source has 0"),
    "order": (row(Leaf(1), Leaf(1)), row(Leaf(1), Leaf(2)), "object '1': is 1; the source has 2"),
    "arguments": (Mapping("d", (), args=(EMPTY,)), Mapping("d", ()), "has 1 argument; the source has 0"),
    "attributes": (Mapping("d", (), EMPTY), Mapping("d", ()), "has attributes in the output only"),
    "no_attributes": (Mapping("d", ()), Mapping("d", (), EMPTY), "has attributes in the source only"),
    "tensor": (TensorRef("a"), TensorRef("b"), "is the tensor 'a'; the source has 'b'"),
    "object": (Opaque("a.B", ()), Opaque("a.C", ()), "is an object of a.B; the source has an object of a.C"),
    "part": (Opaque("a.B", (("state", EMPTY),)), Opaque("a.B", ()), "has state in the output only"),
    "array": (
        Array("<f4", (1,), "C", b"abcd"),
        Array("<f4", (1,), "C", b"abce"),
        "is array <f4 [1]; the source has another",
    ),
    "array_order": (
        Array("<f4", (1,), "C", b""),
        Array("<f4", (1,), "F", b""),
        "is array <f4 [1]; the source has another",
    ),
    "itself": (Again("a"), Again("b"), "refers to the object at 'a'; the source refers to 'b'"),
    "other": (row(), table(), "is a list; the source has a dict"),
    "set": (
        row(Leaf(1), kind="builtins.set"),
        row(Leaf(True), kind="builtins.set"),
        "has members that differ from the source",
    ),
}


@pytest.mark.parametrize("key", PAIRS)
def test_each_difference(key: str) -> None:
    """Said once and with its place, also below others."""
    found, expected, words = PAIRS[key]
    (said,) = differences(found, expected)
    assert words in said
    (said,) = differences(table(("a", row(EMPTY, found))), table(("a", row(EMPTY, expected))))
    assert "object 'a.1" in said and words.removeprefix("object '1") in said


def test_members_of_sets_have_no_order() -> None:
    """Of both kinds of sets; a list has one."""
    some = (Leaf(1), Leaf("a"), row(Leaf(2), kind="tuple"))
    for kind in ("builtins.set", "builtins.frozenset"):
        assert differences(row(*some, kind=kind), row(*reversed(some), kind=kind)) == []
        assert differences(row(*some, some[0], kind=kind), row(*some, some[1], kind=kind)) != []
    assert differences(row(*some), row(*reversed(some))) != []


def test_spellings() -> None:
    """Classes that moved are the same, as values and as keys; others with such beginnings are not."""
    for old, new in (
        ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"),
        ("pathlib._local.PosixPath", "pathlib.PosixPath"),
        ("builtins.xrange", "builtins.range"),
    ):
        a, b = (Opaque(path, (("args", EMPTY),)) for path in (old, new))
        assert differences(row(a), row(b)) == [] == differences(row(b), row(a))
        assert differences(table((a, EMPTY)), table((b, EMPTY))) == []
    assert differences(Opaque("numpy.corex", ()), Opaque("numpy._corex", ())) != []
    assert differences(Leaf(1 + 2j), complex_number(1 + 2j)) == [] != differences(Leaf(1 + 2j), complex_number(2j))
    array = Array("<f4", (), "C", b"abcd")
    assert differences(array, Opaque("numpy._core.multiarray.scalar", (("data", array),))) == []


@law
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=5))
def test_marks(labels: list[tuple[int, int]]) -> None:
    """Which places are one object has to agree, whatever the marks are; one that stands alone says nothing."""

    def places(numbers: list[int], base: int) -> Node:
        return row(*(row(Leaf(1), mark=number and base + number) for number in numbers))

    found, expected = ([pair[k] for pair in labels] for k in (0, 1))

    def shared(numbers: list[int]) -> set[frozenset[int]]:
        sets = (frozenset(k for k, n in enumerate(numbers) if n == mark) for mark in (1, 2))
        return {one for one in sets if len(one) > 1}

    mine, theirs = shared(found), shared(expected)
    assert bool(differences(places(found, 10), places(expected, 20))) == (mine != theirs)


def test_marks_without_the_first() -> None:
    """Three places are one object in the source; in the output the first of them is another one."""
    apart, one = (row(*(row(Leaf(1), mark=mark) for mark in marks)) for marks in ((0, 1, 1), (1, 1, 1)))
    assert differences(apart, one) != []
    two = row(*(row(Leaf(1), mark=mark) for mark in (1, 1, 2, 2)))
    all_one = row(*(row(Leaf(1), mark=1) for _ in range(4)))
    assert differences(two, all_one) != [] != differences(all_one, two)


def test_every_nan_is_one() -> None:
    """Whatever its bits are, and as a key in whatever object."""
    odd = unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0]
    assert odd != odd and differences(Leaf(odd), Leaf(float("nan"))) == []
    assert (
        differences(table((odd, EMPTY), ((1, odd), EMPTY)), table((float("nan"), EMPTY), ((1, float("nan")), EMPTY)))
        == []
    )
    assert len(differences(table((odd, EMPTY)), table(("nan", EMPTY)))) == 2


OLD, NEW, PAIR = numpy("core"), numpy("_core"), row(Leaf(1), kind="tuple")


@pytest.mark.parametrize(
    "found, expected",
    [
        (row(NEW, kind="builtins.set"), row(OLD, kind="builtins.set")),
        (table((row(NEW, kind="tuple"), EMPTY)), table((row(OLD, kind="tuple"), EMPTY))),
        *(
            (row(row(a, kind="builtins.set"), a), row(row(b, kind="builtins.set"), b))
            for a, b in [(replace(PAIR, mark=1), replace(PAIR, mark=2))]
        ),
    ],
    ids=["class_in_a_set", "class_in_a_key", "marks_in_a_set"],
)
def test_spellings_and_marks_inside_sets_and_keys(found: Node, expected: Node) -> None:
    """Spellings and the numbers of marks mean nothing there, either."""
    assert differences(found, expected) == []


def test_what_a_record_had_no_room_for() -> None:
    """Noted with its place, not a difference; where both leave it out nothing is said."""
    gone = Opaque(LEFT_OUT, ())
    for found, expected, where in ((gone, row(), "output"), (row(), gone, "source")):
        seen = Comparison().run(table(("a", found)), table(("a", expected)))
        assert seen.differences == [] and len(seen.notes) == 1
        assert f"'a' is not in the {where}" in seen.notes[0]
    assert Comparison().run(gone, gone) == Comparison()


def test_long_values_are_cut() -> None:
    """What is shown of a value has a limit."""
    (said,) = differences(Leaf("x" * 1000), Leaf("y"))
    assert "..." in said and len(said) < 2 * MAX_SHOWN


def _beside(node: Node) -> tuple[Node, ...]:
    """What a node holds that is neither an item nor under a key."""
    match node:
        case Sequence(_, _, args):
            return args
        case Mapping(_, _, attributes, args):
            return (*args, *((attributes,) if attributes is not None else ()))
        case Opaque(_, parts):
            return tuple(child for _, child in parts)
    return ()


@law
@given(trees, st.booleans())
def test_without(tree: Node, gone: bool) -> None:
    """No tensor of those names is left where a key or an item could be taken away, and everything else is."""
    assume(not any(isinstance(child, TensorRef) for node in walk(tree) for child in _beside(node)))
    left = without(tree, {"w"} if gone else {"v"})
    assert list(tensor_names(left)) == ([] if gone else list(tensor_names(tree)))
    assert gone or left == tree
    kept = [node for node in walk(tree) if isinstance(node, Leaf)]
    assert [repr(node) for node in walk(left) if isinstance(node, Leaf)] == list(map(repr, kept))


def test_without_leaves_no_hole() -> None:
    """The keys and items of those tensors go, others and containers stay."""
    tree = table(("a", TensorRef("w")), ("b", row(TensorRef("w"), Leaf(1), row(TensorRef("w")))), ("c", TensorRef("v")))
    assert without(tree, {"w"}) == table(("b", row(Leaf(1), row())), ("c", TensorRef("v")))
    assert without(TensorRef("w"), {"w"}) == EMPTY and without(TensorRef("w"), {"v"}) == TensorRef("w")
