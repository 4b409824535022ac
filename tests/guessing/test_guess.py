"""Guesses: the true network is always listed, for ordinary sizes among the first, and nothing is ever decided."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import paramtool
from paramtool import formats, layouts
from paramtool.commands.guess import Guessed, TypedCall, guess
from paramtool.engine.read import open_files
from paramtool.engine.read.source import Source
from paramtool.errors import FormatError, LayoutError, UsageError
from paramtool.guessing import values as guessing_values
from paramtool.guessing.candidates import MAX_HIDDEN, MAX_LAYERS, SURE, Hints, Width, flat, readings, spec_of
from paramtool.guessing.cells import as_toml
from paramtool.guessing.names import by_names
from paramtool.guessing.sets import by_shapes
from paramtool.guessing.values import CandidateRegion, Sketch, Stats, judge, survey
from paramtool.guessing.vectors import hints, vectors
from paramtool.layouts.layout import stored
from paramtool.layouts.spec import Spec
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View

ROOT = Path(__file__).resolve().parents[2]

# --- lengths ----------------------------------------------------------------------------------------------------------


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A network whose flat vector is within the bounds."""
    kind = draw(st.sampled_from(["lstm", "gru", "rnn"]))
    hidden = draw(st.integers(1, 300))
    return Spec(
        kind,
        draw(st.integers(1, 2000)),
        hidden,
        draw(st.integers(1, MAX_LAYERS)),
        draw(st.booleans()),
        draw(st.integers(1, hidden - 1)) if kind == "lstm" and hidden > 1 and draw(st.booleans()) else 0,
        draw(st.booleans()),
        "after" if kind == "gru" else "",
    )


def length_of(spec: Spec, layout: str) -> int:
    """The length that the layout's own table gives."""
    name, options = layouts.parse(layout)
    found = layouts.find(name)
    chosen = found.chosen(options)
    (tensor,) = stored(found, found.form(spec, chosen), spec, chosen)
    return tensor.shape[0]


@given(specs(), st.sampled_from(["cudnn", "cudnn:tail=no", "cudnn:bias_mode=input"]))
def test_the_true_network_is_always_listed(spec: Spec, layout: str) -> None:
    """Whatever it is, in the variant that it has, where its projection is hinted."""
    if layout.endswith("tail=no") and spec.bias:
        layout = "cudnn"
    if layout.endswith("input") and not spec.bias:
        layout = "cudnn"
    known = Hints(projections=(spec.projection,) if spec.projection else ())
    found = flat(length_of(spec, layout), known)
    assert (layout, str(spec)) in {(one.layout, one.spec) for one in found}


@given(st.integers(0, 20_000))
def test_each_listed_network_has_the_length(length: int) -> None:
    """The arithmetic and the tables of layouts agree, both ways."""
    found = flat(length)
    for one in found[:: max(1, len(found) // 20)]:
        assert length_of(spec_of(one.spec), one.layout) == length, one


def test_each_network_is_listed_once() -> None:
    """No reading comes twice."""
    found = [(one.layout, one.spec) for one in flat(52000)]
    assert len(found) == len(set(found)) > 1000


class Counted(int):
    """A length that counts how often it is divided."""

    divided = 0

    def __mod__(self, other: int) -> int:
        Counted.divided += 1
        return int(self) % other

    def __divmod__(self, other: int) -> tuple[int, int]:
        Counted.divided += 1
        return divmod(int(self), other)


@pytest.mark.parametrize("length", [10**9, 735_134_400, 2**62, 2**31 - 1])
def test_the_work_for_a_huge_length_is_bounded(length: int) -> None:
    """One try for each hidden size, some for each that divides; a multiple of everything has the most."""
    Counted.divided = 0
    known = Hints(projections=(64, 128))
    found = sum(1 for _ in readings(Counted(length), known))
    dividing = sum(length % hidden == 0 for hidden in range(1, MAX_HIDDEN + 1))
    tries = dividing * 3 * 2 * 4 * (1 + len(known.projections))
    assert MAX_HIDDEN <= Counted.divided <= MAX_HIDDEN + tries
    assert found <= tries * MAX_LAYERS


def test_a_length_of_no_network() -> None:
    """Nothing fits: no candidate, and no error."""
    assert flat(0) == flat(1) == []


def test_the_only_network_of_a_length() -> None:
    """Where just one of all that are looked for fits, its reasons say so, and still it is but a shape."""
    (length,) = [n for n in range(1, 12) if len(flat(n)) == 1][:1]
    (one,) = flat(length)
    assert one.sure == "shapes only" and "no other network" in one.reasons[0]


def test_a_length_fits_many_and_none_is_sure() -> None:
    """Each is possible, no more."""
    assert {one.sure for one in flat(52000)} == {"possible"}


@pytest.mark.parametrize(
    "hint, word",
    [
        (Hints(kind="rnn"), "the name says rnn"),
        (Hints(bidirectional=True), "the name says both directions"),
        (Hints(layers=4), "the name says 4 layers"),
        (Hints(inputs=(Width(418, "emb [9, 418] gives 418"),)), "emb [9, 418] gives 418: input=418"),
        (Hints(outputs=(Width(208, "fc [9, 208] takes 208"),)), "fc [9, 208] takes 208: hidden=208"),
    ],
)
def test_a_hint_lifts_what_it_fits(hint: Hints, word: str) -> None:
    """And the candidate says which hint it was; the others stay listed."""
    plain, hinted = flat(52000), flat(52000, hint)
    assert {one.spec for one in plain} == {one.spec for one in hinted}
    assert any(word in reason for reason in hinted[0].reasons), hinted[0]
    rank = [one.spec for one in plain].index(hinted[0].spec)
    assert rank > 0


# --- vectors of a checkpoint ------------------------------------------------------------------------------------------


def test_biases_and_norms_are_no_networks() -> None:
    """By their names, and by being as long as an axis of a matrix."""
    shapes = {
        "enc.rnn.weights": (52000,), "fc.weight": (512, 100), "fc.bias": (512,), "x.odd": (512,), "norm.weight": (700,),
        "bn.running_var": (700,), "q": (40,), "enc.i2h_bias": (400,), "a": (999,), "net_parameters": (512,),
    }  # fmt: skip
    assert vectors(shapes, shapes) == ["enc.rnn.weights", "a", "net_parameters"]
    assert vectors({"q": (40,)}, shapes, asked=True) == ["q"]


def test_names_and_neighbours_are_hints() -> None:
    """An embedding's width, what a layer behind takes, the words of the name, the layout of its ending."""
    shapes = {
        "emb.weight": (3000, 28), "bilstm_2layers_parameters": (52000,), "fc.weight": (10, 200), "far.weight": (3, 7),
        "farther.weight": (3, 8),
    }  # fmt: skip
    found = hints("bilstm_2layers_parameters", shapes)
    assert (found.kind, found.bidirectional, found.layers, found.layout) == ("lstm", True, 2, "mxnet.flat")
    assert found.at == "bilstm_2layers"
    assert [width.size for width in found.inputs] == [28] and [width.size for width in found.outputs] == [200, 7]
    assert found.projections == ()


def test_projections_are_looked_for_where_the_name_says_so() -> None:
    """The widths behind are tried, for both directions, too."""
    shapes = {"lstmp.weights": (9999,), "fc.weight": (10, 64)}
    assert hints("lstmp.weights", shapes).projections == (32, 64)


def test_tensorrts_second_vector_narrows_the_first() -> None:
    """The length of the biases is two rows of gates for each layer and direction."""
    spec = Spec("lstm", 28, 100)
    shapes = {"rnn.weights": (length_of(spec, "cudnn") - 800,), "rnn.biases": (800,)}
    found = flat(shapes["rnn.weights"][0], hints("rnn.weights", shapes))
    assert {one.layout for one in found} == {"tensorrt"} and found[0].at == "rnn"
    assert str(spec) in [one.spec for one in found]
    assert all(2 * len(s.gates) * s.hidden * s.layers * s.directions == 800 for s in (spec_of(o.spec) for o in found))


# --- values -----------------------------------------------------------------------------------------------------------

ORDINARY: list[tuple[Any, int, int, int, bool]] = [
    (torch.nn.LSTM, 28, 100, 1, False),
    (torch.nn.LSTM, 18, 128, 2, False),
    (torch.nn.LSTM, 40, 256, 1, True),
    (torch.nn.GRU, 80, 64, 1, False),
    (torch.nn.LSTM, 1, 32, 1, False),
    (torch.nn.GRU, 13, 48, 1, False),
    (torch.nn.LSTM, 8, 37, 1, False),
    (torch.nn.RNN, 10, 20, 1, False),
]


def in_order_p(rnn: Any) -> torch.Tensor:
    """All matrices, then all biases, each by layer and direction."""
    parts = [p.detach().reshape(-1) for p in rnn.parameters()]
    names = [name for name, _ in rnn.named_parameters()]
    matrices = [part for name, part in zip(names, parts, strict=True) if name.startswith("weight")]
    return torch.cat(matrices + [part for name, part in zip(names, parts, strict=True) if name.startswith("bias")])


def text_of(rnn: Any) -> str:
    kind = type(rnn).__name__.lower()
    reset = "after" if kind == "gru" else ""
    return str(Spec(kind, rnn.input_size, rnn.hidden_size, rnn.num_layers, rnn.bidirectional, reset=reset))


def guessed(folder: Path, limit: int = 10**6, values: bool = True, **tensors: torch.Tensor) -> Guessed:
    torch.save({name.replace("__", "."): tensor for name, tensor in tensors.items()}, folder / "m.pt")
    return guess(folder / "m.pt", limit=limit, values=values)


@pytest.mark.sample(2)
@pytest.mark.parametrize("make, inputs, hidden, layers, both", ORDINARY)
def test_ordinary_networks_are_among_the_first_five(
    make: Any, inputs: int, hidden: int, layers: int, both: bool, tmp_path: Path
) -> None:
    """A vector called x, as PyTorch initialises: its values show hidden, and sizes do the rest."""
    torch.manual_seed(hidden)
    rnn = make(inputs, hidden, layers, bidirectional=both)
    found = guessed(tmp_path, 5, x=in_order_p(rnn))
    assert text_of(rnn) in [one.spec for one in found.candidates], found.candidates
    mine = next(one for one in found.candidates if one.spec == text_of(rnn))
    assert any(f"1/sqrt({hidden})" in reason for reason in mine.reasons)


@pytest.mark.sample(2)
@pytest.mark.parametrize("make, inputs, hidden, layers, both", ORDINARY[:6])
def test_trained_networks_are_among_the_first_five(
    make: Any, inputs: int, hidden: int, layers: int, both: bool, tmp_path: Path
) -> None:
    """Weights and biases of different spreads show where one ends and the other begins."""
    torch.manual_seed(hidden)
    rnn = make(inputs, hidden, layers, bidirectional=both)
    with torch.no_grad():
        for name, parameter in rnn.named_parameters():
            parameter.normal_(0, 0.03 if "bias" in name else 0.1 if "_ih_" in name else 0.2)
    found = guessed(tmp_path, 5, x=in_order_p(rnn))
    assert text_of(rnn) in [one.spec for one in found.candidates], found.candidates


def edited(change: Callable[[str, torch.Tensor], None]) -> torch.nn.LSTM:
    """An LSTM of odd sizes, with its parameters changed."""
    torch.manual_seed(3)
    lstm = torch.nn.LSTM(21, 23)
    with torch.no_grad():
        for name, parameter in lstm.named_parameters():
            parameter.normal_(0, 0.1)
            change(name, parameter)
    return lstm


def zero_biases(name: str, parameter: torch.Tensor) -> None:
    if "bias" in name:
        parameter.zero_()


def forget_bias(name: str, parameter: torch.Tensor) -> None:
    if name == "bias_ih_l0":
        parameter[23:46] += 1


def half_forget_biases(name: str, parameter: torch.Tensor) -> None:
    if "bias" in name:
        parameter[23:46] += 0.5


@pytest.mark.parametrize(
    "change, word",
    [
        (zero_biases, "all its biases are zero, and nothing else is"),
        (forget_bias, "the forget gate's biases are"),
        (half_forget_biases, "the forget gate's biases are"),
    ],
)
def test_biases_of_a_network_are_seen(change: Callable[[str, torch.Tensor], None], word: str, tmp_path: Path) -> None:
    """Zero, or near 1 in the forget gate, in one bias or in both together."""
    lstm = edited(change)
    found = guessed(tmp_path, x=in_order_p(lstm))
    mine = next(one for one in found.candidates if one.spec == text_of(lstm))
    without = guessed(tmp_path, values=False, x=in_order_p(lstm))
    before = next(one for one in without.candidates if one.spec == mine.spec)
    assert any(word in reason for reason in mine.reasons), mine
    assert mine.score > before.score + 2


def test_unused_room_that_is_not_zero_counts_against_it(tmp_path: Path) -> None:
    """A vector with biases is no network without, as long as they are not zero."""
    lstm = edited(lambda name, parameter: None)
    whole, zeroed = in_order_p(lstm), in_order_p(edited(zero_biases))

    def score(vector: torch.Tensor) -> float:
        found = guessed(tmp_path, x=vector).candidates
        return next(one.score for one in found if one.spec == f"{text_of(lstm)} bias=no" and one.layout == "cudnn")

    assert score(zeroed) > score(whole) + 3


@pytest.mark.sample(2)
@pytest.mark.parametrize("value", [0.0, 1.0, 3e38, float("nan"), float("-inf"), None])
def test_values_never_decide(value: float | None, tmp_path: Path) -> None:
    """Whatever they are, noise too: the same candidates, as sure as before."""
    vector = torch.randn(1600) if value is None else torch.full((1600,), value)
    with_values, without = (guessed(tmp_path, values=values, x=vector) for values in (True, False))
    facts = [{(one.layout, one.spec, one.sure) for one in found.candidates} for found in (with_values, without)]
    assert facts[0] == facts[1] and len(facts[0]) > 100
    assert with_values.considered[0].looked and not without.considered[0].looked


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_of_floats(kind: torch.dtype, tmp_path: Path) -> None:
    """Rounding lifts or lowers the largest value a little."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(28, 100)
    found = guessed(tmp_path, 1, x=in_order_p(lstm).to(kind))
    assert found.candidates[0].spec == text_of(lstm)
    assert any("as PyTorch initialises" in reason for reason in found.candidates[0].reasons)


@pytest.mark.parametrize("chunk", [1 << 20, 64, 40])
def test_a_survey_is_the_sums_of_its_pieces(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the vector is cut into blocks, and wherever the cuts fall."""
    monkeypatch.setattr(open_files, "CHUNK_NBYTES", chunk)
    values = torch.arange(-50.0, 50.0)
    values[7] = 0
    torch.save({"x": values}, tmp_path / "m.pt")
    checkpoint = formats.read(tmp_path / "m.pt")
    view = checkpoint.entries["x"].value
    assert isinstance(view, View)
    read: list[int] = []
    with Source(checkpoint) as opened:
        found = survey(opened, view, [1, 2, 7, 8, 16, 32, 50, 99], read.append)
    array = values.numpy().astype("f8")
    for start, stop in itertools.combinations([0, 1, 2, 7, 8, 16, 32, 50, 99, 100], 2):
        part = array[start:stop]
        expected = Stats(stop - start, part.sum(), (part * part).sum(), int((part == 0).sum()))
        assert found.between(start, stop) == expected
    assert found.largest == 50 and found.is_finite and sum(read) == 400


def test_tensors_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, however many candidates there are."""
    made: list[Source] = []
    close = Source.close
    monkeypatch.setattr(Source, "close", lambda self: (made.append(self), close(self)))
    guessed(tmp_path, x=torch.randn(52000))
    assert [one.nbytes_read for one in made] == [4 * 52000]


def test_a_type_without_a_rounding_is_not_surveyed() -> None:
    """The two tables of floats are one: each type that is looked for can be looked at."""
    from paramtool.commands.guess import FLOATS

    assert set(FLOATS) == set(guessing_values.FLOATS) <= set(DTYPES)


def test_no_candidates_to_judge() -> None:
    """Without regions there is nothing to say."""
    assert judge([], {}) == [] and judge([Sketch(4, ()), Sketch(5, ())], {}) == [(0, ()), (0, ())]


def test_a_region_of_one_value() -> None:
    """A constant has no spread, and describing it costs nothing of what is infinite."""
    constant = guessing_values.Survey([0, 5, 10], [0, 5, 10], [0, 5, 10], [0, 0, 0], 1.0, 1e-4, True)
    sketch = Sketch(2, (CandidateRegion("x", 0, 5, "W"), CandidateRegion("x", 5, 10, "bias")))
    assert judge([sketch, sketch], {"x": constant}) == [(0, ()), (0, ())]


# --- sets of matrices -------------------------------------------------------------------------------------------------


def test_odd_names_are_found_by_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An LSTM under names of one's own; the order of gates stays open, and its line works as it is typed."""
    layouts.registered.clear()
    lstm = torch.nn.LSTM(10, 20)
    found = guessed(tmp_path, **dict(zip(["a__w1", "a__w2", "a__b1", "a__b2"], lstm.parameters(), strict=True)))
    (one,) = found.candidates
    assert (one.at, one.spec, one.sure) == ("a", "lstm input=10 hidden=20", "shapes only")
    assert found.commands == () and "no shape shows" in found.considered[0].decide[0]
    assert one.layout == "torch" and "mxnet" in one.alike
    assert any("shapes do not show the order of gates" in reason for reason in one.reasons)
    (tmp_path / "own.toml").write_text(found.toml("torch"))
    paramtool.unfuse(
        tmp_path / "m.pt", tmp_path / "out.safetensors", layout="guessed", at=("a",), spec=one.spec,
        layout_file=(tmp_path / "own.toml",),
    )  # fmt: skip
    made = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(made[f"a.{name}"], value) for name, value in lstm.state_dict().items())


def shapes_of(layout: str, spec: Spec, own: bool = False) -> dict[str, tuple[int, ...]]:
    """The tensors of a network in a layout, under the layout's names or others."""
    name, options = layouts.parse(layout)
    found = layouts.find(name)
    chosen = found.chosen(options)
    tensors = stored(found, found.form(spec, chosen), spec, chosen)
    return {f"net.{k}x" if own else f"net{found.separator}{t.name}": t.shape for k, t in enumerate(tensors)}


@pytest.mark.parametrize(
    "layout, spec",
    [
        ("torch", Spec("lstm", 10, 20)),
        ("torch", Spec("gru", 10, 20, reset="after")),
        ("keras", Spec("lstm", 10, 20)),
        ("keras", Spec("gru", 10, 20, reset="before")),
        ("keras", Spec("gru", 10, 20, reset="after")),
        ("keras.cudnn", Spec("lstm", 10, 20)),
        ("onnx", Spec("lstm", 10, 20)),
        ("onnx", Spec("gru", 10, 20, reset="after")),
        ("coreml", Spec("lstm", 10, 20)),
        ("equinox", Spec("gru", 10, 20, reset="after")),
        ("flax.nnx.optimized", Spec("lstm", 10, 20)),
    ],
)
def test_layouts_are_found_by_their_shapes(layout: str, spec: Spec) -> None:
    """Whatever the names are, each layout is among those of its shapes, with just its spec."""
    found = by_shapes(shapes_of(layout, spec, own=True))
    fits = [(name, one.spec) for one in found for name in (one.layout, *one.alike)]
    assert (layout, str(spec)) in fits
    assert {one.sure for one in found} == {"shapes only"}


def test_a_joined_kernel_needs_a_word_or_a_question() -> None:
    """[in + hidden, 4 hidden] is the shape of any dense layer."""
    shapes = {"dense.w": (30, 80), "dense.b": (80,)}
    assert by_shapes(shapes) == []
    asked = by_shapes(shapes, asked=True)
    assert [(one.layout, one.spec) for one in asked] == [
        ("tf1.basic", "lstm input=10 hidden=20"), ("tf1.canonical", "lstm input=10 hidden=20"),
    ]  # fmt: skip
    assert by_shapes({"my_lstm.w": (30, 80), "my_lstm.b": (80,)})[0].spec == "lstm input=10 hidden=20"
    for name in ("lstm_fc", "lstm.out", "rnn_head", "my_lstm_dense"):
        assert by_shapes({f"{name}.w": (30, 80), f"{name}.b": (80,)}) == []
    assert by_shapes({"lstm.w": (30, 80), "lstm.b": (80,), "lstm.scale": (3,)}) == [], "a module of more than a cell"


@pytest.mark.parametrize("asked", [False, True])
def test_shapes_that_no_network_can_have(asked: bool) -> None:
    """Nothing in them, one element, axes beyond what a spec takes: no candidate, and no error."""
    for wide, high in [(0, 0), (0, 5), (5, 0), (1, 1), (4, 1), (8, 1 << 26)]:
        shapes = {"lstm.w": (wide, high), "lstm.u": (wide, wide // 4), "lstm.b": (wide,), "lstm.s": ()}
        turned = {name: shape[::-1] for name, shape in shapes.items()}
        assert by_shapes(shapes, asked) == by_shapes(turned, asked) == [], shapes
        assert by_names({"lstm/kernel": (high, wide), "lstm/bias": (wide,)}, asked) == []


def test_square_matrices_alone_are_no_networks() -> None:
    """Attention has four of them, and a perceptron two like layers."""
    attention = {f"attn.{n}_proj.weight": (64, 64) for n in "qkvo"} | {f"attn.{n}_proj.bias": (64,) for n in "qkvo"}
    mlp = {f"mlp.{n}.weight": (256, 64) for n in ("up", "gate")} | {f"mlp.{n}.bias": (256,) for n in ("up", "gate")}
    assert by_shapes(attention) == by_shapes(mlp) == by_names(attention | mlp) == []


def test_two_matrices_of_one_shape_are_told_by_their_names() -> None:
    """`hh` is the recurrent one wherever it stands; without a word the first is taken, and that is said."""
    said = by_shapes({"m.cell_hh": (80, 20), "m.cell_ih": (80, 20), "m.b": (80,)})
    assert said[0].tensors["weight_hh"] == "m.cell_hh" and not any("the same shape" in r for r in said[0].reasons)
    silent = by_shapes({"m.p": (80, 20), "m.q": (80, 20), "m.b": (80,)})
    assert silent[0].tensors["weight_ih"] == "m.p" and any("the same shape" in reason for reason in silent[0].reasons)


def test_orders_of_gates_that_fit_alike_are_each_listed() -> None:
    """A summed bias is Equinox's, Flux' and Core ML's, and these differ."""
    found = by_shapes(shapes_of("equinox", Spec("lstm", 10, 20), own=True))
    assert [one.layout for one in found] == ["equinox", "coreml"]
    assert all(any("i f g o" in r and "i f o g" in r for r in one.reasons) for one in found)


def test_a_forget_bias_ranks_the_orders_of_gates(tmp_path: Path) -> None:
    """Columns are Keras' i f g o or CNTK's i g f o: the block near 1 is the third.  Both stay as unsure as before."""
    torch.manual_seed(0)
    bias = torch.randn(80) * 0.05
    bias[40:60] += 1
    tensors = {"net__a": torch.randn(10, 80), "net__b": torch.randn(20, 80), "net__c": bias}
    plain = guessed(tmp_path, values=False, **tensors)
    found = guessed(tmp_path, **tensors)
    assert [one.sure for one in found.candidates] == ["shapes only"] * 2 == [one.sure for one in plain.candidates]
    first, second = found.candidates
    assert first.layout == "cntk.lstm" and any("forget gate" in reason for reason in first.reasons)
    assert first.score > second.score + 3 and plain.candidates[0].layout == second.layout == "keras"
    last = guessed(tmp_path, **(tensors | {"net__c": bias.roll(20)}))  # nobody's forget gate
    assert not any("forget gate" in reason for one in last.candidates for reason in one.reasons)


def test_several_cells_of_one_module() -> None:
    """Each pair of matrices with its own biases, counted."""
    shapes = {}
    for k, inputs in enumerate((10, 20, 20)):
        shapes |= {f"w{k}": (80, inputs), f"u{k}": (80, 20), f"a{k}": (80,), f"b{k}": (80,)}
    found = by_shapes(shapes)
    assert [(one.cell, one.spec) for one in found] == [
        (1, "lstm input=10 hidden=20"), (2, "lstm input=20 hidden=20"), (3, "lstm input=20 hidden=20"),
    ]  # fmt: skip
    assert found[2].tensors == {"weight_ih_l0": "w2", "weight_hh_l0": "u2", "bias_ih_l0": "a2", "bias_hh_l0": "b2"}
    text = as_toml(found)
    assert [f'name = "{name}"\n' in text for name in ("guessed", "guessed2", "guessed3")] == [True] * 3


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True), list])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("sides", [("_forward", "_backward"), ("_fwd", "_bwd"), ("_fw", "_bw"), ("", "_reverse")])
def test_two_directions_of_one_module(
    tmp_path: Path, sides: tuple[str, str], kind: str, order: Callable[[Any], Any]
) -> None:
    """One network of both directions, whatever the order of the file; its line converts it exactly."""
    network = getattr(torch.nn, kind)(5, 5, bidirectional=True)
    words = {"weight_ih": "Wx", "weight_hh": "Wh", "bias_ih": "bias_ih", "bias_hh": "bias_hh"}
    own = {name: words[name.partition("_l0")[0]] + sides["reverse" in name] for name in network.state_dict()}
    tensors = {f"net__{own[name]}": value for name, value in network.state_dict().items()}
    found = guessed(tmp_path, **{name: tensors[name] for name in order(tensors)})
    reset = " reset=after" if kind == "GRU" else ""
    assert {one.spec for one in found.candidates} == {f"{kind.lower()} input=5 hidden=5 bidirectional{reset}"}
    (tmp_path / "own.toml").write_text(found.toml("torch"))
    paramtool.unfuse(
        tmp_path / "m.pt",
        tmp_path / "out.safetensors",
        layout="guessed",
        at=("net",),
        layout_file=(tmp_path / "own.toml",),
    )
    made = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(made[f"net.{name}"], value) for name, value in network.state_dict().items())


def test_names_of_one_direction_are_of_one_network(findings: Path) -> None:
    """A file whose biases were once given to the wrong direction."""
    (one,) = paramtool.guess(findings / "field" / "mlx" / "mlx_bi.safetensors").candidates
    assert one.spec == "lstm input=5 hidden=6 bidirectional"
    assert all(("reverse" in own) == ("backward" in name) for own, name in one.tensors.items())


def test_names_say_which_matrix_is_recurrent() -> None:
    """MLX' GRU of 3 inputs and 4 cells: its shapes alone could be an LSTM's of 4 inputs and 3 cells."""
    found = by_shapes({"rnn.Wh": (12, 4), "rnn.Wx": (12, 3), "rnn.b": (12,), "rnn.bhn": (4,)})
    assert [(one.layout, one.spec) for one in found] == [("equinox", "gru input=3 hidden=4 reset=after")]


@pytest.mark.parametrize("gates", ["ifgo", "rzn"])
def test_matrices_of_gates_are_no_networks_of_one_gate(gates: str) -> None:
    """Whatever they are, they are not three or four simple RNNs."""
    shapes = {"lstm.Wx": (4, 3), "lstm.Wh": (4, 4), "lstm.b": (4,)}
    assert [one.spec for one in by_shapes(shapes)] == ["rnn input=3 hidden=4"]
    assert not by_shapes({f"{name}_{gate}": shape for gate in gates for name, shape in shapes.items()})


def test_a_name_that_no_template_can_hold() -> None:
    """Brackets mean something in templates."""
    found = by_shapes({"m.w[0]": (80, 10), "m.u": (80, 20), "m.b": (80,)})
    with pytest.raises(LayoutError, match="cannot be written in a layout file"):
        as_toml(found)


@pytest.mark.sample(11)
@pytest.mark.parametrize("name", ["mxnet", "torch", "chainer", "keras", "flax.linen", "onnx", "tf1.basic", "paddle"])
@pytest.mark.parametrize("layers, both", [(1, False), (2, True)])
def test_networks_are_found_by_their_names(name: str, layers: int, both: bool) -> None:
    """Each layout's own names give its network, whatever other layouts the same names would fit."""
    spec = Spec("lstm", 10, 20, layers, both)
    shapes = shapes_of(name, spec)
    found = by_names(shapes, asked=True)
    assert (name, str(spec)) in [(fit, one.spec) for one in found for fit in (one.layout, *one.alike)]
    most = {frozenset(one.tensors.values()) for one in found if name in (one.layout, *one.alike)}
    assert max(most, key=len) == set(shapes)


def test_names_that_leave_two_networks_open() -> None:
    """A GRU of Keras without biases: on which side of the reset gate its product stands, nothing shows."""
    found = by_names({"gru/kernel": (10, 60), "gru/recurrent_kernel": (20, 60)})
    specs = {one.spec for one in found if one.layout == "keras"}
    assert specs == {f"gru input=10 hidden=20 bias=no reset={reset}" for reset in ("after", "before")}
    assert {one.sure for one in found} == {"possible"}


def test_everyday_names_need_a_word_or_a_question() -> None:
    """A dense layer's kernel and bias are those of TensorFlow 1, too."""
    dense = {"dense/kernel": (30, 80), "dense/bias": (80,)}
    assert by_names(dense) == []
    assert "tf1.basic" in [one.layout for one in by_names(dense, asked=True)]
    for name in ("lstm/dense", "my_lstm", "rnn_head", "lstm_out/linear", "rnn/lstm"):
        assert by_names({f"{name}/kernel": (30, 80), f"{name}/bias": (80,)}) == []
    cell = by_names({"rnn/lstm_cell/kernel": (30, 80), "rnn/lstm_cell/bias": (80,)})
    assert [(one.layout, one.spec) for one in cell] == [
        ("tf1.basic", "lstm input=10 hidden=20"), ("tf1.block", "lstm input=10 hidden=20 cell_clip=3.0"),
    ]  # fmt: skip
    assert any("forget_bias=1.0, which no tensor shows" in reason for reason in cell[0].reasons)


def test_haikus_gru_is_known_by_its_names() -> None:
    """Whatever the module is called, with slashes or dots; a dense layer has a `w` and a `b`, too."""
    for mark in "/.":
        found = by_names({f"enc{mark}w_i": (10, 60), f"enc{mark}w_h": (20, 60), f"enc{mark}b": (60,)})
        assert [(one.layout, one.spec) for one in found] == [("haiku", "gru input=10 hidden=20 reset=before")]
    assert by_names({"enc/linear/w": (30, 80), "enc/linear/b": (80,)}) == []


def test_haikus_lstm_is_all_that_its_module_has() -> None:
    """Its matrix is that of a dense layer; beside another cell it is the model's head."""
    cell = {"lstm/linear/w": (30, 80), "lstm/linear/b": (80,)}
    assert [(one.layout, one.spec, one.unshown) for one in by_names(cell)] == [("haiku", "lstm input=10 hidden=20", ())]
    assert by_names(cell | {"lstm/~/embed/embeddings": (9, 30)}) == []
    (asked,) = [one for one in by_names({"core/linear/w": (30, 80), "core/linear/b": (80,)}, asked=True)
                if one.layout == "haiku"]  # fmt: skip
    assert "a cell or a dense layer" in asked.unshown[0]


def test_names_of_several_libraries_are_those_of_the_files_own() -> None:
    """Without biases PyTorch's cell has the names of Equinox and Core ML; nobody's file leaves them both."""
    shapes = {"cell.weight_ih": (60, 10), "cell.weight_hh": (60, 20)}
    assert [one.layout for one in by_names(shapes, homes=("torch", "cudnn"))] == ["torch.cell"]
    assert [one.layout for one in by_names(shapes)] == ["torch.cell", "coreml"]
    assert by_names(shapes)[0].alike == ("equinox",)


def test_a_fact_that_is_said_is_not_asked_for(tmp_path: Path) -> None:
    """Each narrows what fits; with all of them one is left, and the line is printed."""
    path = tmp_path / "m.pt"
    torch.save({"x": in_order_p(torch.nn.LSTM(8, 8, 2))}, path)
    assert guess(path).commands == ()
    some = guess(path, spec="LSTM hidden_size=8 input_size=8 bias=True")
    assert {one.spec for one in some.candidates} == {
        "lstm input=8 hidden=8 layers=2", "lstm input=8 hidden=8 bidirectional",
    }  # fmt: skip
    assert some.considered[0].decide == ("bidirectional=yes or layers=2: the network's code says which",)
    one = guess(path, spec="lstm hidden=8 input=8 layers=2 bias=yes")
    assert one.commands == (f'paramtool unfuse {path} --layout cudnn --spec "lstm hidden=8 input=8 layers=2 bias=yes"',)
    assert guess(path, spec="lstm hidden=11").candidates == ()


def test_the_vectors_of_an_mxnet_file_are_mxnets(tmp_path: Path) -> None:
    """Under any name; MXNet always stores both biases."""
    found = guess(ROOT / "fixtures" / "guess" / "mxnet1_flat_renamed.params", limit=10**6)
    assert {one.layout for one in found.candidates} == {"mxnet.flat"}
    assert not any("bias=no" in one.spec for one in found.candidates)


# --- whole checkpoints ------------------------------------------------------------------------------------------------


def test_what_the_file_says_is_no_guess(tmp_path: Path) -> None:
    """The symbol file beside MXNet's parameters says the network: one candidate, said, and no other reading."""
    found = guess(ROOT / "fixtures" / "mxnet" / "fused_cell-0001" / "fused_cell-0001.params")
    (one,) = found.candidates
    assert (one.sure, one.layout, one.at) == ("said", "mxnet.flat", "arg:enc")
    assert "fused_cell-symbol.json" in one.reasons[0]
    assert not found.considered[0].looked


def test_a_vector_of_a_layouts_name_without_its_symbol(tmp_path: Path) -> None:
    """The same file alone: many readings, the true one among the first."""
    place = ROOT / "fixtures" / "mxnet" / "fused_cell-0001"
    said = guess(place / "fused_cell-0001.params").candidates[0]
    (tmp_path / "alone.params").write_bytes((place / "fused_cell-0001.params").read_bytes())
    found = guess(tmp_path / "alone.params", limit=10**6)
    assert {one.layout for one in found.candidates} == {"mxnet.flat"} and len(found.candidates) > 20
    assert said.spec in [one.spec for one in found.candidates]
    assert {one.sure for one in found.candidates} == {"possible"}


def test_optimizer_state_is_not_guessed_at(tmp_path: Path) -> None:
    """Moments have the shapes of weights; only what was asked for is looked at."""
    lstm = torch.nn.LSTM(10, 20)
    optimizer = torch.optim.Adam(lstm.parameters())
    lstm(torch.randn(3, 10))[0].sum().backward()
    optimizer.step()
    torch.save({"model": {"lstm." + k: v for k, v in lstm.state_dict().items()}, "optimizer": optimizer.state_dict()},
               tmp_path / "m.pt")  # fmt: skip
    found = guess(tmp_path / "m.pt")
    assert [one.at for one in found.candidates] == ["model.lstm"]


def test_other_names_of_one_window_are_no_second_network(tmp_path: Path) -> None:
    """Tied parameters are one network."""
    lstm = torch.nn.LSTM(10, 20)
    tied = {f"lstm.{name}": value for name, value in lstm.state_dict().items()}
    torch.save(tied | {f"flat.{k}": value for k, value in enumerate(tied.values())}, tmp_path / "m.pt")
    assert [one.at for one in guess(tmp_path / "m.pt").candidates] == ["lstm"]


def test_one_place_is_asked_for(tmp_path: Path) -> None:
    """A tensor, a module, or neither: then the nearest names are told."""
    guessed(tmp_path, enc__flat=torch.randn(52000), dec__flat=torch.randn(800), ids=torch.arange(900))
    path = tmp_path / "m.pt"
    assert {one.at for one in guess(path).candidates} == {"enc.flat", "dec.flat"}
    assert {one.at for one in guess(path, "enc.flat").candidates} == {"enc.flat"}
    assert {one.at for one in guess(path, "dec").candidates} == {"dec.flat"}
    with pytest.raises(UsageError, match=r"no tensor 'enc\.fla', and no module") as error:
        guess(path, "enc.fla")
    assert "'enc.flat'" in error.value.hint
    with pytest.raises(UsageError, match="'ids' is not a one-dimensional tensor of floats"):
        guess(path, "ids")


def test_the_limit_is_of_each_place(tmp_path: Path) -> None:
    """And how many fit is said."""
    found = guessed(tmp_path, 3, a__flat=torch.randn(52000), b__flat=torch.randn(800))
    assert [(place.at, place.listed, len(kept)) for place, kept in found.places()] == [
        ("a.flat", 3, 3), ("b.flat", 3, 3),
    ]  # fmt: skip
    assert found.considered[0].fits == len(flat(52000)) and len(found.candidates) == 6


def test_large_tensors_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is that hidden."""
    monkeypatch.setattr("paramtool.commands.guess.MAX_LOOK_NBYTES", 4 * 52000 - 1)
    assert not guessed(tmp_path, 3, a=torch.randn(52000)).considered[0].looked


def test_candidates_say_how_sure_they_are(tmp_path: Path) -> None:
    """In one of four words, with at least one reason; the line is for the network that is sure."""
    lstm = torch.nn.LSTM(10, 20)
    names = {f"lstm.{name}": value for name, value in lstm.state_dict().items()}
    torch.save({**names, "x": torch.randn(800)}, tmp_path / "m.pt")
    found = guess(tmp_path / "m.pt")
    assert {one.sure for one in found.candidates} == {"names and shapes", "possible"} <= set(SURE)
    assert all(one.reasons for one in found.candidates)
    assert found.commands == (f"paramtool unfuse {tmp_path / 'm.pt'} --layout torch",)


def test_a_line_can_be_typed_whatever_the_names_are() -> None:
    """A shell and a parser of flags take each word as one."""
    one = TypedCall("unfuse", "cudnn", "", ("-a b",), "lstm input=3 hidden=4")
    assert one.text("-m x.pt") == (
        "paramtool unfuse './-m x.pt' --layout cudnn --at='-a b' --spec \"lstm input=3 hidden=4\""
    )


# --- real files -------------------------------------------------------------------------------------------------------


def test_grus_of_a_test_suite(samples: Path) -> None:
    """Six tiny networks by their names, and none of their inputs and outputs."""
    found = guess(samples / "NVIDIA__TensorRT__quant_rnn_test_vectors.pt")
    assert len(found.candidates) == 6 and all(one.at.endswith(".state") for one in found.candidates)
    assert {one.layout for one in found.candidates} == {"torch", "torch.cell"}


def test_grus_of_a_speech_model(samples: Path) -> None:
    """Fourteen, of both directions and one; nothing of the optimizer's 400 tensors."""
    found = guess(samples / "Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar")
    assert len(found.candidates) == 14 and {one.sure for one in found.candidates} == {"names and shapes"}
    assert sum("bidirectional" in one.spec for one in found.candidates) == 4


def test_a_gluon_lstm(samples: Path) -> None:
    """Its names are MXNet's; the embedding and the dense layer are none."""
    (one,) = guess(samples / "chen0040__mxnet-sentiment-analysis__lstm-softmax-net.params").candidates
    assert (one.at, one.layout, one.spec) == ("lstm0", "mxnet", "lstm input=100 hidden=64")


def test_an_old_onnx_file(samples: Path) -> None:
    """Its nodes say LSTM and not where; its numbered tensors show two cells by their shapes."""
    found = guess(samples / "onnx__onnx__test_operator_lstm.onnx")
    by_shape = [one for one in found.candidates if one.sure == "shapes only"]
    assert [one.spec for one in by_shape] == ["lstm input=10 hidden=20", "lstm input=20 hidden=20"]
    said = [one for one in found.candidates if one.sure == "said"]
    assert len(said) == 2 and found.commands == () and all(place.decide for place in found.considered)
    assert found.candidates[0].sure == "shapes only", "what has tensors stands first"


def test_a_pickle_of_arrays(samples: Path) -> None:
    """Where this version reads it: the names are PyTorch's."""
    try:
        found = guess(samples / "kakaobrain__g2pm__np_ckpt.pkl")
    except FormatError as error:
        pytest.skip(f"not read by this version: {error}")
    assert any(one.layout == "torch" and "hidden=32 bidirectional" in one.spec for one in found.candidates)


@pytest.mark.slow
def test_every_sample_is_looked_at(samples: Path) -> None:
    """Each file that can be read gives candidates that are whole, or none."""
    seen = 0
    for path in sorted(samples.iterdir()):
        try:
            found = guess(path, limit=3)
        except (FormatError, UsageError):  # the folder of ELMo has two sets of weights
            continue
        seen += 1
        for one in found.candidates:
            assert one.reasons and one.sure in SURE and np.isfinite(one.score), (path, one)
    assert seen > 10
