"""Which tensor of a model is filled from what: matching, plans, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from paramtool.errors import LayoutError, UsageError
from paramtool.layouts import find
from paramtool.layouts.networks import Network, network
from paramtool.layouts.spec import parse, whole
from paramtool.model.checkpoint import Checkpoint, LayerPart
from paramtool.model.dtype import DTYPES
from paramtool.passes.into.layers import LayerTensor, PlainLayer, fits, partners, source_layers, widens
from paramtool.passes.into.matching import is_numbered, matched
from paramtool.passes.into.networks import NetworkUnit, apart, join, said_pair
from paramtool.passes.into.plan import Into, plan
from tests.passes.made import checkpoint, view

F32 = DTYPES["float32"]


def test_dtypes_that_hold_each_value() -> None:
    yes = ("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float8_e5m2", "float16")
    no = ("float32", "float16"), ("float16", "bfloat16"), ("int64", "float64"), ("int8", "uint8")
    assert all(widens(DTYPES[one], DTYPES[other]) for one, other in yes)
    assert not any(widens(DTYPES[one], DTYPES[other]) for one, other in no)


# --- matching -----------------------------------------------------------------------------------------------------


def pairs(ours: Sequence[str], theirs: Sequence[str], fit: Any = lambda one, other: True) -> Any:
    found, unsure = matched(ours, theirs, str, fit)
    return [(one.source, one.model, one.how) for one in found], [(one.sources, one.models) for one in unsure]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (["enc.fc"], ["enc/fc"], [("enc.fc", "enc/fc", "name")]),
        (["module.fc", "x"], ["fc"], [("module.fc", "fc", "name")]),
        (["a"], ["b"], [("a", "b", "shape")]),
        (["0", "2"], ["dense", "dense_1"], [("0", "dense", "order"), ("2", "dense_1", "order")]),
        (
            ["rnn.l[0]", "rnn.l[1]"],
            ["lstm", "lstm_1"],
            [("rnn.l[0]", "lstm", "order"), ("rnn.l[1]", "lstm_1", "order")],
        ),
        (["fc", "a"], ["b", "fc"], [("fc", "fc", "name"), ("a", "b", "shape")]),
        # Keras numbers layers through a process: where the numbers differ, the order counts, and no equal name
        (
            ["dense", "dense_1"],
            ["dense_1", "dense_2"],
            [("dense", "dense_1", "order"), ("dense_1", "dense_2", "order")],
        ),
        (
            ["dense_1", "dense_2"],
            ["dense_1", "dense_2"],
            [("dense_1", "dense_1", "name"), ("dense_2", "dense_2", "name")],
        ),
        (["fc_1", "fc_2"], ["fc_2", "fc_3"], [("fc_2", "fc_2", "name"), ("fc_1", "fc_3", "shape")]),
    ],
)
def test_what_belongs_together(ours: list[str], theirs: list[str], expected: Any) -> None:
    assert pairs(ours, theirs) == (expected, [])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["left", "right"], ["one", "two"]),
        (["2", "0"], ["dense", "dense_1"]),  # numbers that contradict the order of the file
        (["0", "1", "2"], ["dense", "dense_1"]),
        (["a"], ["dense", "dense_1"]),
        (["0", "1"], ["one", "two"]),
        (["one", "two"], ["dense", "dense_1"]),
        (["enc.fc", "dec.fc"], ["fc"]),
        (["dense_1"], ["dense_1", "dense_2"]),  # the first of one process, or the second of a model of another
        (["net.dense", "net.dense_1", "net.dense_2"], ["dense_1", "dense_2"]),
    ],
)
def test_what_is_ambiguous(ours: list[str], theirs: list[str]) -> None:
    found, unsure = pairs(ours, theirs)
    assert not found and unsure == [(tuple(ours), tuple(theirs))]


def test_numbers() -> None:
    assert is_numbered([("a1",), ("a2",), ("a10",)]) and not is_numbered([("a1",), ("a1",)])


# --- plans --------------------------------------------------------------------------------------------------------


def model_of(tensors: Mapping[str, Any], parts: Mapping[str, tuple[str, ...]]) -> Checkpoint:
    said = {name: LayerPart(*words) for name, words in parts.items()}
    return replace(checkpoint(tensors, format="keras zip"), parts=said)


DENSE = {"k": ("fc", "dense", "weight", "in out"), "b": ("fc", "dense", "bias", "out")}


def made(source: Mapping[str, Any], model: Checkpoint, *maps: str) -> Into:
    return plan(checkpoint(source), [], model, [], maps=maps)


def test_a_dense_layer_is_transposed() -> None:
    into = made({"fc.weight": (5, 3), "fc.bias": (5,)}, model_of({"k": (3, 5), "b": (5,)}, DENSE))
    weight = into.layers[0].fillings[0]
    assert weight.is_moved and (weight.source_axes, weight.axes) == ("out in", "in out")
    assert into.targets["k"].copies[0].terms[0][1].strides == (1, 3)
    assert not into.unfilled and not into.unused


def test_a_kernel_stays() -> None:
    into = made({"fc.kernel": (5, 5), "fc.bias": (5,)}, model_of({"k": (5, 5), "b": (5,)}, DENSE))
    assert not into.layers[0].fillings[0].is_moved


def test_a_square_matrix_that_nothing_explains_is_refused() -> None:
    model = model_of({"x": (4, 4)}, {"x": ("fc", "", "0")})
    with pytest.raises(LayoutError, match="several orders of its axes") as error:
        made({"fc.weight": (4, 4)}, model)
    assert "--map 'fc.weight=x:transpose'" in error.value.hint
    for force, strides in (("as-is", (4, 1)), ("transpose", (1, 4))):
        into = made({"fc.weight": (4, 4)}, model, f"fc.weight=x:{force}")
        assert into.targets["x"].copies[0].terms[0][1].strides == strides
    into = made({"fc.weight": (4, 3)}, model_of({"x": (4, 3)}, {"x": ("fc", "", "0")}))
    assert into.layers[0].fillings[0].axes == ""


def test_content_free_names_and_unknown_maps() -> None:
    model = model_of({"k": (3, 5), "b": (5,)}, DENSE)
    for text in ("fc", "fc=nothing", "nothing=fc"):
        with pytest.raises(UsageError, match="map"):
            made({"fc.weight": (5, 3)}, model, text)
    into = made({"a.weight": (5, 3), "b.weight": (5, 3)}, model, "b.weight=k")
    assert into.layers[0].fillings[0].source == "b.weight" and into.unused == ("a.weight",)
    assert made({"a.weight": (5, 3), "b.weight": (5, 3)}, model, "b=fc").layers[0].how == "map"


def test_a_dtype_that_is_too_wide() -> None:
    model = model_of({"k": view(0, 3, 5, dtype="float16")}, {"k": DENSE["k"]})
    with pytest.raises(LayoutError, match="is float32; 'k' is float16"):
        made({"fc.weight": (5, 3)}, model)
    wide = model_of({"k": view(0, 3, 5, dtype="float64")}, {"k": DENSE["k"]})
    assert made({"fc.weight": (5, 3)}, wide).layers[0].fillings[0].widened == "float32"


def test_two_names_of_one_tensor() -> None:
    parts = {"k": ("a", "dense", "weight", "in out"), "l": ("b", "dense", "weight", "in out")}
    model = model_of({"k": view(0, 3, 5), "l": view(0, 3, 5)}, parts)
    assert list(made({"a.weight": view(0, 5, 3), "b.weight": view(0, 5, 3)}, model).targets) == ["k"]
    with pytest.raises(LayoutError, match="would get different values"):
        made({"a.weight": (5, 3), "b.weight": (5, 3)}, model)


def test_a_state_is_no_weight_and_an_optimizer_is_left_alone() -> None:
    model = model_of({"k": (3, 5), "seed": (2,)}, {"k": DENSE["k"], "seed": ("drop", "", "seed")})
    state = replace(model, parts={**model.parts, "seed": LayerPart("drop", is_state=True)})
    assert made({"fc.weight": (5, 3)}, state).unfilled == ()
    assert made({"fc.weight": (5, 3)}, model).unfilled == ("seed",)


def test_a_norm_needs_its_statistics() -> None:
    parts = ("scale", "shift", "mean", "variance")
    model = PlainLayer("n", "batchnorm", tuple(
        LayerTensor(part, part, view(k, 4), LayerPart("n", "batchnorm", part, "out")) for k, part in enumerate(parts)
    ))  # fmt: skip
    names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    (whole_norm,) = source_layers(checkpoint({f"bn.{name}": (4,) for name in names}), ())[:1]
    assert fits(whole_norm, model) and len(partners(whole_norm, model)) == 4
    (half,) = source_layers(checkpoint({"bn.weight": (4,), "bn.bias": (4,)}), ())[:1]
    assert not fits(half, model)


def test_a_layer_with_more_than_the_models_does_not_fit_by_shape() -> None:
    def dense(*parts: str) -> PlainLayer:
        shapes = {"weight": (3, 5), "bias": (5,)}
        axes = {"weight": "in out", "bias": "out"}
        said = {part: LayerPart("fc", "dense", part, axes[part]) for part in parts}
        return PlainLayer("fc", "dense", tuple(LayerTensor(p, p, view(0, *shapes[p]), said[p]) for p in parts))

    assert fits(dense("weight", "bias"), dense("weight", "bias"))
    assert not fits(dense("weight", "bias"), dense("weight"))
    assert not fits(dense("weight"), dense("weight", "bias"))


# --- networks -----------------------------------------------------------------------------------------------------


def lstm(at: str, input: int, hidden: int, layers: int = 1) -> tuple[dict[str, tuple[int, ...]], Network]:
    shapes: dict[str, tuple[int, ...]] = {}
    for k in range(layers):
        shapes[f"{at}.weight_ih_l{k}"] = (4 * hidden, hidden if k else input)
        shapes[f"{at}.weight_hh_l{k}"] = (4 * hidden, hidden)
    facts = whole(parse("lstm bias=no"))
    return shapes, network(find("torch"), {}, at, shapes, facts=facts)


def keras(at: str, input: int, hidden: int, words: str = "") -> tuple[dict[str, tuple[int, ...]], Network]:
    own = {"kernel": (input, 4 * hidden), "recurrent_kernel": (hidden, 4 * hidden)}
    shapes = {f"{at}/{name}": shape for name, shape in own.items()}
    facts = whole(parse(f"lstm backward=no activation=tanh gate_activation=sigmoid {words}"))
    tensors = {name: f"{at}/{name}" for name in own}
    return shapes, network(find("keras"), {}, at, shapes, facts=facts, tensors=tensors)


def into_networks(ours: Sequence[Any], theirs: Sequence[Any], *maps: str) -> Into:
    mine = checkpoint({name: shape for shapes, _ in ours for name, shape in shapes.items()})
    model = checkpoint({name: shape for shapes, _ in theirs for name, shape in shapes.items()}, format="keras zip")
    return plan(mine, [one for _, one in ours], model, [one for _, one in theirs], maps=maps)


def names_of(into: Into) -> list[tuple[str, str, str]]:
    return [(one.pair.source.name, one.pair.model.name, one.pair.how) for one in into.networks]


def test_layers_of_one_network_go_to_several() -> None:
    into = into_networks([lstm("rnn", 3, 5, 3)], [keras("lstm", 3, 5), keras("lstm_1", 5, 5), keras("lstm_2", 5, 5)])
    assert sorted(names_of(into)) == [
        ("rnn[0]", "lstm", "shape"), ("rnn[1]", "lstm_1", "order"), ("rnn[2]", "lstm_2", "order"),
    ]  # fmt: skip
    assert len(into.targets) == 6


def test_several_go_to_the_layers_of_one() -> None:
    into = into_networks([keras("a", 3, 5), keras("b", 5, 5)], [lstm("rnn", 3, 5, 2)])
    assert names_of(into) == [("a, b", "rnn", "shape")] and set(into.targets) == set(lstm("rnn", 3, 5, 2)[0])
    with pytest.raises(LayoutError, match="only 1 of the 2 layers of 'rnn' have a source"):
        into_networks([keras("a", 3, 5)], [lstm("rnn", 3, 5, 2)])


def test_layers_are_joined_in_their_order() -> None:
    """The second layer is found first, by its name."""
    into = into_networks([keras("x", 3, 5), keras("rnn[1]", 5, 5)], [lstm("rnn", 3, 5, 2)])
    assert [(one.pair.source.name, one.pair.model.name) for one in into.networks] == [("x, rnn[1]", "rnn")]


def test_maps_join_and_split() -> None:
    into = into_networks([keras("x", 5, 5), keras("y", 5, 5)], [lstm("rnn", 5, 5, 2)], "y,x=rnn")
    assert names_of(into) == [("y, x", "rnn", "map")]
    first = into.targets["rnn.weight_ih_l0"].copies[0].terms[0][1].storage
    assert first == 2  # y's kernel
    into = into_networks([lstm("rnn", 5, 5, 2)], [keras("one", 5, 5), keras("two", 5, 5)], "rnn=two,one")
    assert names_of(into) == [("rnn[0]", "two", "map"), ("rnn[1]", "one", "map")]
    with pytest.raises(LayoutError, match="has 2 layers"):
        into_networks([lstm("rnn", 5, 5, 2)], [keras(n, 5, 5) for n in "abc"], "rnn=a,b,c")


def test_networks_of_one_size_are_refused() -> None:
    with pytest.raises(LayoutError, match="2 networks of the source could be 2 networks of the model") as error:
        into_networks([lstm("fwd", 3, 5), lstm("bwd", 3, 5)], [keras("one", 3, 5), keras("two", 3, 5)])
    assert "--map fwd=one --map bwd=two" in error.value.hint
    assert names_of(into_networks([lstm("lstm", 3, 5)], [keras("lstm", 3, 5)])) == [("lstm", "lstm", "name")]


@pytest.mark.parametrize(
    ("ours", "theirs", "maps", "expected"),
    [
        ([("rnn", 2)], [("one", 1)], ["rnn[0]=one"], [("rnn[0]", "one", "map")]),
        (
            [("rnn", 2)],
            [("one", 1), ("two", 1)],
            ["rnn[0]=one", "rnn[1]=two"],
            [("rnn[0]", "one", "map"), ("rnn[1]", "two", "map")],
        ),
        ([("x", 1), ("y", 1)], [("rnn", 2)], ["x,y=rnn"], [("x, y", "rnn", "map")]),
    ],
)
def test_what_the_hint_says_is_accepted(ours: Any, theirs: Any, maps: list[str], expected: Any) -> None:
    """Layers of a network are named as the error names them."""

    def into(*maps: str) -> Into:
        mine = [lstm(name, 5, 5, layers) for name, layers in ours]
        return into_networks(mine, [keras(n, 5, 5) if k == 1 else lstm(n, 5, 5, k) for n, k in theirs], *maps)

    with pytest.raises(LayoutError) as error:
        into()
    assert re.findall(r"--map ([^ ,]*(?:,[^ ,]+)*)", error.value.hint.replace("'", "")) == maps
    assert names_of(into(*maps)) == expected


def test_the_layer_that_no_map_names_is_matched_as_before() -> None:
    into = into_networks([lstm("rnn", 5, 5, 2)], [keras("one", 5, 5), keras("two", 5, 5)], "rnn[1]=one")
    assert names_of(into) == [("rnn[1]", "one", "map"), ("rnn[0]", "two", "shape")]
    into = into_networks([lstm("rnn", 5, 5, 2)], [keras("one", 5, 5)], "rnn[1]=one")
    assert into.unused == ("rnn.weight_ih_l0", "rnn.weight_hh_l0")


@pytest.mark.parametrize(
    "words", ["activation=relu", "gate_activation=hard_sigmoid(0.2,0.5)", "hidden=5 input=3 backward"]
)
def test_what_both_say_must_agree(words: str) -> None:
    facts = whole(parse(words))
    shapes, one = keras("lstm", 3, 5)
    other = replace(one, spec=replace(one.spec, **facts))
    with pytest.raises(LayoutError, match=r"the source is lstm input=3 hidden=5.*the model is lstm input=3 hidden=5"):
        into_networks([lstm("lstm", 3, 5)], [(shapes, other)])


def test_what_one_does_not_say_is_the_others() -> None:
    shapes, one = keras("lstm", 3, 5)
    silent = replace(one, lacking=("backward",), assumed=(("activation=tanh", ""),))
    into = into_networks([lstm("lstm", 3, 5)], [(shapes, silent)])
    assert any("the model does not say activation=tanh, backward=no, as the source has it" in t for t in into.notes)
    into = into_networks([(shapes, silent)], [lstm("lstm", 3, 5)])
    assert any("the source does not say" in text for text in into.notes)


def test_units() -> None:
    _, one = lstm("rnn", 5, 5, 2)
    whole_unit = NetworkUnit("rnn", one, one)
    pieces = apart(whole_unit, "f")
    assert [piece.name for piece in pieces] == ["rnn[0]", "rnn[1]"]
    assert join(pieces, "f").network.tensors == one.tensors
    assert len(said_pair([whole_unit], pieces, "f")) == 2
