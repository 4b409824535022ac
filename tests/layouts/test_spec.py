"""`layouts/spec.py`: the text that says what a network is, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.errors import UsageError
from paramtool.layouts.spec import Cell, Spec, merged, parse, text
from tests.examples import examples


@st.composite
def specs(draw: st.DrawFn, most_layers: int = 1 << 24) -> Spec:
    """Any network that can be, of at most this number of layers."""
    kind = draw(st.sampled_from(("lstm", "gru", "rnn")))
    sizes = st.integers(1, 1 << 24)
    said: dict[str, object] = {
        "input": draw(sizes), "hidden": draw(sizes), "layers": draw(st.integers(1, most_layers)),
    }  # fmt: skip
    said["bias"] = draw(st.booleans())
    both = draw(st.sampled_from(("bidirectional", "backward", "")))
    said |= {both: True} if both else {}
    said["initial_state"] = draw(st.booleans())
    said["gate_activation"] = draw(
        st.sampled_from(("sigmoid", "hard_sigmoid(0.2,0.5)", "hard_sigmoid(0.16666667,0.5)"))
    )
    said["clip"] = draw(st.sampled_from((0.0, 2.5)))
    said["activation"] = draw(st.sampled_from(("", "tanh", "relu")))
    if both == "bidirectional":
        said["merge"] = draw(st.sampled_from(("concat", "sum", "ave", "mul")))
    if kind == "gru":
        said["reset"] = draw(st.sampled_from(("", "after", "before")))
    if kind == "lstm":
        said |= {
            "peephole": draw(st.booleans()),
            "coupled": draw(st.booleans()),
            "cell_clip": draw(st.sampled_from((0.0, 3.0))),
        }
        said["projection"] = draw(st.integers(0, int(str(said["hidden"])) - 1))
    return Spec(kind, **said)  # type: ignore[arg-type]


@settings(max_examples=examples(300))
@given(specs())
def test_a_text_says_the_whole_network(spec: Spec) -> None:
    """What `text` writes, `parse` reads; with the defaults it is the same network."""
    assert Spec(**parse(text(spec))) == spec  # type: ignore[arg-type]


@settings(max_examples=examples(200))
@given(specs(), st.randoms(use_true_random=False))
def test_the_order_of_words_does_not_matter(spec: Spec, random: object) -> None:
    """Words may stand in any order."""
    words = text(spec).split()
    random.shuffle(words)  # type: ignore[attr-defined]
    assert parse(" ".join(words)) == parse(text(spec))


def test_defaults_are_left_out() -> None:
    """The plainest network is a kind and two sizes."""
    assert text(Spec("lstm", 18, 128)) == "lstm input=18 hidden=128"
    assert text(Spec("lstm", 18, 128, 2, True)) == "lstm input=18 hidden=128 layers=2 bidirectional"


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("", {}),
        ("gru", {"kind": "gru"}),
        ("bidirectional=no bias=yes peephole", {"bidirectional": False, "bias": True, "peephole": True}),
        ("bias=FALSE coupled=1", {"bias": False, "coupled": True}),
        ("  lstm   hidden=4\tlayers=02 ", {"kind": "lstm", "hidden": 4, "layers": 2}),
        ("gate_activation=hard_sigmoid(0.2, 0.5) input=3", {"gate_activation": "hard_sigmoid(0.2,0.5)", "input": 3}),
        ("cell_clip=3 clip=1e-3", {"cell_clip": 3.0, "clip": 0.001}),
        ("hidden=4 hidden=4", {"hidden": 4}),
    ],
)
def test_what_words_say(words: str, facts: dict[str, object]) -> None:
    """Flags with and without a value, spaces inside brackets, the same word twice."""
    assert parse(words) == facts


@pytest.mark.parametrize(
    "word",
    [
        "lstn", "hidden", "hidden=", "hidden=four", "hidden=-4", "hidden=4.0", "hidden=1e3",
        "hidden=9999999999", "input=0x10",
        "layers=٣٤x", "size=4", "kind=lstn", "=4", "bias=maybe", "bias=", "peephole=2", "cell_clip=-1",
        "cell_clip=nan", "cell_clip=inf", "cell_clip=three", "gate_activation=", "gate_activation=a;b",
        "gate_activation=hard_sigmoid(x)", "reset", "--spec", "hidden==4",
    ],
)  # fmt: skip
def test_a_wrong_word_is_named(word: str) -> None:
    """UsageError quotes just the word that cannot be read."""
    with pytest.raises(UsageError) as caught:
        parse(f"lstm {word} layers=2")
    assert repr(word) in str(caught.value) and "layers=2" not in str(caught.value)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(words: str) -> None:
    """Nothing but UsageError comes of a text that says no network."""
    try:
        assert isinstance(parse(words), dict)
    except UsageError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("LSTM hidden_size=8 num_layers=2 bidirectional=True", "lstm hidden=8 layers=2 bidirectional"),
        ("torch.nn.RNN nonlinearity=relu", "rnn activation=relu"),
        ("rnn relu", "rnn activation=relu"),
        ("rnn_tanh", "rnn activation=tanh"),
        ("mode=rnn_relu state_size=4 projection_size=2", "rnn activation=relu hidden=4 projection=2"),
        ("GRU units=8 reset_after=True use_bias=False", "gru hidden=8 reset=after bias=no"),
        ("GRU linear_before_reset=0 hidden_size=8", "gru reset=before hidden=8"),
        ("GRU reset_after=False recurrent_activation=sigmoid", "gru reset=before gate_activation=sigmoid"),
        ("LSTMCell num_units=7 num_proj=3 use_peepholes=True", "lstm hidden=7 projection=3 peephole"),
        ("--hidden-size=4 num_directions=2 bias=True", "hidden=4 bidirectional bias"),
        ("direction=bidirectional SimpleRNN", "bidirectional rnn"),
        ("kind=LSTM hidden=3", "lstm hidden=3"),
    ],
)  # fmt: skip
def test_other_libraries_words_are_understood(words: str, own: str) -> None:
    """They say what paramtool's own words say."""
    assert parse(words) == parse(own)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("hiden=4", "did you mean hidden=...?"),
        ("hidden_size", "did you mean hidden=...?"),
        ("hidden_sizes=4", "did you mean hidden=...?"),
        ("LSTMS", "did you mean lstm?"),
        ("nonlinearities=relu", "did you mean activation=...?"),
        ("bidirection=yes", "did you mean bidirectional?"),
        ("dropout=0.5", "leave it out: dropout does not change which weights a network has"),
        ("batch_first=True", "leave it out: batch_first"),
        ("colour=red", "write lstm, gru or rnn, then any of input=..."),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(word: str, hint: str) -> None:
    """The nearest word of a spec, also where that of another library was meant; else all there are."""
    with pytest.raises(UsageError) as caught:
        parse(f"lstm {word}")
    assert repr(word) in str(caught.value) and hint in caught.value.hint


def test_two_values_for_one_word_are_refused() -> None:
    """The word is named."""
    with pytest.raises(UsageError, match="hidden is given twice"):
        parse("hidden=4 hidden=5")
    with pytest.raises(UsageError, match="hidden is given twice"):
        parse("hidden=4 hidden_size=5")
    with pytest.raises(UsageError, match="kind is given twice"):
        parse("lstm gru")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"kind": "mlp"}, "'mlp' is not a kind of network; expected lstm, gru or rnn"),
        ({"input": 0}, "input=0 is out of range"),
        ({"hidden": 1 << 25}, "hidden=33554432 is out of range"),
        ({"layers": -1}, "layers=-1 is out of range"),
        ({"projection": 4}, "projection=4 is invalid: only an LSTM has a projection, smaller than hidden=4"),
        ({"kind": "gru", "projection": 2}, "projection=2 is invalid"),
        ({"projection": -1}, "projection=-1 is invalid"),
        ({"reset": "after"}, "reset=after is invalid"),
        ({"kind": "gru", "reset": "never"}, "reset=never is invalid"),
        ({"kind": "gru", "peephole": True}, "a gru cannot have peephole, coupled or cell_clip"),
        ({"kind": "rnn", "coupled": True}, "a rnn cannot have peephole, coupled or cell_clip"),
        ({"kind": "gru", "cell_clip": 3.0}, "only an lstm can"),
        ({"bidirectional": True, "backward": True}, "exclude each other"),
        ({"bidirectional": True, "merge": "add"}, "merge=add is invalid; expected one of concat, sum, ave, mul, none"),
        ({"merge": "sum"}, "a network of one direction has nothing to merge"),
        ({"bidirectional": True, "merge": "none", "layers": 2}, "a layer takes one input, and would get two"),
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, object], message: str) -> None:
    """The field and what is expected of it are named."""
    with pytest.raises(UsageError, match=message):
        Spec(**{"kind": "lstm", "input": 3, "hidden": 4, **said})  # type: ignore[arg-type]


def test_merged_names_who_disagrees() -> None:
    """What several sources say is put together; where two differ, both are named."""
    assert merged(("the file", {"hidden": 4}), ("--spec", {"layers": 2, "hidden": 4})) == {"hidden": 4, "layers": 2}
    with pytest.raises(UsageError, match=r"the file says hidden=4, spec says hidden=5"):
        merged(("the file", {"hidden": 4}), ("--spec", {"hidden": 5}))
    with pytest.raises(UsageError, match=r"the file says bias=no, spec says bias"):
        merged(("the file", {"bias": False}), ("--spec", {"bias": True}))


@given(specs(most_layers=3))
def test_cells_have_shapes(spec: Spec) -> None:
    """Every cell of a network has a shape without an axis of length 0, and is listed once."""
    cells = list(spec.cells())
    assert len(set(cells)) == len(cells)
    assert all(size > 0 for cell in cells for size in spec.shape(cell))
    assert {cell.kind for cell in cells} == set(spec.kinds())


def test_widths() -> None:
    """A layer above the first is given the projected h of both directions; c stays wide."""
    spec = Spec("lstm", 3, 5, 2, True, projection=2, initial_state=True)
    assert spec.shape(Cell("W", 0, 0, "i")) == (5, 3)
    assert spec.shape(Cell("W", 1, 1, "i")) == (5, 4)
    assert spec.shape(Cell("R", 1, 0, "g")) == (5, 2)
    assert spec.shape(Cell("P", 0, 1)) == (2, 5)
    assert (spec.shape(Cell("h0")), spec.shape(Cell("c0"))) == ((2,), (5,))


@pytest.mark.parametrize(("merge", "width"), [("concat", 10), ("sum", 5), ("ave", 5), ("mul", 5)])
def test_what_the_next_layer_is_given(merge: str, width: int) -> None:
    """Both directions side by side, or what was made of them."""
    spec = Spec("lstm", 3, 5, 2, True, merge=merge)
    assert [spec.shape(Cell("W", layer, 1, "i")) for layer in (0, 1)] == [(5, 3), (5, width)]


def test_tanh_is_what_an_lstm_has_anyway() -> None:
    """Said or not, it is the same network; an RNN's activation is unknown where it is not said."""
    assert Spec("gru", 3, 4, activation="tanh") == Spec("gru", 3, 4)
    assert text(Spec("lstm", 3, 4), ("activation", "backward")) == "lstm input=3 hidden=4 activation=tanh backward=no"
    assert Spec("rnn", 3, 4, activation="tanh") != Spec("rnn", 3, 4)


def test_cells_are_named_for_people() -> None:
    """The kind, the gate, the layer and the direction in words."""
    assert str(Cell("bR", 1, 1, "n")) == "recurrent bias of gate n (layer 1, reverse)"
    assert str(Cell("P")) == "projection (layer 0)"
