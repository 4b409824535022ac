"""The recurrent layers of a Keras file: where their weights are, and what is said of them.

    LAYER/kernel:0, recurrent_kernel:0, bias:0        Keras 1 and 2, in `.h5`; maybe below `lstm_cell`
    LAYER/cell/vars/0, 1, 2                           Keras 3, the same three in this order
    forward_LAYER/..., backward_LAYER/...             a Bidirectional

They are found by names and shapes, which prove the sizes and, by the bias, much more: kernel (input, G*H), recurrent
kernel (H, G*H), bias (G*H).  A GRU with reset "after" has the bias (2, 3H), a CuDNNLSTM (8H), a CuDNNGRU (6H).
Activations and directions in time only the configuration says.

Source: keras/src/layers/rnn (3.15), keras/layers/recurrent.py (1.2 to 2.3); docs of `hard_sigmoid`, whose slope was 0.2
in Keras 1 and 2 and is 1/6 in Keras 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from paramtool.formats._keras_config import Config, Layer
from paramtool.model.checkpoint import Entry, Module
from paramtool.model.view import View

NAMED = re.compile(r"(?:(?P<home>.*)/)?(?P<part>kernel|recurrent_kernel|bias)(?::0)?")
VARS = re.compile(r"(?P<home>.+)/cell/vars/(?P<part>[012])")
CELL = re.compile(r"(^|/)[^/]*_?cell(_\d+)?$")
"""The group of the cell inside that of its layer, which not every version has."""
PARTS = ("kernel", "recurrent_kernel", "bias")
KINDS = {4: "lstm", 3: "gru", 1: "rnn"}
"""{gates: kind}."""
CLASSES = {"LSTM": "lstm", "CuDNNLSTM": "lstm", "GRU": "gru", "CuDNNGRU": "gru", "SimpleRNN": "rnn"}
HARD_SIGMOID = {"1": "(0.2,0.5)", "2": "(0.2,0.5)", "3": "(0.16666667,0.5)"}
"""{version of Keras: slope and middle}."""
SAME = ("units", "activation", "recurrent_activation", "use_bias", "reset_after")
"""What both directions must have in common to be one network."""


class Cell(NamedTuple):
    """One direction of a layer: its weights by their own names in the layout, and their shapes."""

    home: str
    names: Mapping[str, str]
    shapes: tuple[tuple[int, ...], ...]
    is_vars: bool


@dataclass(frozen=True, slots=True)
class Proven:
    """What the shapes of a cell prove."""

    kind: str
    input: int
    hidden: int
    bias: bool
    reset: str
    is_cudnn: bool


def modules(entries: Mapping[str, Entry], config: Config) -> tuple[list[Module], list[str]]:
    """The recurrent layers, and notes on those of which not all is known."""
    cells = {cell.home: cell for cell in _cells(entries)}
    made: list[Module] = []
    notes: list[str] = []
    silent: list[str] = []
    for at, directions in _pairs(cells):
        try:
            proven = {shapes_prove(cell.shapes) for cell in directions}
            if None in proven:
                continue
            if len(proven) > 1:
                raise ValueError("has directions of different shapes")
            (facts,) = proven
            assert facts is not None
            layer = _layer_of(at, directions[0].is_vars, config)
            module = _module(at, directions, facts, layer, config)
            if layer is None and not facts.is_cudnn:
                silent.append(at)
                if _is_old(config) and not module.spec.startswith("rnn"):
                    module = replace(module, unsure="gate_activation=hard_sigmoid(0.2,0.5)")
            made.append(module)
        except ValueError as error:
            notes.append(f"recurrent layer {at!r:.200} {error}; it is not listed")
    if silent:
        names = ", ".join(map(repr, silent[:5])) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        notes.append(f"no configuration says what the activations of {names} are{_older(config)}")
    return made, notes


def _is_old(config: Config) -> bool:
    """Whether the gates of that version are hard_sigmoid, unless another was chosen."""
    return config.version[:1] == "1" or config.version[:4] in ("2.0.", "2.1.", "2.2.")


def _older(config: Config) -> str:
    """A warning where the version has another usual activation than today's."""
    words = f"; in Keras {config.version} that of the gates is hard_sigmoid, unless it was chosen"
    return words if _is_old(config) else ""


def _cells(entries: Mapping[str, Entry]) -> Iterator[Cell]:
    """Groups of weights that are called as those of a recurrent layer."""
    groups: dict[tuple[str, bool], dict[str, str]] = {}
    for name, entry in entries.items():
        if entry.role != "model" or not isinstance(entry.value, View):
            continue
        match = VARS.fullmatch(name) or NAMED.fullmatch(name)
        if match:
            part, is_vars = match["part"], match.re is VARS
            label = PARTS[int(part)] if is_vars else part
            groups.setdefault((match["home"] or "", is_vars), {})[label] = name
    for (home, is_vars), names in groups.items():
        if {"kernel", "recurrent_kernel"} <= names.keys():
            own = {f"cell/vars/{PARTS.index(p)}" if is_vars else p: names[p] for p in PARTS if p in names}
            values = [entries[name].value for name in own.values()]
            shapes = tuple(value.shape for value in values if isinstance(value, View))
            yield Cell(home if is_vars else CELL.sub("", home) or home, own, shapes, is_vars)


def _pairs(cells: Mapping[str, Cell]) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    """(group, directions) of each layer; the directions of a Bidirectional stand side by side in one group."""
    for home, cell in cells.items():
        parent, _, last = home.rpartition("/")
        other = {"forward": "backward", "backward": "forward"}.get(last.partition("_")[0], "")
        partner = cells.get(f"{parent}/{other}_{last.partition('_')[2]}".lstrip("/")) if other else None
        if partner is None:
            yield home, (cell,)
        elif other == "backward":
            yield parent, (cell, partner)


def shapes_prove(shapes: tuple[tuple[int, ...], ...]) -> Proven | None:
    """What kernel, recurrent kernel and bias show; None where they are no recurrent layer's.

    >>> shapes_prove(((3, 16), (4, 16), (32,)))
    Proven(kind='lstm', input=3, hidden=4, bias=True, reset='', is_cudnn=True)
    """
    kernel, recurrent, *rest = shapes
    if len(kernel) != 2 or len(recurrent) != 2 or kernel[1] != recurrent[1] or not kernel[0] or not recurrent[0]:
        return None
    hidden = recurrent[0]
    gates, odd = divmod(recurrent[1], hidden)
    kind = KINDS.get(gates, "")
    if odd or not kind:
        return None
    bias = rest[0] if rest else ()
    is_cudnn = kind != "rnn" and bias == (2 * gates * hidden,)
    if bias not in ((), (gates * hidden,), (2, gates * hidden) if kind == "gru" else ()) and not is_cudnn:
        return None
    reset = "" if kind != "gru" or not bias else "after" if is_cudnn or len(bias) == 2 else "before"
    return Proven(kind, kernel[0], hidden, bool(bias), reset, is_cudnn)


def _layer_of(at: str, is_vars: bool, config: Config) -> Layer | None:
    """The layer of the configuration whose weights stand in a group; None where that is not sure."""
    found = [layer for layer in config.layers if at == layer.path] if is_vars else []
    if not is_vars:
        path = at.split("/")
        named = [layer for layer in map(_unwrapped, config.layers) if layer.name and layer.name in path]
        depth = max((len(path) - path[::-1].index(layer.name) for layer in named), default=0)
        found = [layer for layer in named if len(path) - path[::-1].index(layer.name) == depth]
    elif not found:
        found = [layer for layer in map(_unwrapped, config.layers) if at == layer.path]
    found = [layer for layer in found if _recurrent(layer)]
    return found[0] if len(found) == 1 else None


def _unwrapped(layer: Layer) -> Layer:
    """What a wrapper such as TimeDistributed wraps."""
    while layer.inner is not None and layer.class_name != "Bidirectional":
        layer = layer.inner
    return layer


def _recurrent(layer: Layer) -> Layer | None:
    """The recurrent layer itself, out of a Bidirectional."""
    found = layer.inner if layer.class_name == "Bidirectional" else layer
    return found if found is not None and found.class_name in CLASSES else None


def _module(at: str, cells: tuple[Cell, ...], proven: Proven, layer: Layer | None, config: Config) -> Module:
    is_cudnn, words = proven.is_cudnn, [proven.kind, f"input={proven.input}", f"hidden={proven.hidden}"]
    if len(cells) == 2:
        words.append("bidirectional")
    if not proven.bias:
        words.append("bias=no")
    if proven.reset:
        words.append(f"reset={proven.reset}")
    if layer is not None:
        words += _said(layer, proven, len(cells), config)
        is_cudnn = is_cudnn or (_recurrent(layer) or layer).class_name.startswith("CuDNN")
    labels = ("forward_layer/", "backward_layer/") if len(cells) == 2 else ("",)
    tensors = {label + own: name for label, cell in zip(labels, cells, strict=True) for own, name in cell.names.items()}
    layout = "keras.vars" if cells[0].is_vars else "keras.cudnn" if is_cudnn else "keras"
    source = f"{config.source}: {layer.class_name} {layer.name!r}" if layer else "names and shapes"
    return Module(at, layout, " ".join(words), tensors, source=source)


def _said(layer: Layer, proven: Proven, directions: int, config: Config) -> Iterator[str]:
    """The words that only a configuration has; ValueError where it says what no spec can, or contradicts the shapes."""
    found = _recurrent(layer)
    assert found is not None
    said = found.config
    if CLASSES[found.class_name] != proven.kind or (layer is found) != (directions == 1):
        raise ValueError(f"is a {found.class_name} by its configuration, and {proven.kind} by its shapes")
    if said.get("units", proven.hidden) != proven.hidden:
        raise ValueError(f"has units={said['units']!r:.40} by its configuration, and {proven.hidden} by its shapes")
    if directions == 2 and (said.get("go_backwards") or _differs(layer.backward, found)):
        raise ValueError("has directions that differ in more than their weights")
    if found.class_name.startswith("CuDNN"):
        yield from ["reset=after"] * (proven.kind == "gru" and not proven.reset)
    else:
        if proven.kind == "gru" and not proven.reset:
            yield f"reset={'after' if said.get('reset_after') else 'before'}"
        activation = _activation(said.get("activation"), config) if "activation" in said else ""
        yield from [f"activation={activation}"] * (activation not in ("", "tanh" if proven.kind != "rnn" else ""))
        key = "recurrent_activation" if "recurrent_activation" in said else "inner_activation"
        if key in said and proven.kind != "rnn":  # said even where it is the usual one: silence means unknown
            yield f"gate_activation={_activation(said[key], config)}"
    yield from ["backward"] * bool(said.get("go_backwards"))


def _differs(backward: Layer | None, forward: Layer) -> bool:
    """Whether a backward layer is another kind of network than the forward one."""
    if backward is None:
        return False
    return backward.class_name != forward.class_name or any(
        backward.config.get(key) != forward.config.get(key) for key in SAME
    )


def _activation(value: object, config: Config) -> str:
    """The word for an activation; ValueError where it is a function of the user's own."""
    if value is None:
        return "linear"
    if not isinstance(value, str) or not re.fullmatch(r"\w+", value):
        raise ValueError("has an activation of its own")
    return value + (HARD_SIGMOID.get(config.version[:1], "") if value == "hard_sigmoid" else "")
