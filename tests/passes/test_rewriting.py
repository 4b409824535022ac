"""What passes share that replace tensors: the places of new names, in the file and in the tree of objects."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paramtool.model import alias
from paramtool.model.plan import Target
from paramtool.passes.dedup.plan import plan, sorted_targets
from paramtool.passes.rewriting import in_order, swaps
from tests.passes.made import checkpoint

NAMES = ["a", "b", "c", "d", "e"]


@given(st.permutations(NAMES), st.sets(st.sampled_from(NAMES), min_size=1))
def test_new_names_are_where_the_first_old_one_was(order: list[str], gone: set[str]) -> None:
    file = checkpoint({name: (k + 1,) for k, name in enumerate(order)})
    kept = checkpoint({name: (k + 1,) for k, name in enumerate(order) if name not in gone})
    first = next(name for name in order if name in gone)
    base = plan(kept, alias.build(kept))
    found = list(in_order(file, base, {first: ["x", "y"]}, {}))
    at = order.index(first)
    assert found == [*(n for n in order[:at] if n not in gone), "x", "y", *(n for n in order[at:] if n not in gone)]
    windows = {name: file.entries[name] for name in gone}
    assert [name for name in in_order(file, base, {first: ["x"]}, windows) if name != "x"] == order


def test_what_replaces_a_name_in_the_tree() -> None:
    assert swaps({"a": ["x"]}, {"a", "b"}, ()) == {"a": ("x",), "b": ()}
    assert swaps({"a": ["x"]}, {"a", "b"}, {"a", "b"}) == {"a": ("x", "a"), "b": ("b",)}


@given(st.permutations(NAMES))
def test_targets_are_in_the_order_of_names(order: list[str]) -> None:
    """A target that is no name itself has the place of the first name on it."""
    file = checkpoint({name: (k + 1,) for k, name in enumerate(order)})
    made = plan(file, alias.build(file))
    span = made.targets[2]
    names = [
        one._replace(window=replace(one.window, storage="span")) if one.name == span.name else one
        for one in made.names.values()
    ]
    targets = [Target("span", t.dtype, t.shape, t.copies) if t is span else t for t in reversed(made.targets)]
    assert [t.name for t in sorted_targets(targets, names)] == ["span" if n == span.name else n for n in order]
