"""A checkpoint with its networks in another layout: what is tied, what is left alone, and what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool import layouts
from paramtool.errors import LayoutError, PlanError
from paramtool.layouts import spec as specs
from paramtool.model import alias
from paramtool.model import plan as plans
from paramtool.model.checkpoint import Checkpoint, Entry, Link, Module
from paramtool.passes import rewriting
from paramtool.passes.rewriting import NewTensors
from paramtool.passes.rnn import convert, find, rewrite
from tests.examples import examples
from tests.passes.made import checkpoint, view

LSTM = {"weight_ih_l0": (8, 3), "weight_hh_l0": (8, 2), "bias_ih_l0": (8,), "bias_hh_l0": (8,)}
KERAS = {"kernel": (3, 8), "recurrent_kernel": (2, 8), "bias": (8,)}
FIRST = {name: view(k, *shape) for k, (name, shape) in enumerate(LSTM.items())}
SECOND = {name: view(k + 4, *shape) for k, (name, shape) in enumerate(LSTM.items())}
FUSED = {name: view(0, *shape, offset=at) for (name, shape), at in zip(LSTM.items(), (0, 24, 40, 48), strict=True)}


def under(at: str, tensors: dict, separator: str = ".") -> dict:
    """The tensors of a module."""
    return {f"{at}{separator}{name}": one for name, one in tensors.items()}


def converted(
    file: Checkpoint, layout: str = "cudnn", source: str | None = None, at: tuple[str, ...] = (), keep: bool = False
) -> list[convert.Converted]:
    """Networks of a checkpoint in another layout, under their own modules."""
    facts = specs.parse("backward=no") if source == "keras" else {}
    found = [one.network for one in find.find(file, find.NetworkRequest(source, facts, at))]
    there, views = layouts.find(layout), file.views()
    return [convert.convert(one, views, there, {}, at=one.at, keep_split=keep) for one in found]


def rewritten(
    file: Checkpoint | dict, layout: str = "cudnn", keep_names: bool = False, **more: object
) -> tuple[plans.Plan, rewrite.Outcome]:
    """The plan, proved: every target is tiled, and no name is lost."""
    file = checkpoint(file) if isinstance(file, dict) else file
    plan, outcome = rewrite.together(file, converted(file, layout, **more), keep_names)
    plans.check(plan, [*outcome.made, *outcome.untouched, *outcome.windows], file.storages)
    return plan, outcome


def owners(plan: plans.Plan) -> dict[str, tuple[str, str]]:
    """{name: (where its bytes are, the alias set it is in)}."""
    return {name: (one.owner, one.alias_set) for name, one in plan.names.items()}


@settings(max_examples=examples(30))
@given(st.permutations([*LSTM, "x", "tied", "y"]), st.booleans())
def test_everything_else_is_left_alone(order: list[str], keep_names: bool) -> None:
    """New tensors stand where the first old one did; other names keep their order, bytes and ties."""
    others = {"x": view(4, 2, 3), "tied": view(4, 3, offset=1), "y": view(5, 3)}
    places = others | under("m", FIRST)
    names = [name if name in others else f"m.{name}" for name in order]
    file = checkpoint({name: places[name] for name in names})
    plan, outcome = rewritten(file, keep_names=keep_names)
    first = next(name for name in names if name not in others)
    expected = [new for name in names for new in (["m.flat_weights"] * (name == first) + [name])]
    expected = [name for name in expected if keep_names or name in others or name == "m.flat_weights"]
    assert list(plan.names) == expected
    assert list(outcome.untouched) == list(outcome.rest.entries) == [name for name in names if name in others]
    assert outcome.made == {"m.flat_weights"} and not outcome.warnings
    plain = alias.build(replace(file, entries={name: file.entries[name] for name in names if name in others}))
    assert {name: plan.names[name] for name in others} == dict(plain.names)
    assert set(outcome.windows) == (set(under("m", LSTM)) if keep_names else set())
    for name in outcome.windows:
        one = plan.names[name]
        assert one.window == replace(FUSED[name[2:]], storage="m.flat_weights")
        assert (one.alias_set, one.evidence) == ("m.flat_weights", "declared")


def test_two_that_are_one_stay_one() -> None:
    """Networks that share every tensor share the new one; apart, or stored once by content only, they are two."""
    tied, _ = rewritten(under("a", FIRST) | under("b", FIRST))
    assert owners(tied) == {f"{at}.flat_weights": ("a.flat_weights", "a.flat_weights") for at in "ab"}
    assert [target.name for target in tied.targets] == ["a.flat_weights"]
    assert tied.names["b.flat_weights"].evidence == "storage"
    apart, _ = rewritten(under("a", FIRST) | under("b", SECOND))
    assert owners(apart) == {f"{at}.flat_weights": (f"{at}.flat_weights",) * 2 for at in "ab"}

    def linked(at: str, memory: str, why: str) -> dict[str, Entry]:
        """Entries as an alias record says them."""
        return {f"{at}.{name}": Entry(one, link=Link(f"{memory}.{name}", why)) for name, one in FIRST.items()}

    for memory, why, evidence in (("b", "storage", "content"), ("a", "declared", "declared")):
        said, _ = rewritten(linked("a", "a", why) | linked("b", memory, why))
        assert owners(said)["b.flat_weights"] == ("a.flat_weights", f"{memory}.flat_weights")
        one = said.names["b.flat_weights"]
        assert (one.evidence, one.set_evidence) == (evidence, why)


def test_zeros_are_tied_where_their_networks_are() -> None:
    """Keras has one bias, so PyTorch's second is zeros: two untied networks do not get one tensor of them."""
    windows = {name: view(k, *shape) for k, (name, shape) in enumerate(KERAS.items())}
    for other, owner in ((windows, "a"), (KERAS, "b")):
        file = under("a", KERAS if owner == "b" else windows, "/") | under("b", other, "/")
        plan, _ = rewritten(file, "torch", source="keras")
        assert owners(plan)["b.bias_hh_l0"] == (f"{owner}.bias_hh_l0",) * 2


def test_what_is_untied_is_said() -> None:
    """A tensor that another name shares, and one that goes to two places."""
    _, outcome = rewritten(under("a", FIRST) | {"tied": view(1, 8, 2)})
    assert (
        "1 other name shares memory with converted tensors and keeps the old bytes, untied: 'tied'" in outcome.warnings
    )
    assert list(outcome.untouched) == ["tied"]
    plan, outcome = rewritten(under("a", FIRST | {"bias_hh_l0": view(2, 8)}))
    (text,) = outcome.warnings
    assert text.startswith("untied") and text.endswith("'a.bias_ih_l0', 'a.bias_hh_l0'")
    both = under("a", FIRST) | under("b", SECOND | {"weight_hh_l0": FIRST["weight_hh_l0"]})
    plan, outcome = rewritten(both)
    assert owners(plan)["b.flat_weights"][0] == "b.flat_weights"
    assert outcome.warnings[0].endswith("'a.weight_hh_l0', 'b.weight_hh_l0'")
    _, outcome = rewritten(both, "mxnet")  # which has a tensor for each: nothing is lost
    assert not outcome.warnings


def test_ties_of_single_tensors_stay() -> None:
    """Two networks that share one matrix share the tensor that it becomes, and no other."""
    file = checkpoint(under("a", FIRST) | under("b", SECOND | {"weight_hh_l0": FIRST["weight_hh_l0"]}))
    new = [
        NewTensors(
            one.source.at,
            one.targets,
            {name: own for own, name in one.tensors.items()},
            (*one.source.tensors.values(),),
        )
        for one in converted(file, "mxnet")
    ]
    found = rewriting.shared(new, alias.build(file, parts=False))
    assert not found.lost and len(found.targets) == 7
    assert {name for name, one in found.names.items() if not one.is_owner} == {"b_l0_h2h_weight"}
    assert found.names["b_l0_h2h_weight"].alias_set == "a_l0_h2h_weight"


def test_what_is_there_already_stays() -> None:
    """No new name and no module of the record lost; that its parts are one buffer is said."""
    said = Module("a", "torch", "lstm", source="converted from keras", parts="x")
    file = replace(checkpoint(under("a", FUSED) | {"y": view(1, 3)}), modules=(said, Module("z", "keras", "gru")))
    plan, outcome = rewritten(file, "torch", at=("a",))
    assert not outcome.made and list(plan.names) == [*under("a", FUSED), "y"]
    assert "left unchanged: 'a' (windows of one buffer in cudnn's order)" in outcome.warnings[0]
    assert [(one.at, one.layout, one.source, one.parts) for one in plan.modules] == [
        ("z", "keras", "", ""),
        ("a", "torch", "converted from keras", "x"),
    ]
    plan, _ = rewritten(file, at=("a",))
    assert [(one.at, one.layout, one.source, one.parts) for one in plan.modules] == [
        ("z", "keras", "", ""),
        ("a", "cudnn", "converted from torch", "torch"),
    ]


def test_a_fused_tensor_that_is_there_is_replaced() -> None:
    """The same window under the new name stands for the new tensor; any other tensor there is an error."""
    plan, outcome = rewritten(under("a", FUSED) | {"a.flat_weights": view(0, 56)})
    assert outcome.made == {"a.flat_weights"} and list(plan.names) == ["a.flat_weights"]
    file = checkpoint(under("a", FUSED) | {"a.flat_weights": view(1, 56)})
    found = converted(checkpoint(under("a", FUSED)))
    with pytest.raises(PlanError, match=r"already has 1 name of the new layout:\s+'a\.flat_weights' is another tensor"):
        rewrite.together(file, found, False)
    with pytest.raises(PlanError, match="1 name of the new"):
        rewrite.together(checkpoint(under("a", FUSED)), found * 2, False)


def test_old_names_that_are_no_windows() -> None:
    """Where biases were summed, no name can be kept; nor one that two networks have."""
    with pytest.raises(PlanError, match=r"'a\.\w+' is not a window on the tensors of layout keras"):
        rewritten(under("a", FIRST), "keras", keep_names=True)
    own = under("a", FIRST)
    modules = tuple(Module(at, "torch", "lstm", {name: f"a.{name}" for name in LSTM}) for at in ("x", "y"))
    with pytest.raises(PlanError, match=r"'a\.weight_ih_l0' is a part of two networks"):
        rewritten(replace(checkpoint(own), modules=modules), keep_names=True)


def test_parameters_requirements_and_what_is_kept() -> None:
    """All tensors of a network are parameters, or the new one is none; requirements name the file."""
    parameters = {name: Entry(one, requires_grad=True, kind="parameter") for name, one in FIRST.items()}
    for last, kind in ((parameters["bias_hh_l0"], "parameter"), (Entry(FIRST["bias_hh_l0"]), "")):
        plan, _ = rewritten(under("a", parameters | {"bias_hh_l0": last}))
        one = plan.names["a.flat_weights"]
        assert (one.kind, one.requires_grad) == (kind, bool(kind))
    gru = {"weight_ih_l0": (6, 3), "weight_hh_l0": (6, 2), "bias_ih_l0": (6,), "bias_hh_l0": (6,)}
    plan, _ = rewritten(under("a", gru), "flux")
    assert [one.message.startswith("made.safetensors: 'a': the recurrent bias of gate n") for one in plan.requires] == [
        True
    ]
    plan, outcome = rewritten(under("a", LSTM), "keras", keep=True)
    kept = ["paramtool.kept/a/bias_ih_l0", "paramtool.kept/a/bias_hh_l0"]
    assert list(plan.names) == [*(f"a/{name}" for name in KERAS), *kept] and outcome.made == set(plan.names)
    back = checkpoint({target.name: target.shape for target in plan.targets})
    plan, outcome = rewritten(back, "torch", source="keras")  # what was kept is used, and gone
    assert list(plan.names) == [f"a.{name}" for name in LSTM] and not outcome.untouched
    whole = checkpoint(under("a", LSTM))
    (one,) = converted(whole, "keras")
    numbers = tuple(replace(target, dtype=view(0, 1, dtype="int32").dtype) for target in one.targets)
    with pytest.raises(LayoutError, match=r"'a': 'a/bias' would be calculated from tensors of int32"):
        rewrite.together(whole, [replace(one, targets=numbers)], False)
