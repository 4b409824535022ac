"""What passes share that replace tensors: the places of new names, in the file and in the tree of objects."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paramtool.model import alias
from paramtool.model.objects import Mapping, TensorRef, tensor_names
from paramtool.model.plan import Target, whole
from paramtool.model.view import contiguous
from paramtool.passes.dedup.plan import plan, sorted_targets
from paramtool.passes.rewriting import NewTensors, replaced
from tests.passes.made import checkpoint

NAMES = ["a", "b", "c", "d", "e"]


@given(st.permutations(NAMES), st.sets(st.sampled_from(NAMES), min_size=1), st.booleans(), st.booleans())
def test_new_names_are_where_the_first_old_one_was(
    order: list[str], gone: set[str], keeps: bool, are_apart: bool
) -> None:
    """In the plan and in the tree of objects; old names that are kept stay where they were."""
    file = checkpoint({name: (k + 1,) for k, name in enumerate(order)})
    items = tuple((name, TensorRef(name)) for name in order)
    file = replace(file, objects=Mapping("dict", items))
    old = [name for name in order if name in gone]
    views = file.views()
    targets = tuple(
        replace(one, copies=tuple(replace(copy, names=(old[0],)) for copy in one.copies))
        for one in (whole(name, views[old[0]]) for name in ("x", "y"))
    )
    new = NewTensors("", targets, {} if are_apart else {"x": "x", "y": "y"}, tuple(old), are_apart)
    kept = {name: contiguous("x", views[name].dtype, views[old[0]].shape) for name in gone} if keeps else {}
    made, outcome = replaced(
        file, [new], gone, alias.build(file), kept=kept, shares=("", ""), skip_unsupported=False, split_content=False
    )
    at = order.index(old[0])
    left = [name for name in order if keeps or name not in gone]
    expected = [*(name for name in order[:at] if name in left), "x", "y", *(n for n in order[at:] if n in left)]
    assert list(made.names) == list(tensor_names(made.objects)) == expected
    assert outcome.made == {"x", "y"} and outcome.windows.keys() == kept.keys()
    assert outcome.untouched.keys() == set(order) - gone


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
