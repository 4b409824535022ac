"""Layers put together as one network, and taken apart again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool import layouts
from paramtool.errors import LayoutError, UsageError
from paramtool.layouts import spec as specs
from paramtool.layouts.layout import stored
from paramtool.layouts.networks import Network
from paramtool.passes.rnn import stacking
from tests.examples import examples


def network(at: str, text: str, layout: str = "keras", **options: str) -> Network:
    """A network whose tensors are called by its module and the layout's names."""
    found, spec = layouts.find(layout), specs.Spec(**specs.parse(text))
    chosen = found.chosen(options)
    form = found.form(spec, chosen)
    names = [tensor.name for tensor in stored(found, form, spec, chosen)]
    return Network(at, found, form, spec, chosen, {name: f"{at}{found.separator}{name}" for name in names})


def put(networks: list[Network], *texts: str) -> list[Network]:
    """The networks after --stack."""
    return stacking.stacked("FILE", networks, [stacking.parse(text) for text in texts])


FIRST, SECOND = network("e.a", "lstm input=3 hidden=2"), network("e.b", "lstm input=2 hidden=2")


@pytest.mark.parametrize(
    "text, old, new",
    [("a,b=c", ("a", "b"), ("c",)), ("a/x=b,c,d.e", ("a/x",), ("b", "c", "d.e")), ("a,b=a", ("a", "b"), ("a",))],
)
def test_what_is_asked_for(text: str, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Several modules that become one, or one that becomes several, and back to text."""
    stack = stacking.parse(text)
    assert (stack.old, stack.new, str(stack)) == (old, new, text)


@pytest.mark.parametrize(
    "text", ["", "a", "a=b", "a,b", "=a,b", "a,b=", "a,=b", "a,b=c,d", "a,b=c,d,e", "a=b,b", "a,a=b"]
)
def test_what_cannot_be_asked_for(text: str) -> None:
    """Refused with the text; a module that stands twice, too."""
    with pytest.raises(UsageError, match="stack") as no:
        stacking.parse(text)
    assert repr(text) in str(no.value)
    assert ("named twice" in str(no.value)) == (text in ("a=b,b", "a,a=b"))


def test_two_layers_are_one_network() -> None:
    """The tensors keep their names in the file and get the layout's names of layers; the first says the input."""
    (made,) = put([FIRST, SECOND], "e.a,e.b=enc")
    assert (made.at, str(made.spec), made.stacked) == ("enc", "lstm input=3 hidden=2 layers=2", ("e.a", "e.b"))
    assert made.tensors == {
        f"layer{k}/{name}": f"e.{at}/{name}"
        for k, at in enumerate("ab")
        for name in ("kernel", "recurrent_kernel", "bias")
    }


@st.composite
def whole(draw: st.DrawFn) -> Network:
    """A network of several layers in a layout that has names for layers."""
    layout, kind = draw(st.sampled_from(["keras", "torch", "mxnet"])), draw(st.sampled_from(["lstm", "gru", "rnn"]))
    words = [kind, f"input={draw(st.integers(1, 4))}", f"hidden={draw(st.integers(2, 4))}"]
    words += [f"layers={draw(st.integers(2, 3))}"] + ["reset=after"] * (kind == "gru")
    merges = [["bidirectional", "merge=sum"]] if layout == "keras" else []  # the others have no word for it
    words += draw(st.sampled_from([[], ["bidirectional"], *merges]))
    return network("w", " ".join(words + ["bias=no"] * draw(st.booleans())), layout)


@settings(max_examples=examples(40))
@given(whole())
def test_apart_and_together_is_the_same_network(one: Network) -> None:
    """Every tensor in one layer, each layer as wide as the one before it gives; together they are what was there."""
    names = [f"x{k}" for k in range(one.spec.layers)]
    apart = put([one], f"w={','.join(names)}")
    assert [part.at for part in apart] == names and all(part.stacked == ("w",) for part in apart)
    inputs = [part.spec.input for part in apart]
    assert inputs == [one.spec.input] + [one.spec.output] * (one.spec.layers - 1)
    assert sorted(name for part in apart for name in part.tensors.values()) == sorted(one.tensors.values())
    for part in apart:
        assert part.tensors.keys() == network("x", str(part.spec), one.layout.name).tensors.keys()
    (back,) = put(apart, f"{','.join(names)}=w")
    assert replace(back, stacked=()) == one and back.stacked == tuple(names)


def test_short_names_and_places() -> None:
    """The last part of a path is enough where it is one network's; the new one stands where the first old one did."""
    before, between = network("x.before", "rnn input=3 hidden=2"), network("y.z", "rnn input=3 hidden=2")
    made = put([before, SECOND, between, FIRST], "a,b=enc")
    assert [one.at for one in made] == ["x.before", "y.z", "enc"]
    assert [one.at for one in put([FIRST, between, SECOND], "a,b=enc")] == ["enc", "y.z"]
    twice = replace(FIRST, at="d.a")
    with pytest.raises(
        UsageError, match=r"FILE: stack a,b=enc: 'a' is not a converted network; expected one of 'b', 'e\.a', 'd\.a'"
    ):
        put([FIRST, twice, replace(SECOND, at="b")], "a,b=enc")
    three = network("c", "lstm input=2 hidden=2")
    (all_,) = put([FIRST, SECOND, three], "a,b=ab", "ab,c=all")
    assert all_.spec.layers == 3 and len(all_.tensors) == 9


@pytest.mark.parametrize(
    "second, message",
    [
        (network("b", "lstm input=3 hidden=2"), r"'b' takes 3 values; 'e\.a' gives 2"),
        (network("b", "rnn input=2 hidden=2"), r"'b' is rnn .*'e\.a' is lstm"),
        (
            network("b", "lstm input=2 hidden=4"),
            r"'b' is lstm input=2 hidden=4; the layers of one network must be alike",
        ),
        (network("b", "lstm input=2 hidden=2 bidirectional"), ".*must be alike"),
        (network("b", "lstm input=2 hidden=2 gate_activation=hard_sigmoid(0.2,0.5)"), ".*must be alike"),
        (network("b", "lstm input=2 hidden=2", "torch"), r"'e\.a' is keras, 'b' is torch; expected one layout"),
    ],
)
def test_layers_that_do_not_fit(second: Network, message: str) -> None:
    """An error says what the one gives and the other takes."""
    with pytest.raises(LayoutError, match=f"FILE: stack=e.a,b=enc: {message}"):
        put([FIRST, second], "e.a,b=enc")


def test_what_cannot_be_stacked() -> None:
    """A network that runs backward, one whose layers are in one tensor, another number of layers, other options."""
    backward = [network(at, "lstm input=2 hidden=2 backward") for at in "ab"]
    with pytest.raises(LayoutError, match="'a' runs backward"):
        put(backward, "a,b=c")
    with pytest.raises(LayoutError, match="'w' runs backward"):
        put([network("w", "lstm input=2 hidden=2 layers=2 backward")], "w=a,b")
    with pytest.raises(LayoutError, match="layout cudnn stores all layers of a network in the same tensors") as no:
        put([network(at, "lstm input=2 hidden=2", "cudnn") for at in "ab"], "a,b=c")
    assert "unfuse" in no.value.hint
    with pytest.raises(LayoutError, match="same tensors"):
        put([network("w", "lstm input=2 hidden=2 layers=2", "cudnn")], "w=a,b")
    with pytest.raises(LayoutError, match="layers=2; expected 3 layers"):
        put([network("w", "lstm input=2 hidden=2 layers=2")], "w=a,b,c")
    with pytest.raises(LayoutError, match="expected one layout"):
        one = {"at": "a", "text": "lstm input=2 hidden=2", "layout": "tf1.basic"}
        put([network(**one), network(**one | {"at": "b"}, forget_bias="0.0")], "a,b=c")


def test_facts_of_the_parts_are_those_of_the_whole() -> None:
    """Raw names, and what was assumed, once each; one layer with biases makes a network with biases."""
    raw = replace(FIRST, raw={"e.a/kernel": "e.a/old"}, assumed=(("activation=tanh", "x"),))
    other = replace(SECOND, raw={"e.b/bias": "e.b/old"}, assumed=raw.assumed)
    (made,) = put([raw, other], "a,b=c")
    assert made.raw == raw.raw | other.raw and made.assumed == raw.assumed
    assert [one.raw for one in put([made], "c=a,b")] == [raw.raw, other.raw]
    bare = network("b", "lstm input=2 hidden=2 bias=no")
    for parts, lacking in (([FIRST, bare], "layer1/bias"), ([replace(bare, at="e.a"), SECOND], "layer0/bias")):
        parts[1] = replace(parts[1], at="e.b")
        (made,) = put(parts, "a,b=c")
        assert made.spec.bias and len(made.tensors) == 5 and lacking not in made.tensors
