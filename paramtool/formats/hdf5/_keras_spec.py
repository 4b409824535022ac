"""The words of a spec for a recurrent layer in a Keras configuration, or why there are none.

Settings without a word: `return_sequences`, `return_state`, `time_major` (the form of what goes in and
comes out), `stateful` (who keeps the state), `zero_output_for_mask` (outputs of steps that a mask leaves out),
`dropout` (only in training), `unroll`, `implementation` (how it is computed), initializers, regularizers, constraints.

Source: keras/src/layers/rnn (3.15): lstm.py, gru.py, simple_rnn.py, rnn.py, stacked_rnn_cells.py, bidirectional.py;
keras/layers/recurrent.py (1.2 to 2.3); docs of `hard_sigmoid`, whose slope was 0.2 in Keras 1 and 2 and is 1/6 in
Keras 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paramtool.formats.hdf5.keras_config import BACKWARD, KerasConfig, Layer
from paramtool.lazy_dataclass import dataclass

LAYERS = {"LSTM": "lstm", "CuDNNLSTM": "lstm", "GRU": "gru", "CuDNNGRU": "gru", "SimpleRNN": "rnn"}
CELLS = {"LSTMCell": "lstm", "GRUCell": "gru", "SimpleRNNCell": "rnn"}
HARD_SIGMOID = {"1": "(0.2,0.5)", "2": "(0.2,0.5)", "3": "(0.16666667,0.5)"}
"""{version of Keras: slope and middle}."""
SAME = ("units", "activation", "recurrent_activation", "use_bias", "reset_after")
"""What both directions must have in common to be one network."""
MERGES = {"concat": "concat", "sum": "sum", "mul": "mul", "ave": "ave", None: "none"}
"""{merge_mode: its word}."""


@dataclass(frozen=True, slots=True)
class Proven:
    """What the shapes of a cell prove."""

    kind: str
    input: int
    hidden: int
    bias: bool
    reset: str
    is_cudnn: bool


class Described(NamedTuple):
    """A layer of the configuration whose weights are in one group, or in one for each direction."""

    outer: Layer
    """The Bidirectional, or the layer itself."""
    run: Layer
    """The layer that runs one way: an LSTM, or an RNN."""
    cell: Layer
    """What has the settings: the LSTM, or the cell of the RNN."""
    wrapper: str = ""
    """What is around it and may be anything."""

    @property
    def is_both(self) -> bool:
        """Whether it runs in both directions."""
        return self.outer.class_name == "Bidirectional"

    @property
    def kind(self) -> str:
        """`lstm`, `gru` or `rnn`; empty if the class is not one of Keras' own."""
        return (LAYERS if self.cell is self.run else CELLS).get(self.cell.class_name, "")

    @property
    def is_cudnn(self) -> bool:
        """Whether it is one of the layers that were made for cuDNN."""
        return self.kind != "" and self.cell.class_name.startswith("CuDNN")


def described(at: str, is_vars: bool, config: KerasConfig) -> Described | None:
    """The layer that describes the weights in a group; None if there is none, or if it is ambiguous.

    ValueError where they are a cell of a stack that has no cell of that name.
    """
    if is_vars:
        found = [one for layer in config.layers for one in _parts(layer) if _is_path(one, at)]
        return found[0] if len(found) == 1 else None
    path = at.split("/")
    depths = [(_depth(layer, path), layer) for layer in config.layers]
    deepest = max((depth for depth, _ in depths), default=0)
    layers = [layer for depth, layer in depths if depth and depth == deepest]
    if len(layers) != 1:
        return None
    parts = list(_parts(layers[0]))
    if len(parts) > 1 and (inside := [one for one in parts if one.cell.name == path[-1]]):
        return inside[0]
    if len(parts) > 1:
        raise ValueError(f"is in {layers[0].name!r:.200} by its path, which has no cell {path[-1]!r:.200}")
    return parts[0]


def _unwrapped(layer: Layer) -> tuple[Layer, str]:
    """What a wrapper such as TimeDistributed wraps, and the name of a wrapper that may change more than shapes."""
    wrapper = ""
    while layer.inner is not None and layer.class_name != "Bidirectional":
        wrapper = wrapper or ("" if layer.class_name == "TimeDistributed" else layer.class_name)
        layer = layer.inner
    return layer, wrapper


def _parts(layer: Layer) -> Iterator[Described]:
    """What of a layer has weights of its own: itself, or each cell of a stack."""
    outer, wrapper = _unwrapped(layer)
    run = outer.inner if outer.class_name == "Bidirectional" and outer.inner is not None else outer
    for cell in run.cells or (run,):
        yield Described(outer, run, cell, wrapper)


def _is_path(one: Described, at: str) -> bool:
    """Whether Keras 3 keeps its weights there."""
    if len(one.run.cells) < 2:
        return at in (one.outer.path, one.cell.path)
    tail = one.cell.path.removeprefix(one.run.path)
    return at == one.cell.path or (one.is_both and at == f"{one.outer.path}/{BACKWARD}{tail}")


def _depth(layer: Layer, path: Sequence[str]) -> int:
    """The depth in a path of the name of a layer or of its wrapped layer; 0 if the weights there are not its own."""
    names = {layer.name, _unwrapped(layer)[0].name} - {""}
    depth = max((k for k, name in enumerate(path, 1) if name in names), default=0)
    is_known = any(one.kind or one.run.cells for one in _parts(layer))
    return depth if is_known or depth == len(path) else 0


def words(found: Described, proven: Proven, directions: int, config: KerasConfig) -> Iterator[str]:
    """The words that only a configuration has; ValueError where it says what no spec can, or contradicts the shapes."""
    said = found.cell.config
    _check(found, proven, directions)
    if not found.is_cudnn:
        if proven.kind == "gru" and not proven.reset:
            yield f"reset={'after' if said.get('reset_after') else 'before'}"
        yield f"activation={_activation(said.get('activation', 'tanh'), config)}"
        key = "recurrent_activation" if "recurrent_activation" in said else "inner_activation"
        if key in said and proven.kind != "rnn":
            yield f"gate_activation={_activation(said[key], config)}"
    elif proven.kind == "gru" and not proven.reset:
        yield "reset=after"
    yield "backward" if found.run.config.get("go_backwards") else "backward=no"
    if found.is_both:
        mode = found.outer.config.get("merge_mode", "concat")
        if not isinstance(mode, str | None) or mode not in MERGES:
            raise ValueError(f"has merge_mode={mode!r:.40}, which a spec cannot express")
        yield f"merge={MERGES[mode]}"


def _check(found: Described, proven: Proven, directions: int) -> None:
    """ValueError where a layer is not what the shapes of its weights show, or what no spec can say."""
    name, said = found.cell.class_name, found.cell.config
    if found.wrapper:
        raise ValueError(f"is wrapped in {_a(found.wrapper)}, which is not a Keras class: its effect is unknown")
    if not found.kind:
        raise ValueError(f"is {_a(name)} by its configuration, which is not a recurrent layer or cell of Keras")
    if found.is_both and len(found.run.cells) > 1:
        raise ValueError("is a stack of cells in a Bidirectional, whose cells see only one direction each")
    if found.is_both != (directions == 2):
        count = "one direction" if directions == 1 else "two directions"
        raise ValueError(f"is {_a(found.outer.class_name)} by its configuration, and has {count} by its names")
    if found.kind != proven.kind:
        raise ValueError(f"is {_a(name)} by its configuration, and {proven.kind} by its shapes")
    if said.get("units", proven.hidden) != proven.hidden:
        raise ValueError(f"has units={said['units']!r:.40} by its configuration, and {proven.hidden} by its shapes")
    if "use_bias" in said and bool(said["use_bias"]) != proven.bias:
        raise ValueError(
            f"has use_bias={said['use_bias']!r:.40} by its configuration, and {'a' if proven.bias else 'no'} bias"
        )
    side = "after" if said.get("reset_after") else "before"
    if "reset_after" in said and proven.reset not in ("", side):
        raise ValueError(
            f"has reset_after={said['reset_after']!r:.40} by its configuration, and reset={proven.reset} by its bias"
        )
    if found.is_both and found.run.config.get("go_backwards"):
        raise ValueError("is a Bidirectional of a layer with go_backwards: its directions change places")
    if found.is_both and found.outer.backward is not None and _differs(found.outer.backward, found.run):
        raise ValueError("has directions that differ in more than their weights")


def _differs(backward: Layer, forward: Layer) -> bool:
    """Whether a backward layer is another kind of network than the forward one."""
    if backward.class_name != forward.class_name or backward.config.get("go_backwards") is False:
        return True
    pairs = [(backward, forward), *zip(backward.cells, forward.cells, strict=False)]
    return any(
        one.class_name != other.class_name or any(one.config.get(key) != other.config.get(key) for key in SAME)
        for one, other in pairs
    )


def _activation(value: object, config: KerasConfig) -> str:
    """The word for an activation; ValueError where it is a function of the user's own."""
    if value is None:
        return "linear"
    if not isinstance(value, str) or not re.fullmatch(r"\w+", value):
        raise ValueError("has a custom activation")
    return value + (HARD_SIGMOID.get(config.version[:1], "") if value == "hard_sigmoid" else "")


def _a(name: str) -> str:
    return f"{'an' if name.startswith((*'AEIOU', 'LSTM', 'RNN')) else 'a'} {name:.100}"
