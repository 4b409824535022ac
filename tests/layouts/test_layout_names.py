"""Finding networks by their names and shapes: prefixes, layers, directions, gates, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from paramtool import layouts
from paramtool.errors import LayoutError, UsageError
from paramtool.layouts.layout import stored
from paramtool.layouts.networks import Network, modules, network
from paramtool.layouts.spec import Spec
from paramtool.model.dtype import DTYPES
from paramtool.model.view import contiguous
from paramtool.passes.rnn.convert import Converted, convert
from tests.laws.conversions import NO_INNER_BIAS, held, meets, plan_of

Shapes = dict[str, tuple[int, ...]]


def shapes_of(layout: str, spec: Spec, at: str, separator: str | None = None) -> Shapes:
    """{name: shape} of a network below a module."""
    found = layouts.find(layout)
    chosen = found.chosen({})
    mark = found.separator if separator is None else separator
    tensors = stored(found, found.form(spec, chosen), spec, chosen)
    return {f"{at}{mark}{tensor.name}" if at else tensor.name: tensor.shape for tensor in tensors}


def read(layout: str, at: str, shapes: Shapes, **facts: object) -> Network:
    """The network of a module."""
    return network(layouts.find(layout), {}, at, shapes, facts=facts)


def found(layout: str, shapes: Shapes) -> list[str]:
    """Modules that look like networks of a layout."""
    one = layouts.find(layout)
    return modules(one, one.chosen({}), shapes)


G, H, I = 4, 5, 3  # noqa: E741 - the letters of the layouts' formulas
LSTM = Spec("lstm", I, H)


@pytest.mark.parametrize(
    ("layout", "at", "spec", "names"),
    [
        ("torch", "rnn", LSTM, "rnn.weight_ih_l0 rnn.weight_hh_l0 rnn.bias_ih_l0 rnn.bias_hh_l0"),
        ("torch", "", replace(LSTM, bias=False), "weight_ih_l0 weight_hh_l0"),
        (
            "torch", "a.b", replace(LSTM, bidirectional=True, bias=False),
            "a.b.weight_ih_l0 a.b.weight_hh_l0 a.b.weight_ih_l0_reverse a.b.weight_hh_l0_reverse",
        ),
        ("torch.cell", "cell", replace(LSTM, bias=False), "cell.weight_ih cell.weight_hh"),
        (
            "mxnet", "arg:net0_lstm0", LSTM,
            "arg:net0_lstm0_l0_i2h_weight arg:net0_lstm0_l0_h2h_weight arg:net0_lstm0_l0_i2h_bias "
            "arg:net0_lstm0_l0_h2h_bias",
        ),
        ("mxnet", "", LSTM, "l0_i2h_weight l0_h2h_weight l0_i2h_bias l0_h2h_bias"),
        (
            "mxnet.unfused", "enc", LSTM,
            "enc._unfused.0.i2h_weight enc._unfused.0.h2h_weight enc._unfused.0.i2h_bias enc._unfused.0.h2h_bias",
        ),
        (
            "mxnet.gates", "arg:enc", Spec("gru", I, H, reset="after"),
            " ".join(f"arg:enc_l0_{s}_{g}_{k}" for k in ("weight", "bias") for s in ("i2h", "h2h") for g in "rzo"),
        ),
        ("mxnet.flat", "arg:enc", LSTM, "arg:enc_parameters"),
        ("mxnet.v2", "enc", LSTM, "enc.rnn_param"),
        (
            "keras", "enc/enc/lstm_cell", LSTM,
            "enc/enc/lstm_cell/kernel:0 enc/enc/lstm_cell/recurrent_kernel:0 enc/enc/lstm_cell/bias:0",
        ),
        ("keras", "dense.lstm", LSTM, "dense.lstm.kernel dense.lstm.recurrent_kernel dense.lstm.bias"),
        ("keras.vars", "layers/lstm", LSTM, " ".join(f"layers/lstm/cell/vars/{k}" for k in range(3))),
        (
            "keras.vars", "layers/bidirectional", replace(LSTM, bidirectional=True),
            " ".join(f"layers/bidirectional/{s}ward_layer/cell/vars/{k}" for s in ("for", "back") for k in range(3)),
        ),
        ("tf1.basic", "rnn", LSTM, "rnn/kernel rnn/bias"),
        ("tf1.opaque", "rnn", LSTM, "rnn/opaque_kernel"),
        (
            "flax.linen", "params/LSTMCell_0", LSTM,
            " ".join(f"params/LSTMCell_0/{s}{g}/kernel" for s in "ih" for g in "ifgo")
            + " " + " ".join(f"params/LSTMCell_0/h{g}/bias" for g in "ifgo"),
        ),
        (
            "flax.nnx", "cell", LSTM,
            "cell.ii.kernel cell.if_.kernel cell.ig.kernel cell.io.kernel cell.hi.kernel cell.hf.kernel cell.hg.kernel "
            "cell.ho.kernel cell.hi.bias cell.hf.bias cell.hg.bias cell.ho.bias",
        ),
        ("haiku", "net/lstm", LSTM, "net/lstm/linear/w net/lstm/linear/b"),
        ("equinox", "cell", LSTM, "cell.weight_ih cell.weight_hh cell.bias"),
        ("flux", "layers.1", LSTM, "layers.1.cell.Wi layers.1.cell.Wh layers.1.cell.bias"),
        ("onnx", "LSTM_0", LSTM, "LSTM_0.W LSTM_0.R LSTM_0.B"),
        (
            "paddle", "rnn", Spec("rnn", I, H, activation="tanh"),
            "rnn.weight_ih_l0 rnn.weight_hh_l0 rnn.bias_ih_l0 rnn.bias_hh_l0 rnn.0.cell.weight_ih rnn.0.cell.weight_hh "
            "rnn.0.cell.bias_ih rnn.0.cell.bias_hh",
        ),
        ("chainer", "lstm", replace(LSTM), " ".join(f"lstm/0/{k}{n}" for k in "wb" for n in range(8))),
        ("coreml", "lstm", LSTM, "lstm.weight_ih lstm.weight_hh lstm.bias"),
    ],
)  # fmt: skip
def test_names_as_libraries_write_them(layout: str, at: str, spec: Spec, names: str) -> None:
    """Each library's own names, with prefixes as they occur, lead to the module and its network."""
    own = shapes_of(layout, spec, at)
    plain = {name.replace("/", ".").removesuffix(":0"): name for name in names.split()}
    assert {name.replace("/", ".") for name in own} == set(plain)
    shapes = {plain[name.replace("/", ".")]: shape for name, shape in own.items()}
    assert found(layout, shapes) == [at]
    flat = {name: getattr(spec, name) for name in ("kind", "input", "hidden")} if len(shapes) == 1 else {}
    said = {"activation": spec.activation} if spec.kind == "rnn" else {}
    reading = read(layout, at, shapes, **flat, **said, bidirectional=spec.bidirectional)
    assert (reading.spec, set(reading.tensors.values())) == (spec, set(shapes))


def test_r_is_the_reverse_direction() -> None:
    """In MXNet's names `r0` is layer 0 from right to left, next to `l0`."""
    spec = replace(LSTM, bidirectional=True)
    reading = read("mxnet", "enc", shapes_of("mxnet", spec, "enc"))
    assert reading.spec == spec
    reverse = {place.terms[0][1].direction for t in reading.stored() if t.name.startswith("r0") for place in
               t.places(contiguous(0, DTYPES["float32"], t.shape))}  # fmt: skip
    assert reverse == {1}


@pytest.mark.parametrize(("layout", "separator"), [("torch", "."), ("mxnet", "_"), ("keras", "/"), ("chainer", "/")])
def test_layers_have_two_digits_and_are_counted_as_numbers(layout: str, separator: str) -> None:
    """12 layers, in the order of the alphabet: layer 10 stands before layer 2 and is still the eleventh."""
    spec = Spec("lstm", I, H, 12, bidirectional=True)
    shapes = dict(sorted(shapes_of(layout, spec, "enc").items()))
    assert list(shapes) != list(shapes_of(layout, spec, "enc"))
    reading = read(layout, "enc", shapes, **({"bidirectional": True} if layout == "chainer" else {}))
    assert reading.spec == spec
    assert all(shapes[actual] == tensor.shape for tensor in reading.stored()
               if (actual := reading.tensors[tensor.name]))  # fmt: skip


def test_a_layer_that_is_missing_is_named() -> None:
    """Layers 0, 1 and 3 are no network of three layers."""
    shapes = {n: s for n, s in shapes_of("torch", Spec("lstm", I, H, 4), "enc").items() if "_l2" not in n}
    with pytest.raises(LayoutError, match=r"'weight_ih_l2' \[20, 5\] is missing"):
        read("torch", "enc", shapes)


def test_modules_stand_in_the_files_order_and_apart() -> None:
    """Several networks in one file, one of them below another's name, and other tensors between them."""
    gru = Spec("gru", I, H, reset="after")
    shapes = {
        "dec.att.weight": (4, 4),
        **shapes_of("torch", LSTM, "dec.rnn"),
        "dec.rnn.norm.weight": (5,),
        **shapes_of("torch", gru, "dec.rnn.inner"),
        **shapes_of("torch", replace(LSTM, hidden=7), "a"),
        "a.weight_ih_l0_raw": (28, 3),
    }
    assert found("torch", shapes) == ["dec.rnn", "dec.rnn.inner", "a"]
    assert [read("torch", at, shapes).spec for at in found("torch", shapes)] == [LSTM, gru, replace(LSTM, hidden=7)]


def test_a_module_and_names_at_the_top() -> None:
    """A network without a module's name beside one with."""
    shapes = shapes_of("torch", LSTM, "") | shapes_of("torch", replace(LSTM, hidden=6), "enc")
    assert found("torch", shapes) == ["", "enc"]
    assert (read("torch", "", shapes).spec.hidden, read("torch", "enc", shapes).spec.hidden) == (5, 6)
    with pytest.raises(LayoutError, match="the top-level names: not a network of layout mxnet"):
        read("mxnet", "", shapes)


def test_a_name_that_begins_like_a_module_is_another() -> None:
    """`enc2.weight_ih_l0` does not belong to `enc`."""
    shapes = shapes_of("torch", LSTM, "enc2") | shapes_of("torch", replace(LSTM, hidden=6), "enc")
    assert found("torch", shapes) == ["enc2", "enc"]
    assert read("torch", "enc", shapes).spec.hidden == 6


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("weight_hh_l0", "is missing|do not show"),
        ("weight_ih_l0", r"'weight_ih_l0' \[20, 3\] is missing"),
        ("bias_hh_l0", r"'bias_hh_l0' \[20\] is missing"),
        ("weight_hh_l0_reverse", r"'weight_hh_l0_reverse' \[20, 5\] is missing"),
        ("weight_ih_l1", r"'weight_ih_l1' \[20, 10\] is missing"),
    ],
)
def test_half_a_network_is_refused(gone: str, message: str) -> None:
    """The tensor that is missing is named with the shape that it should have."""
    shapes = shapes_of("torch", Spec("lstm", I, H, 2, True), "enc")
    del shapes[f"enc.{gone}"]
    with pytest.raises(LayoutError, match=message):
        read("torch", "enc", shapes)


def test_a_network_without_its_first_matrix_is_refused() -> None:
    """Nothing says how wide its input is."""
    shapes = {name: shape for name, shape in shapes_of("torch", LSTM, "enc").items() if "weight_ih" not in name}
    assert found("torch", shapes) == []
    with pytest.raises(LayoutError, match="the input weights of the first layer are missing"):
        read("torch", "enc", shapes)


def test_a_tensor_of_another_shape_is_named() -> None:
    """Its name, its shape, and the one that is expected."""
    shapes = shapes_of("torch", LSTM, "enc") | {"enc.bias_hh_l0": (15,)}
    with pytest.raises(LayoutError, match=r"'enc.bias_hh_l0' is \[15\], expected \[20\]"):
        read("torch", "enc", shapes)


def test_a_tensor_that_has_no_place_is_named() -> None:
    """A projection beside matrices that have none."""
    shapes = shapes_of("torch", LSTM, "enc") | {"enc.weight_hr_l0": (2, 5)}
    with pytest.raises(LayoutError, match=r"weight_h[hr]_l0"):
        read("torch", "enc", shapes)


def test_facts_that_the_shapes_contradict_are_refused() -> None:
    """What is said and what is seen stand in the message."""
    shapes = shapes_of("torch", LSTM, "enc")
    for said, message in (
        ({"hidden": 6}, "hidden|expected"),
        ({"layers": 2}, "layers=2 was given, but names and shapes show 1"),
        ({"bidirectional": True}, "bidirectional=True was given, but names and shapes show False"),
        ({"kind": "gru"}, "."),
        ({"bias": False, "projection": 2}, "."),
    ):
        with pytest.raises((LayoutError, UsageError), match=message):
            read("torch", "enc", shapes, **said)


def test_old_biases_of_two_axes_are_read() -> None:
    """A bias of [1, 20], as some old files have it, is the bias of 20."""
    shapes = shapes_of("torch", LSTM, "enc") | {"enc.bias_hh_l0": (1, 20)}
    assert read("torch", "enc", shapes).spec == LSTM


def test_names_that_do_not_follow_a_layout_may_be_said() -> None:
    """`tensors` says which tensor of a file is which of the layout."""
    own = shapes_of("onnx", LSTM, "")
    shapes = {f"onnx::LSTM_{k}": shape for k, shape in enumerate(own.values())}
    names = dict(zip(own, shapes, strict=True))
    reading = network(layouts.find("onnx"), {}, "/rnn", shapes, facts={}, tensors=names)
    assert (reading.spec, reading.tensors, reading.at) == (LSTM, names, "/rnn")


@pytest.mark.parametrize(
    ("layout", "narrow", "wide"),
    [("tf1.basic", Spec("lstm", 13, 4), "rnn input=1 hidden=16"), ("flux.packed", Spec("lstm", 13, 4), "rnn input=1")],
)
def test_ambiguous_shapes_list_every_reading(layout: str, narrow: Spec, wide: str) -> None:
    """A joined matrix that fits an LSTM and a wider RNN is refused, with a --spec for each; a kind decides."""
    shapes = shapes_of(layout, narrow, "enc")
    with pytest.raises(LayoutError, match="fits 2 networks") as caught:
        read(layout, "enc", shapes)
    assert '--spec "lstm input=13 hidden=4' in caught.value.hint and f'--spec "{wide}' in caught.value.hint
    assert read(layout, "enc", shapes, kind="lstm").spec == narrow
    assert read(layout, "enc", shapes, kind="rnn").spec.kind == "rnn"


def test_cells_counted_in_a_row_fit_two_networks() -> None:
    """Chainer's cells 0 and 1 are two layers or two directions where the input is as wide as what they give."""
    spec = Spec("lstm", 10, 5, 2)  # both readings: 10 -> 5, then 5 or 10 wide
    shapes = shapes_of("chainer", Spec("lstm", 5, 5, 2), "enc")
    with pytest.raises(LayoutError, match="fits 2 networks") as caught:
        read("chainer", "enc", shapes)
    assert "layers=2" in caught.value.hint and "bidirectional" in caught.value.hint
    assert read("chainer", "enc", shapes_of("chainer", spec, "enc")).spec == spec


def test_a_gru_of_onnx_has_to_say_where_it_resets() -> None:
    """linear_before_reset is in the node and not in the weights."""
    shapes = shapes_of("onnx", Spec("gru", I, H, reset="before"), "enc")
    with pytest.raises(LayoutError, match="fits 2 networks") as caught:
        read("onnx", "enc", shapes)
    assert "reset=after" in caught.value.hint and "reset=before" in caught.value.hint


# --- what a layout cannot hold ----------------------------------------------------------------------------------------


def plan(spec: Spec, source: str, target: str, dtypes: dict[str, str] | None = None) -> Converted:
    """The plan of converting a network whose tensors have these dtypes, float32 unless said."""
    layout = layouts.find(source)
    shapes = shapes_of(source, spec, "net")
    kinds = {name: DTYPES[(dtypes or {}).get(name, "float32")] for name in shapes}
    views = {name: contiguous(k, kinds[name], shape) for k, (name, shape) in enumerate(shapes.items())}
    chosen = layout.chosen({})
    own = {t.name: f"net{layout.separator}{t.name}" for t in stored(layout, layout.form(spec, chosen), spec, chosen)}
    reading = Network("net", layout, layout.form(spec, chosen), spec, chosen, own)
    return convert(reading, views, layouts.find(target), {}, at="net")


def test_gates_of_different_dtypes_do_not_become_one_tensor() -> None:
    """Arrays of float16 and float32 that would stand in one matrix are refused by name, with both dtypes."""
    mixed = {"net_l0_h2h_f_weight": "float16"}
    with pytest.raises(LayoutError, match=r"is float16; expected one dtype"):
        plan(LSTM, "mxnet.gates", "torch", mixed)
    biases = {"net.bias_hh_l0": "float64"}
    with pytest.raises(LayoutError, match=r"'net/bias' .* float32, float64; expected one dtype"):
        plan(LSTM, "torch", "keras", biases)


def test_whole_tensors_keep_their_own_dtypes() -> None:
    """Where nothing is put together, each tensor has the dtype that it had; biases that are made have the weights'."""
    found = plan(LSTM, "torch", "mxnet", {"net.bias_hh_l0": "float64", "net.weight_hh_l0": "float16"})
    assert {t.name.split("_", 1)[1]: t.dtype.name for t in found.targets} == {
        "l0_i2h_weight": "float32", "l0_h2h_weight": "float16", "l0_i2h_bias": "float32", "l0_h2h_bias": "float64",
    }  # fmt: skip
    spec = replace(LSTM, bias=False)
    made = plan(spec, "torch", "mxnet", {"net.weight_ih_l0": "bfloat16", "net.weight_hh_l0": "bfloat16"})
    assert {target.dtype.name for target in made.targets} == {"bfloat16"}


def test_packed_types_are_refused() -> None:
    """Types of several elements in a byte are named."""
    packed = dict.fromkeys(shapes_of("torch", Spec("lstm", 4, 4), "net"), "float4_e2m1fn")
    with pytest.raises(LayoutError, match="float4_e2m1fn; packed and quantised networks are not converted"):
        plan(Spec("lstm", 4, 4), "torch", "cudnn", packed)


@pytest.mark.parametrize("name", sorted(NO_INNER_BIAS))
def test_an_inner_bias_is_required_to_be_zero(name: str) -> None:
    """The requirement names the cell and the layout, and its hint those that have a place for it."""
    spec = Spec("gru", I, H, reset="after")
    (need,) = plan(spec, "torch", name).requires
    assert (need.terms, need.shift, prod(need.view.shape)) == ((), 0.0, H)
    cell = "the recurrent bias of gate n (layer 0)"
    assert need.message == f"'net': {cell} is not zero, and layout {name} has no place for it"
    assert need.hint.startswith("layouts that hold it: torch, ")
    assert all(f" {other}" in need.hint for other in ("cudnn", "mxnet", "keras", "flax.linen", "equinox", "onnx"))


def test_the_holders_of_an_inner_bias_all_hold_it() -> None:
    """None of the layouts that the hint names would refuse the network for the same reason."""
    (need,) = plan(Spec("gru", I, H, reset="after"), "torch", "flax.nnx").requires
    assert not set(need.hint.removeprefix("layouts that hold it: ").split(", ")) & NO_INNER_BIAS


@pytest.mark.parametrize(
    ("spec", "source", "target", "message", "holders", "lacking"),
    [
        (
            Spec("lstm", I, H, projection=2), "torch", "keras", "it has no place for the projection",
            ("torch", "cudnn", "mxnet", "paddle", "onednn", "tf1.basic"), ("keras", "onnx", "flux"),
        ),
        (
            Spec("gru", I, H, reset="after"), "torch", "haiku",
            "its GRU applies the reset gate before the recurrent product, the network has reset=after",
            ("torch", "keras", "onnx", "flux"), ("haiku", "tf1.basic"),
        ),
        (
            Spec("gru", I, H, reset="before"), "haiku", "torch",
            "its GRU applies the reset gate after the recurrent product, the network has reset=before",
            ("haiku", "keras", "onnx", "flux", "tf1.basic"), ("torch", "cudnn"),
        ),
        (
            Spec("rnn", I, H, activation="tanh"), "torch", "haiku",
            "its RNN is relu only, the network's activation is tanh", ("torch", "keras"), ("haiku", "equinox"),
        ),
        (
            Spec("lstm", I, H, bidirectional=True), "torch", "torch.cell", "it holds only one direction",
            ("torch", "mxnet"), ("torch.cell", "mxnet.cell"),
        ),
        (
            Spec("rnn", I, H, activation="tanh"), "torch", "equinox", "it has no rnn", ("torch", "flux"), ("equinox",),
        ),
    ],
)  # fmt: skip
def test_what_a_layout_cannot_hold_is_refused_by_name(
    spec: Spec, source: str, target: str, message: str, holders: tuple[str, ...], lacking: tuple[str, ...]
) -> None:
    """The message says what it lacks, and the hint which layouts have it."""
    with pytest.raises(LayoutError) as caught:
        plan(spec, source, target)
    assert f"{spec}: layout {target} cannot hold it: " in str(caught.value) and message in str(caught.value)
    names = caught.value.hint.removeprefix("layouts that hold it: ").split(", ")
    assert set(holders) <= set(names) and not set(lacking) & set(names)


def test_peepholes_are_required_to_be_zero_cell_by_cell() -> None:
    """Each gate's peephole has its own requirement, and the hint names layouts that have peepholes."""
    found = plan(Spec("lstm", I, H, peephole=True), "onnx", "torch")
    assert [one.message.split("the ")[1].split(" (")[0] for one in found.requires] == [
        "peephole of gate i", "peephole of gate o", "peephole of gate f",
    ]  # fmt: skip
    assert all("lasagne" in one.hint and "torch" not in one.hint for one in found.requires)


@pytest.mark.parametrize("word", ["gate_activation", "cell_clip", "clip", "coupled", "backward"])
def test_facts_without_a_word_are_refused_by_name(word: str) -> None:
    """A hard sigmoid, a clip or coupled gates do not go to a library that has no word for them."""
    said = {
        "gate_activation": "hard_sigmoid(0.2,0.5)",
        "cell_clip": 3.0,
        "clip": 1.0,
        "coupled": True,
        "backward": True,
    }
    source = "tf1.basic" if word == "cell_clip" else "onnx"
    with pytest.raises(LayoutError, match=f"layout torch cannot hold it: it has no {word}"):
        plan(replace(LSTM, **{word: said[word]}), source, "torch")


def test_an_unknown_layout_has_its_neighbours_named() -> None:
    """A typing error is answered with what is near."""
    with pytest.raises(UsageError, match="there is no layout 'kears'") as caught:
        layouts.find("kears")
    assert "keras" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        layouts.find("qkv-per-hed", ["qkv-per-head", "vllm"])
    assert caught.value.hint.endswith("did you mean qkv-per-head?")


def test_a_family_is_its_schemes() -> None:
    """`mxnet` stands for every way in which MXNet saves."""
    assert {one.name for one in layouts.family("mxnet")} == {
        "mxnet", "mxnet.unfused", "mxnet.gates", "mxnet.cell", "mxnet.flat", "mxnet.v2",
    }  # fmt: skip
    assert [one.name for one in layouts.family("torch.cell")] == ["torch.cell"]


@pytest.mark.parametrize("text", ["tf1.basic:forget_bias", "tf1.basic:=1", "tf1.basic:forget_bias=", "a:b=c,d"])
def test_malformed_options_are_refused(text: str) -> None:
    """The part that is no `key=value` is named."""
    with pytest.raises(UsageError, match="is not an option of a layout"):
        layouts.parse(text)


def test_options_that_are_no_numbers_are_refused() -> None:
    """A forget bias that is a word is named with what is expected."""
    source = held({n: np.zeros(s, np.float32) for n, s in shapes_of("torch", LSTM, "net").items()}, "torch", LSTM)
    with pytest.raises(UsageError, match="invalid forget_bias=much; expected a finite number"):
        plan_of(source, "tf1.basic", {"forget_bias": "much"})
    assert meets(source, plan_of(source, "tf1.basic", {"forget_bias": "0.5"}))


@pytest.mark.parametrize(
    ("layout", "scope", "layers", "sides"),
    [
        ("tf1.basic", "basic_lstm_cell", 1, ("",)),
        ("tf1.basic", "multi_rnn_cell/cell_{k}/basic_lstm_cell", 2, ("",)),
        ("tf1.basic", "bidirectional_rnn/{side}/lstm_cell", 1, ("fw", "bw")),
        ("tf1.canonical", "cell_{k}/bidirectional_rnn/{side}/cudnn_compatible_lstm_cell", 2, ("fw", "bw")),
        ("tf1.canonical", "multi_rnn_cell/cell_{k}/cudnn_compatible_lstm_cell", 3, ("",)),
    ],
)
def test_scopes_of_tensorflow(layout: str, scope: str, layers: int, sides: tuple[str, ...]) -> None:
    """Variables under the scopes that TensorFlow's cells open are layers and directions of one network."""
    shapes: dict[str, tuple[int, ...]] = {}
    for k in range(layers):
        for side in sides:
            at = f"rnn/{scope}".format(k=k, side=side)
            width = 3 if k == 0 else 4 * len(sides)
            shapes |= {f"{at}/kernel": (width + 4, 16), f"{at}/bias": (16,)}
    table = layouts.find(layout)
    (at,) = modules(table, table.chosen({}), shapes)
    found = network(table, {}, at, shapes, facts={"kind": "lstm"})
    assert (found.spec.layers, found.spec.directions, found.spec.input) == (layers, len(sides), 3)
    assert set(found.tensors.values()) == shapes.keys()


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "GRU"])
def test_a_kind_in_place_of_a_layout(kind: str) -> None:
    """The error lists the layouts of that kind."""
    with pytest.raises(UsageError, match=f"there is no layout {kind!r}") as caught:
        layouts.find(kind)
    assert caught.value.hint.startswith(f"layouts of a {kind.lower()}: torch, torch.cell, cudnn, ")
