"""Networks found by names and shapes, or by what the file says, and what stands beside them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.errors import FormatError, LayoutError, UsageError
from paramtool.layouts import spec as specs
from paramtool.model.checkpoint import Checkpoint, Entry, Module, NoData
from paramtool.model.dtype import DTYPES
from paramtool.passes.rnn import beside, find
from tests.examples import examples
from tests.passes.made import checkpoint, view

LSTM = {"weight_ih_l0": (8, 3), "weight_hh_l0": (8, 2), "bias_ih_l0": (8,), "bias_hh_l0": (8,)}
"""An LSTM of 3 inputs and 2 cells."""
KERAS = {"enc/kernel": (3, 8), "enc/recurrent_kernel": (2, 8), "enc/bias": (8,)}


def under(at: str, tensors: dict) -> dict:
    """The tensors of a module."""
    return {f"{at}.{name}": one for name, one in tensors.items()}


def without(tensors: dict, name: str) -> dict:
    """All but one."""
    return {other: one for other, one in tensors.items() if other != name}


def ask(
    source: Checkpoint, layout: str | None = None, spec: str = "", at: tuple[str, ...] = (), **more: object
) -> list[find.Found]:
    """The networks of a checkpoint."""
    return find.find(source, find.NetworkRequest(layout, specs.parse(spec), at, **more))


def asked(*request: object, **more: object) -> list[tuple[str, str, str]]:
    """(module, layout, spec) of each."""
    return [(one.network.at, one.network.layout.name, str(one.network.spec)) for one in ask(*request, **more)]


A, B = ("a", "torch", "lstm input=3 hidden=2"), ("b", "torch", "lstm input=3 hidden=2")
TWO = under("a", LSTM) | under("b", LSTM)


@st.composite
def torch_networks(draw: st.DrawFn) -> tuple[str, dict[str, tuple[int, ...]]]:
    """The text of a spec, and the shapes that PyTorch gives such a network."""
    kind, hidden, inside = (
        draw(st.sampled_from(["lstm", "gru", "rnn"])),
        draw(st.integers(2, 6)),
        draw(st.integers(2, 6)),
    )
    layers, both, bias = draw(st.integers(1, 3)), draw(st.booleans()), draw(st.booleans())
    projection = draw(st.integers(1, hidden - 1)) if kind == "lstm" and draw(st.booleans()) else 0
    rows, width = {"lstm": 4, "gru": 3, "rnn": 1}[kind] * hidden, projection or hidden
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        for side in ("", "_reverse")[: 1 + both]:
            shapes[f"weight_ih_l{layer}{side}"] = (rows, inside if layer == 0 else width * (1 + both))
            shapes[f"weight_hh_l{layer}{side}"] = (rows, width)
            shapes |= {f"bias_{one}_l{layer}{side}": (rows,) for one in ("ih", "hh") if bias}
            shapes |= {f"weight_hr_l{layer}{side}": (projection, hidden)} if projection else {}
    words = [kind, f"input={inside}", f"hidden={hidden}", *([f"layers={layers}"] if layers > 1 else [])]
    words += ["bidirectional"] * both + [f"projection={projection}"] * bool(projection)
    return " ".join(words + ["bias=no"] * (not bias) + ["reset=after"] * (kind == "gru")), shapes


@settings(max_examples=examples(40))
@given(st.lists(torch_networks(), min_size=1, max_size=2), st.randoms(use_true_random=False))
def test_names_and_shapes_say_everything(networks: list[tuple[str, dict]], random: object) -> None:
    """The spec of each network under its module, whatever the order of its names and whatever stands elsewhere."""
    names = [(at, own) for at, (_, shapes) in zip(("enc.rnn", ""), networks, strict=False) for own in shapes]
    random.shuffle(names)
    shapes = {at: one[1] for at, one in zip(("enc.rnn", ""), networks, strict=False)}
    file = {f"{at}.{own}".lstrip("."): shapes[at][own] for at, own in names} | {"head.weight": (4, 2)}
    found = {one.network.at: one for one in ask(checkpoint(file))}
    assert list(found) == list(dict.fromkeys(at for at, _ in names))
    for at, (text, own) in zip(("enc.rnn", ""), networks, strict=False):
        assert found[at].network.spec == specs.Spec(**specs.parse(text))
        assert found[at].network.tensors == {name: f"{at}.{name}".lstrip(".") for name in own}


def test_which_of_two() -> None:
    """All in the order of the file; one by its name or a pattern; an error lists them where none or several fit."""
    assert asked(checkpoint(TWO)) == [A, B]
    assert asked(checkpoint(TWO), at=("b",)) == asked(checkpoint(TWO), at=("[!a]",)) == [B]
    assert asked(checkpoint(TWO), at=("b", "a")) == [B, A]
    assert asked(checkpoint(under("l0", LSTM) | under("l[0]", LSTM)), at=("l[0]",)) == [("l[0]", *A[1:])]
    with pytest.raises(UsageError, match=r"at='\*' matches 2 modules: 'a', 'b'"):
        ask(checkpoint(TWO), at=("*",))
    with pytest.raises(UsageError, match=r"at='c' matches no module of layout torch; found: 'a', 'b'"):
        ask(checkpoint(TWO), at=("c",))


@pytest.mark.parametrize(
    "wrong, message",
    [
        (without(TWO, "b.weight_hh_l0"), r"'b\.weight_ih_l0' is half of a network.*'weight_hh_l0' is missing"),
        (without(TWO, "b.bias_hh_l0"), r"'bias_hh_l0' \[8\] is missing"),
        (TWO | {"b.weight_hh_l0": (8, 4)}, r"'b\.weight_hh_l0' is \[8, 4\], expected \[8, 2\]"),
        (TWO | {"b.bias_hh_l0": Entry(NoData(DTYPES["float32"], (8,)))}, r"'b\.bias_hh_l0': is a meta tensor"),
        ({"w": (2, 2)}, r"no recurrent network was found: .* it has no names of PyTorch's layers"),
        ({"b.weight_ih_l0": (8, 3)}, r"no module has both.*'b' has some of its names"),
    ],
)
def test_what_is_no_network(wrong: dict, message: str) -> None:
    """An error names the tensor; where another network is asked for by its name, it does not matter."""
    with pytest.raises(LayoutError, match=rf"(?s)^(made\.safetensors: )?.*{message}"):
        ask(checkpoint(wrong))
    if "a.weight_ih_l0" in wrong:
        assert asked(checkpoint(wrong), at=("a",)) == [A]


def test_another_layout_is_said_and_so_is_what_no_tensor_shows() -> None:
    """Keras' names are found where Keras is said; which way a layer runs is asked for."""
    with pytest.raises(LayoutError, match="no recurrent network") as no:
        ask(checkpoint(KERAS))
    assert "layout keras" in no.value.hint
    with pytest.raises(LayoutError, match=r"'enc'.*its direction in time") as no:
        ask(checkpoint(KERAS), "keras")
    assert "backward=no" in no.value.hint
    assert asked(checkpoint(KERAS), "keras", "backward=no") == [("enc", "keras", "lstm input=3 hidden=2")]
    with pytest.raises(UsageError, match="'zz'"):
        ask(checkpoint(TWO), "torch:zz=3")
    with pytest.raises(LayoutError, match=r"'a': .* 'a\.weight_hh_l0' is \[8, 2\], expected \[16, 4\]"):
        ask(checkpoint(TWO), spec="hidden=4")


def test_one_vector() -> None:
    """Told by its length: by its name inside a module, the only one that fits, or by --at; never guessed."""
    sizes = "input=3 hidden=2"
    lstm = "lstm input=3 hidden=2"
    assert asked(checkpoint({"rnn.flat": (56,)}), "cudnn", sizes) == [("rnn", "cudnn", lstm)]
    assert asked(checkpoint({"x": (60,), "y": (56,)}), "cudnn", sizes) == [("y", "cudnn", lstm)]
    two = checkpoint({"x": (56,), "y": (56,)})
    with pytest.raises(LayoutError, match=r"2 vectors fit .*vectors: 'x' \(56\), 'y' \(56\)"):
        ask(two, "cudnn", lstm)
    assert asked(two, "cudnn", lstm, ("x",)) == [("x", "cudnn", lstm)]
    with pytest.raises(LayoutError, match="no vector fits"):
        ask(checkpoint({"x": (55,), "y": (57,)}), "cudnn", lstm)
    with pytest.raises(LayoutError, match="fits 3 networks") as no:  # 3 layers of LSTM, 4 of GRU, 12 of RNN
        ask(checkpoint({"x": (144,)}), "cudnn", "input=2 hidden=2")
    assert '--spec "lstm input=2 hidden=2 layers=3"' in no.value.hint
    assert asked(checkpoint({"x": (144,)}), "cudnn", "gru input=2 hidden=2")[0][2].endswith("layers=4 reset=after")
    with pytest.raises(LayoutError, match=r"no flat vector .*'a', 'b' have separate tensors"):
        ask(checkpoint(TWO), "cudnn")
    assert asked(checkpoint(TWO), "cudnn", described=True) == [A, B]
    run = {name: view(0, *LSTM[name], offset=at) for name, at in zip(LSTM, (0, 24, 40, 48), strict=True)}
    assert asked(checkpoint(under("a", run)), "cudnn") == [A]  # windows of one buffer are both


def said(file: dict, *modules: Module) -> Checkpoint:
    """A checkpoint whose file says something of its networks."""
    return replace(checkpoint(file), modules=modules)


def test_what_the_file_says() -> None:
    """Names that follow no layout, facts that no tensor shows; what contradicts itself or the user is an error."""
    own = {"weight_ih_l0": "W", "weight_hh_l0": "R"}
    file = {"W": (2, 3), "R": (2, 2)}
    relu = Module("node", "torch", "rnn activation=relu", own, source="RNN node", shapes={"W": (1, 2, 3)})
    open_ = replace(relu, spec="rnn", unsure=("activation=...",))
    found = ask(said(file, relu))
    assert found[0].network.spec.activation == "relu" and found[0].network.tensors == own
    assert found[0].shapes == {"W": (1, 2, 3)} and not found[0].parts
    with pytest.raises(UsageError, match="the file says activation=relu, spec says activation=tanh"):
        ask(said(file, relu), spec="activation=tanh")
    for wrong, error, words in (
        (replace(relu, refused="two inputs"), LayoutError, "'node': two inputs"),
        (replace(relu, spec="cnn"), FormatError, "an invalid spec"),
        (replace(relu, options={"zz": "1"}), FormatError, "'zz'"),
        (replace(relu, tensors=own | {"bias_ih_l0": "B"}), LayoutError, "'bias_ih_l0' is 'B'"),
        (open_, LayoutError, "the file does not say its activation"),
    ):
        with pytest.raises(error, match=re.escape(words)):
            ask(said(file, wrong))
    assert ask(said(file, open_), spec="activation=tanh")[0].network.spec.activation == "tanh"
    both = said(file | under("a", LSTM), relu)
    assert [one[0] for one in asked(both)] == ["node", "a"]
    assert [one[0] for one in asked(both, described=True)] == ["node"]
    shared = {own: f"a.{own}" for own in LSTM}
    one, other = (Module(at, "torch", "lstm", shared) for at in ("x", "y"))
    assert [found[0] for found in asked(said(under("a", LSTM), one, other))] == ["x", "y"]
    with pytest.raises(LayoutError, match=r"'a\.weight_ih_l0' would be a part of two networks, 'x' and 'a'"):
        ask(said(under("a", LSTM), one), at=("x", "a"))


# --- what stands beside a network -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h0", "norm.weight", "x/y", "weight_ih_l0_extra", "parametrizations.bias_ih_l0.x"])
def test_what_nothing_accounts_for(name: str) -> None:
    """An error that says how to go on without it; then it is said to be left."""
    file, name = checkpoint(TWO | {f"b.{name}": (2,)}), f"b.{name}"
    with pytest.raises(
        LayoutError, match=rf"'b': layout torch has no place for 1 tensor [^:]*:\s+'{name}' \[2\]"
    ) as no:
        ask(file)
    assert "--ignore" in no.value.hint
    assert asked(file, at=("a",)) == [A]
    assert [one.ignored for one in ask(file, ignore=("b.*",))] == [(), (name,)]


def test_what_may_stand_there() -> None:
    """Another network, a part of the network's own tensors, an optimizer's state; under Keras, a seed."""
    within = under("b.inner", LSTM)
    file = TWO | within | {"b.row": view(4, 3, offset=6), "b.step": Entry(view(12, 1), "optimizer"), "bb.x": (3,)}
    assert [one.ignored for one in ask(checkpoint(file))] == [(), (), ()]
    assert asked(checkpoint(file), at=("b",)) == [B]
    with pytest.raises(LayoutError, match=r"'m\.rnn': .*\s+'m\.weight_ih_l0_x'"):  # a wrapper's name, a module above
        ask(checkpoint(under("m.rnn", LSTM) | {"m.weight_ih_l0_x": (2,), "m.x": (2,)}))
    with pytest.raises(
        LayoutError, match=r"'b': .* 1 tensor .*\s+'b\.row' \[3\]"
    ):  # of that storage, beside the tensor
        ask(checkpoint(file | {"b.row": view(4, 3, offset=24)}))
    seeded = checkpoint(KERAS | {"enc/seed_generator/seed_generator_state": (2,)})
    assert [one.ignored for one in ask(seeded, "keras", "backward=no")] == [()]
    with pytest.raises(UsageError, match="ignore='zz' matches no tensor"):
        ask(checkpoint(TWO), ignore=("a.weight_ih_l0", "zz"))


def test_at_the_top() -> None:
    """Names of any module stand there: only states, norms and the stems of PyTorch's cells belong to the network."""
    assert asked(checkpoint(LSTM | {"head.weight": (8, 2), "h": (2,), "scale": (1,)}))
    for name in ("h0", "weight_x", "norm.gamma", "bias_ih_l0.x"):
        with pytest.raises(LayoutError, match=rf"the network at the top: .*\s+'{name}'"):
            ask(checkpoint(LSTM | {name: (2,)}))


def test_another_layout_explains_what_is_left() -> None:
    """Where another layout has a place for everything, the hint names it, if its library writes such files."""
    file = {"b.weight_ih": (8, 3), "b.weight_hh": (8, 2), "b.bias": (8,)}
    for format, explained in (("safetensors", True), ("torch zip", False)):
        with pytest.raises(LayoutError, match=r"'b': layout torch\.cell has no place .*\s+'b\.bias' \[8\]") as no:
            ask(checkpoint(file, format=format))
        assert ("equinox and coreml have a place for each" in no.value.hint) == explained


@pytest.mark.parametrize("at, inner", [("b", "b"), ("b", "b.module"), ("", ""), ("", "module")])
def test_weights_from_before_weight_dropout(at: str, inner: str) -> None:
    """The raw weight is what the network reads; what was last drawn from it is left, and both keep their names."""
    raw, read = f"{at}.weight_hh_l0_raw".lstrip("."), f"{inner}.weight_hh_l0".lstrip(".")
    file = checkpoint({f"{inner}.{name}".lstrip("."): shape for name, shape in LSTM.items()} | {raw: (8, 2)})
    seen = beside.unwrapped(file)
    assert seen.names == {read: raw} and seen.checkpoint.entries[read] == file.entries[raw]
    (found,) = ask(file)
    assert found.network.at == inner and found.network.tensors["weight_hh_l0"] == raw
    assert found.network.raw == {raw: read} and found.ignored == ()
    plain = checkpoint(LSTM)
    assert beside.unwrapped(plain).checkpoint is plain


def test_weights_that_are_computed() -> None:
    """Each wrapper is told by its names, with what to call; elsewhere, or ignored, it does not matter."""
    file = without(TWO, "b.weight_hh_l0") | {"b.weight_hh_l0_g": (8, 1), "b.weight_hh_l0_v": (8, 2)}
    parts = ["b.weight_hh_l0_g", "b.weight_hh_l0_v"]
    assert beside.wrapped(checkpoint(file)) == {("b", "weight_hh_l0"): parts}
    assert beside.wrapped(checkpoint(file), ["b.*_g"]) == {("b", "weight_hh_l0"): parts[1:]}
    assert not beside.wrapped(checkpoint(file), ["b.*"]) and not beside.wrapped(checkpoint(TWO))
    with pytest.raises(LayoutError, match=r"'b': 'weight_hh_l0' is computed .*\s+'b\.weight_hh_l0_g' \[8, 1\]") as no:
        ask(checkpoint(file))
    assert "remove_weight_norm(module, 'weight_hh_l0')" in no.value.hint and "--ignore" not in no.value.hint
    assert asked(checkpoint(file), at=("a",)) == [A]
    with pytest.raises(LayoutError, match="is computed"):
        beside.refuse_wrapped(checkpoint(file), ["b*"], [])
    for ends, remedy in ((("_orig", "_mask"), "prune.remove"), (("_orig", "_u", "_v"), "remove_spectral_norm")):
        with pytest.raises(LayoutError, match=f"{len(ends)} tensors beside") as no:
            ask(checkpoint(TWO | {f"b.weight_hh_l0{end}": (8, 2) for end in ends}))
        assert remedy in no.value.hint and no.value.hint.count("remove") == 1
