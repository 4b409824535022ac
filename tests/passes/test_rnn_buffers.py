"""Fused blocks that are a network's buffer: windows of one storage in cuDNN's order, and in no other."""

from __future__ import annotations

from itertools import permutations
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.view import View
from paramtool.passes.rnn import convert
from tests.examples import examples
from tests.passes.made import checkpoint, view

MATRICES = {"weight_ih_l0": (8, 3), "weight_hh_l0": (8, 2)}
BIASES = {"bias_ih_l0": (8,), "bias_hh_l0": (8,)}
LSTM = MATRICES | BIASES


def run(names: list[str], shapes: dict[str, tuple[int, ...]], storage: int = 0, start: int = 0) -> dict[str, View]:
    """Tensors one behind the other in one storage."""
    found = {}
    for name in names:
        found[name] = view(storage, *shapes[name], offset=start)
        start += prod(shapes[name])
    return found


def under(at: str, tensors: dict[str, View]) -> dict[str, View]:
    """The tensors of a module."""
    return {f"{at}.{name}": one for name, one in tensors.items()}


def found(file: dict[str, View]) -> dict[int, tuple[str, str, str]]:
    """{storage: (module, layout, spec)}."""
    made: Checkpoint = checkpoint(file)
    networks = convert.fused_networks(made, alias.build(made))
    assert all(one.proof for one in networks.values())
    return {storage: (one.at, one.layout, str(one.spec)) for storage, one in networks.items()}


def test_one_order_of_all() -> None:
    """Of the 24 orders of an LSTM's tensors, cuDNN's is matrices before biases, input before recurrent."""
    right = [order for order in permutations(LSTM) if found(run(list(order), LSTM))]
    assert right == [tuple(LSTM)]
    assert found(run(list(LSTM), LSTM)) == {0: ("", "cudnn", "lstm input=3 hidden=2")}


@st.composite
def networks(draw: st.DrawFn) -> tuple[str, dict[str, tuple[int, ...]]]:
    """The text of a spec, and its tensors in cuDNN's order: all matrices, then all biases, by layer and direction."""
    kind, gates = draw(st.sampled_from([("lstm", 4), ("gru", 3), ("rnn", 1)]))
    inside, hidden = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    layers, both, bias = draw(st.integers(1, 2)), draw(st.booleans()), draw(st.booleans())
    ends = [f"_l{k}{side}" for k in range(layers) for side in ("", "_reverse")[: 1 + both]]
    shapes: dict[str, tuple[int, ...]] = {}
    for end in ends:
        shapes[f"weight_ih{end}"] = (gates * hidden, inside if "_l0" in end else hidden * (1 + both))
        shapes[f"weight_hh{end}"] = (gates * hidden, hidden)
    shapes |= {f"bias_{side}{end}": (gates * hidden,) for end in ends for side in ("ih", "hh") if bias}
    words = [kind, f"input={inside}", f"hidden={hidden}", *([f"layers={layers}"] if layers > 1 else [])]
    words += ["bidirectional"] * both + ["bias=no"] * (not bias)
    return " ".join(words + ["reset=after"] * (kind == "gru")), shapes


@settings(max_examples=examples(50))
@given(networks(), st.data())
def test_layers_and_directions(one: tuple[str, dict], data: st.DataObject) -> None:
    """The whole order, whatever stands first in the file; one swap, and it is none."""
    text, shapes = one
    names, listed = list(shapes), data.draw(st.permutations(list(shapes)))
    placed = run(names, shapes)
    assert found(under("m", {name: placed[name] for name in listed})) == {0: ("m", "cudnn", text)}
    a, b = sorted(data.draw(st.lists(st.integers(0, len(names) - 1), min_size=2, max_size=2, unique=True)))
    names[a], names[b] = names[b], names[a]
    assert not found(run(names, shapes))


def test_two_networks_and_what_is_none() -> None:
    """A storage each; what lies apart, behind something, with a gap, in two storages or incomplete is not told of."""
    whole, other = run(list(LSTM), LSTM), run(list(LSTM), LSTM, storage=1)
    assert found(under("a", whole) | under("b", other)) == {
        0: ("a", "cudnn", "lstm input=3 hidden=2"),
        1: ("b", "cudnn", "lstm input=3 hidden=2"),
    }
    tied = found(under("a", whole) | under("b", whole))
    assert [one[0] for one in tied.values()] == ["a"]  # one buffer, told of once
    assert not found({name: view(k, *shape) for k, (name, shape) in enumerate(LSTM.items())})
    assert not found(run(list(LSTM), LSTM, start=4))
    assert not found(run(list(MATRICES), LSTM) | run(list(BIASES), LSTM, start=41))
    assert not found(run(list(MATRICES), LSTM) | run(list(BIASES), LSTM, storage=1))
    assert not found(run([*MATRICES, "bias_ih_l0"], LSTM))
    assert not found({"x": view(0, 4), "y": view(0, 4, offset=4)})
    half = {
        name: View(0, view(0, 1, dtype="float16").dtype, one.offset, one.shape, one.strides)
        for name, one in whole.items()
    }
    assert found(half) == found(whole)


def test_a_tail_and_neighbours() -> None:
    """Room behind the last window is the buffer's own; so is another name that stands there."""
    whole = run(list(LSTM), LSTM)
    assert found(whole | {"behind": view(0, 4, offset=56)}) == found(whole)
    assert found(run(list(MATRICES), LSTM) | {"pad": view(0, 16, offset=40)}) == {
        0: ("", "cudnn", "lstm input=3 hidden=2 bias=no")
    }
