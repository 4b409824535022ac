"""The recurrent layers of a Keras file: their weights, and their specs.

    LAYER/LAYER_W_i:0, LAYER_U_i:0, LAYER_b_i:0, ...  Keras 1, an array for each gate; LAYER_W:0 and so on for all
    LAYER/kernel:0, recurrent_kernel:0, bias:0        Keras 2, in `.h5`; maybe below `lstm_cell`
    LAYER/cell/vars/0, 1, 2                           Keras 3, the same three in this order
    forward_LAYER/..., backward_LAYER/...             a Bidirectional
    LAYER/stacked_rnn_cells/lstm_cell_1/kernel, ...   a StackedRNNCells: each cell is a network of its own
    LAYER/cell/cells/lstm_cell_1/vars/0, 1, 2         the same in Keras 3

They are found by names and shapes, which prove the sizes and, by the bias, much more: kernel (input, G*H), recurrent
kernel (H, G*H), bias (G*H).  A GRU with reset "after" has the bias (2, 3H), a CuDNNLSTM (8H), a CuDNNGRU (6H).
Activations, directions in time and what a Bidirectional makes of its outputs only the configuration says
(`described`); where there is none, the layout's own rules apply: some is assumed aloud, some has to be said.

Source: keras/src/layers/rnn (3.15), keras/layers/recurrent.py (1.2 to 2.3); tensorflow/python/keras/__init__.py and
keras/__init__.py for versions: TensorFlow 1.13 to 1.15, 2.0 and 2.1 all write 2.2.4-tf.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paramtool.errors import some
from paramtool.formats.hdf5.keras_config import BACKWARD, KerasConfig, Layer
from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Entries, Module
from paramtool.model.view import Shape, View

# --- The words of a spec for a recurrent layer in a Keras configuration, or why there are none -----------------------
#
# Settings without a word: `return_sequences`, `return_state`, `time_major` (the form of what goes in and comes out),
# `stateful` (who keeps the state), `zero_output_for_mask` (outputs of steps that a mask leaves out), `dropout` (only
# in training), `unroll`, `implementation` (how it is computed), initializers, regularizers, constraints.
#
# Source: keras/src/layers/rnn (3.15): lstm.py, gru.py, simple_rnn.py, rnn.py, stacked_rnn_cells.py, bidirectional.py;
# keras/layers/recurrent.py (1.2 to 2.3); docs of `hard_sigmoid`, whose slope was 0.2 in Keras 1 and 2 and is 1/6 in
# Keras 3.


LAYERS = {"LSTM": "lstm", "CuDNNLSTM": "lstm", "GRU": "gru", "CuDNNGRU": "gru", "SimpleRNN": "rnn"}
CELLS = {"LSTMCell": "lstm", "GRUCell": "gru", "SimpleRNNCell": "rnn"}
HARD_SIGMOID = {"1": "(0.2,0.5)", "2": "(0.2,0.5)", "3": "(0.16666667,0.5)"}
"""{version of Keras: slope and middle}."""
SAME = ("units", "activation", "recurrent_activation", "use_bias", "reset_after")
"""What both directions must have in common to be one network."""
MERGES = {"concat": "concat", "sum": "sum", "mul": "mul", "ave": "ave", None: "none"}
"""{merge_mode: its word}."""


@frozen
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


def spec_words(found: Described, proven: Proven, directions: int, config: KerasConfig) -> Iterator[str]:
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


# --- The recurrent layers of a Keras file: their weights, and their specs ---


NAMED = re.compile(r"(?:(?P<home>.*)/)?(?P<part>kernel|recurrent_kernel|bias)(?::0)?")
FIRST = re.compile(r"(?P<home>.+)_(?P<part>[WUb](?:_[icfozrh])?)(?::0)?")
"""The names of Keras 1."""
VARS = re.compile(r"(?P<home>.+?)(?P<stack>/cell(?:/cells/[^/]+)*)/vars/(?P<part>[012])")
CELL = re.compile(r"(^|/)[^/]*_?cell(_\d+)?$")
"""The group of the cell inside that of its layer, which not every version has."""
PARTS = ("kernel", "recurrent_kernel", "bias")
JOINED = dict(zip("WUb", PARTS, strict=True))
GATES = ("icfo", "zrh")
"""The gates of an LSTM and of a GRU, as Keras 1 writes them in names."""
KINDS = {4: "lstm", 3: "gru", 1: "rnn"}
"""{gates: kind}."""
SIDES = {"forward": "backward", "backward": "forward"}
SIGMOIDS = ("gate_activation=sigmoid", f"gate_activation=hard_sigmoid{HARD_SIGMOID['2']}")
"""What the gates can be in files of old versions."""


class KerasCell(NamedTuple):
    """One direction of a layer: its weights by their own names in the layout, and their shapes."""

    home: str
    names: Mapping[str, str]
    shapes: tuple[Shape, ...]
    """Of kernel, recurrent kernel and bias; arrays of gates side by side."""
    is_vars: bool

    @property
    def is_first(self) -> bool:
        """Whether its names are those of Keras 1."""
        return any(map(FIRST.fullmatch, self.names.values()))


def modules(entries: Entries, config: KerasConfig) -> tuple[list[Module], list[str]]:
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
            if any(other in cells for other in _other_sides(at)):
                raise ValueError("is a cell of a stack in a Bidirectional, where each cell sees only one direction")
            found = described(at, directions[0].is_vars, config)
            if found is None and facts.kind == "rnn" and directions[0].is_first:
                continue  # a layer of one's own, of attention perhaps, has such arrays, too
            made.append(_module(at, directions, facts, found, config=config))
            if found is None and made[-1].layout != "keras.cudnn":  # which says its activations, and asks the rest
                silent.append(at)
        except ValueError as error:
            made.append(Module(at, _layout(directions, False), tensors=_tensors(directions), refused=str(error)))
            notes.append(f"recurrent layer {at!r:.200} {error}; it is not converted")
    if silent:
        names = some(silent, 5)
        notes.append(f"no configuration says the activations of {names}{_older(config)}")
    return made, notes


def _gates(config: KerasConfig) -> tuple[str, ...]:
    """The possible default activations of the gates in that version; empty if they are sigmoids."""
    if config.version[:1] == "1" or config.version[:4] in ("2.0.", "2.1.", "2.2."):
        return SIGMOIDS if _is_either(config) else SIGMOIDS[1:]
    return ()


def _is_either(config: KerasConfig) -> bool:
    """Whether a version was written both by programs whose gates are hard sigmoids and by some whose are not."""
    return config.version[:4] == "2.2." and config.version.endswith("-tf")


def _older(config: KerasConfig) -> str:
    """A warning where the version has another usual activation than today's."""
    if not _gates(config):
        return ""
    if _is_either(config):
        return (
            f"; Keras {config.version} is written by TensorFlow 1, where that of the gates is hard_sigmoid by default, "
            "and by TensorFlow 2.0 and 2.1, where it is sigmoid"
        )
    return f"; in Keras {config.version} that of the gates is hard_sigmoid by default"


def _cells(entries: Entries) -> Iterator[KerasCell]:
    """Groups of weights that are called as those of a recurrent layer."""
    groups: dict[tuple[str, bool], dict[str, str]] = {}
    for name, entry in entries.items():
        if entry.role != "model" or not isinstance(entry.value, View):
            continue
        match = VARS.fullmatch(name) or NAMED.fullmatch(name) or FIRST.fullmatch(name)
        if match:
            part, is_vars = match["part"], match.re is VARS
            label = PARTS[int(part)] if is_vars else JOINED.get(part, part)
            home = match["home"] + match["stack"] if is_vars else match["home"] or ""
            groups.setdefault((home, is_vars), {})[label] = name
    gated = [{f"{part}_{gate}" for part in "WUb" for gate in gates} for gates in GATES]
    whole = ({"kernel", "recurrent_kernel"}, *gated)
    groups = {key: names for key, names in groups.items() if any(some <= names.keys() for some in whole)}
    shared = Counter(_home(home, is_vars) for home, is_vars in groups)
    for (home, is_vars), names in groups.items():
        own = {f"cell/vars/{PARTS.index(p)}" if is_vars else p: names[p] for p in PARTS if p in names}
        own = own or omit(names, PARTS)
        views = {label: value for label, name in own.items() if isinstance(value := entries[name].value, View)}
        shapes = tuple(view.shape for view in views.values())
        if len(own) > len(PARTS):
            sides = [[view.shape for label, view in views.items() if label[0] == part] for part in JOINED]
            if any(len(set(alike)) > 1 or not alike[0] for alike in sides):
                continue
            shapes = tuple((*alike[0][:-1], alike[0][-1] * len(alike)) for alike in sides)
        layer = _home(home, is_vars)
        yield KerasCell(layer if shared[layer] == 1 else home, own, shapes, is_vars)


def _home(home: str, is_vars: bool) -> str:
    """The group of the layer of a cell; for a cell of a stack, the group of the cell itself."""
    return re.sub("(?<!/cells)/cell$", "", home) if is_vars else CELL.sub("", home) or home


def _other_sides(home: str) -> Iterator[str]:
    """The groups that would be the same cell of the other direction, where a stack of cells runs in both."""
    path = home.split("/")
    for k, part in enumerate(path[:-1]):
        side, mark, rest = part.partition("_")
        if side in SIDES:
            yield "/".join([*path[:k], f"{SIDES[side]}{mark}{rest}", *path[k + 1 :]])


def _pairs(cells: Mapping[str, KerasCell]) -> Iterator[tuple[str, tuple[KerasCell, ...]]]:
    """(group, directions) of each layer; the directions of a Bidirectional stand side by side in one group.

    A backward layer that was given on its own has another name than the forward one, and in Keras 3 no side in it.
    """
    groups = grouped((home.rpartition("/")[0], home) for home in cells)
    seconds: dict[str, str] = {}
    for parent, homes in groups.items():
        for home in homes:
            side, _, rest = home.removeprefix(parent).lstrip("/").partition("_")
            same = f"{parent}/backward_{rest}".lstrip("/")
            others = [same] if same in cells else [other for other in homes if other != home]
            if side == "forward" and len(others) == 1:
                seconds[home] = others[0]
    for home, cell in cells.items():
        if home in seconds:
            yield home.rpartition("/")[0], (cell, cells[seconds[home]])
        elif home not in seconds.values():
            yield home, (cell,)


def shapes_prove(shapes: tuple[Shape, ...]) -> Proven | None:
    """The facts that kernel, recurrent kernel and bias show; None if they are not a recurrent layer's.

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


def _module(
    at: str, cells: tuple[KerasCell, ...], proven: Proven, found: Described | None, *, config: KerasConfig
) -> Module:
    words = [proven.kind, f"input={proven.input}", f"hidden={proven.hidden}"]
    if len(cells) == 2:
        words.append("bidirectional")
    if not proven.bias:
        words.append("bias=no")
    if proven.reset:
        words.append(f"reset={proven.reset}")
    if found is not None:
        words += spec_words(found, proven, len(cells), config)
    is_cudnn = proven.is_cudnn or (found is not None and found.is_cudnn)
    layout = _layout(cells, is_cudnn)
    open_ = not is_cudnn and proven.kind != "rnn" and not any(word.startswith("gate_activation") for word in words)
    gates = _gates(config) or SIGMOIDS * cells[0].is_first
    return Module(
        at,
        layout,
        " ".join(words),
        _tensors(cells),
        source=f"{config.source}: {found.outer.class_name} {found.outer.name!r}" if found else "names and shapes",
        unsure=gates if open_ and layout != "keras.gates" else (),  # that layout asks itself
    )


def _layout(cells: tuple[KerasCell, ...], is_cudnn: bool) -> str:
    if len(cells[0].names) > len(PARTS):
        return "keras.gates"
    return "keras.vars" if cells[0].is_vars else "keras.cudnn" if is_cudnn else "keras"


def _tensors(cells: tuple[KerasCell, ...]) -> dict[str, str]:
    labels = ("forward_layer/", "backward_layer/") if len(cells) == 2 else ("",)
    return {label + own: name for label, cell in zip(labels, cells, strict=True) for own, name in cell.names.items()}
