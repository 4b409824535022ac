"""What describes a recurrent network apart from its weights: a kind, sizes, and facts that no tensor shows.

    lstm input=18 hidden=128 layers=2 bidirectional

A spec is written as such a string on the command line, in a file's record and in error messages.  A field that is not
given has its default, except if "" means unknown: the weights of a GRU do not show whether the reset gate is applied
before or after the recurrent product.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from paramtool.errors import UsageError
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape
from paramtool.package_data import package_data

GATES = {"lstm": "ifgo", "gru": "rzn", "rnn": "h"}
"""Gates in torch's letters and order: input, forget, candidate, output; reset, update, candidate; the one of an RNN."""
KINDS = {
    "W": "hidden in", "R": "hidden rec", "bW": "hidden", "bR": "hidden", "P": "proj hidden",
    "peep": "hidden", "h0": "rec", "c0": "hidden",
}  # fmt: skip
"""Kinds of cells and their axes.  y = W x + bW + R h + bR; the axes of a cell's own buffer, row by row."""
GATED = {"W", "R", "bW", "bR", "peep"}
"""Kinds of cells that belong to a gate; peepholes exist for the gates i, f and o only."""
ZEROABLE = {"bW", "bR", "peep", "h0", "c0"}
"""Kinds of cells that have no effect if they are zero: a network without them computes the same."""
WORDS = {"W": "input weights", "R": "recurrent weights", "bW": "input bias", "bR": "recurrent bias", "P": "projection",
         "peep": "peephole", "h0": "initial h", "c0": "initial c"}  # fmt: skip
MERGES = {"concat": "side by side", "sum": "added", "ave": "averaged", "mul": "multiplied", "none": "kept apart"}
"""How the outputs of two directions are merged: Keras' word, and what it means."""
USUAL_ACTIVATION = "tanh"
"""The activation of an LSTM and of a GRU."""
MAX_SIZE = 1 << 24
"""The largest size of one axis; larger numbers are typing errors."""


class Cell(NamedTuple):
    """The smallest part that layouts move: one gate of one kind in one direction of one layer."""

    kind: str
    layer: int = 0
    direction: int = 0
    gate: str = ""

    def __str__(self) -> str:
        where = f"layer {self.layer}{', reverse' if self.direction else ''}"
        return f"{WORDS.get(self.kind, self.kind)}{f' of gate {self.gate}' if self.gate else ''} ({where})"


@frozen
class Spec:
    """A recurrent network: cells of one kind, stacked in layers."""

    kind: str
    """`lstm`, `gru` or `rnn`."""
    input: int
    hidden: int
    layers: int = 1
    bidirectional: bool = False
    projection: int = 0
    """The width of h if it is projected, else 0."""
    bias: bool = True
    reset: str = ""
    """For a GRU, when the reset gate is applied: `after` the recurrent product (cuDNN, PyTorch), or `before` it
    (Keras 1, ONNX' default)."""
    activation: str = ""
    """For an RNN `tanh` or `relu`, empty for unknown; for the others empty for tanh."""
    gate_activation: str = "sigmoid"
    """`sigmoid`, or `hard_sigmoid(0.2,0.5)`: clip(0.2 x + 0.5, 0, 1)."""
    cell_clip: float = 0.0
    """The bound to which TensorFlow 1 clips an LSTM's cell state; 0 for none."""
    clip: float = 0.0
    """The bound to which ONNX clips the inputs of the activations; 0 for none."""
    peephole: bool = False
    initial_state: bool = False
    """Whether h0 and c0 were trained and are stored."""
    coupled: bool = False
    """Whether the forget gate is one minus the input gate."""
    backward: bool = False
    """Whether a network of one direction runs from the end to the beginning."""
    merge: str = "concat"
    """How the outputs of two directions are merged into the next layer's input, see `MERGES`."""

    def __post_init__(self) -> None:
        """UsageError if fields are invalid or contradict each other.  tanh, the usual activation, is stored as ""."""
        if self.kind not in GATES:
            raise UsageError(f"{self.kind!r} is not a kind of network; expected lstm, gru or rnn")
        for name in ("input", "hidden", "layers"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise UsageError(f"{name}={getattr(self, name)} is out of range; expected 1 to {MAX_SIZE}")
        if self.projection and (self.kind != "lstm" or not 0 < self.projection < self.hidden):
            raise UsageError(
                f"projection={self.projection} is invalid: only an LSTM has a projection, smaller than "
                f"hidden={self.hidden}"
            )
        if self.reset and (self.kind != "gru" or self.reset not in ("after", "before")):
            raise UsageError(f"reset={self.reset} is invalid: only a gru has it, as reset=after or reset=before")
        if self.kind != "lstm" and (self.peephole or self.coupled or self.cell_clip):
            raise UsageError(f"a {self.kind} cannot have peephole, coupled or cell_clip: only an lstm can")
        if self.backward and self.bidirectional:
            raise UsageError("backward and bidirectional exclude each other")
        if self.merge not in MERGES:
            raise UsageError(f"merge={self.merge} is invalid; expected one of {', '.join(MERGES)}")
        if self.merge != "concat" and not self.bidirectional:
            raise UsageError(f"merge={self.merge} is invalid: a network of one direction has nothing to merge")
        if self.merge == "none" and self.layers > 1:
            raise UsageError("merge=none is invalid for several layers: a layer takes one input, and would get two")
        if self.kind != "rnn" and self.activation == USUAL_ACTIVATION:
            object.__setattr__(self, "activation", "")

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.bidirectional else 1

    @property
    def gates(self) -> str:
        """The gates of the kind, in torch's order."""
        return GATES[self.kind]

    @property
    def recurrent(self) -> int:
        """The width of h."""
        return self.projection or self.hidden

    @property
    def output(self) -> int:
        """The width of a layer's output, which is the next layer's input."""
        return self.recurrent * (self.directions if self.merge == "concat" else 1)

    def has(self, fact: str) -> bool:
        """Whether a fact that no tensor shows applies to a network like this one, and has a usual value."""
        return {
            "activation": self.kind != "rnn",
            "gate_activation": self.kind != "rnn",
            "cell_clip": self.kind == "lstm",
            "merge": self.bidirectional,
        }.get(fact, True)

    def sizes(self, layer: int) -> dict[str, int]:
        """The length of each axis of a cell of that layer."""
        inside = self.input if layer == 0 else self.output
        return {"hidden": self.hidden, "in": inside, "rec": self.recurrent, "proj": self.projection}

    def shape(self, cell: Cell) -> Shape:
        """The shape of a cell's own buffer, row by row."""
        sizes = self.sizes(cell.layer)
        return tuple(sizes[axis] for axis in KINDS[cell.kind].split())

    def kinds(self) -> tuple[str, ...]:
        """The kinds of cells that the network has."""
        has = {
            "W": True, "R": True, "bW": self.bias, "bR": self.bias, "P": bool(self.projection), "peep": self.peephole,
            "h0": self.initial_state, "c0": self.initial_state and self.kind == "lstm",
        }  # fmt: skip
        return tuple(kind for kind in KINDS if has[kind])

    def gates_of(self, kind: str) -> str:
        """The gates for which a kind has cells: all, those with peepholes, or none."""
        return "ifo" if kind == "peep" else self.gates if kind in GATED else ""

    def cells(self) -> Iterator[Cell]:
        """Every cell of the network."""
        for layer in range(self.layers):
            for direction in range(self.directions):
                for kind in self.kinds():
                    for gate in self.gates_of(kind) or [""]:
                        yield Cell(kind, layer, direction, gate)

    def __str__(self) -> str:
        return text(self)


def text(spec: Spec, always: Iterable[str] = ()) -> str:
    """The string that `parse` reads.  Defaults are left out, except for the fields in `always`.

    >>> text(Spec("gru", 3, 4, bidirectional=True, bias=False))
    'gru input=3 hidden=4 bidirectional bias=no'
    """
    words = [spec.kind]
    for field in fields(spec)[1:]:
        value = getattr(spec, field.name)
        if field.name == "activation" and field.name in always:
            value = value or USUAL_ACTIVATION
        if field.name in ("input", "hidden", *always) or value != field.default:
            words.append(word(field.name, value))
    return " ".join(words)


def usual(fact: str) -> str:
    """The word for the usual value of a fact.

    >>> usual("backward"), usual("gate_activation"), usual("activation")
    ('backward=no', 'gate_activation=sigmoid', 'activation=tanh')
    """
    return word(fact, USUAL_ACTIVATION if fact == "activation" else _DEFAULTS[fact])


_DEFAULTS = {field.name: field.default for field in fields(Spec)}


def word(name: str, value: object) -> str:
    """The word of a spec for a value of a fact."""
    if isinstance(value, bool):
        return name if value else f"{name}=no"
    return f"{name}={value}"


Facts = Mapping[str, object]
"""Fields of a Spec that were given, by name; `kind` among them."""


def parse(text: str) -> dict[str, object]:
    """The fields that a spec string gives, in paramtool's words or another library's; UsageError names a wrong word.

    >>> parse("lstm hidden=4 bidirectional"), parse("LSTM hidden_size=4")
    ({'kind': 'lstm', 'hidden': 4, 'bidirectional': True}, {'kind': 'lstm', 'hidden': 4})
    """
    facts: dict[str, object] = {}
    for written in re.findall(r"[^\s(]+(?:\([^)]*\))?|\S+", text):
        for word in same(written):
            name, value = _fact(word, written)
            if name in facts and facts[name] != value:
                raise UsageError(f"{name} is given twice, with different values, in {text!r}")
            facts[name] = value
    return facts


def whole(facts: Facts) -> Facts:
    """The facts of a network; if they have the sizes, layers and directions that are not given get their defaults.

    >>> whole(parse("lstm input=3 hidden=4"))["layers"], whole(parse("lstm hidden=4"))
    (1, {'kind': 'lstm', 'hidden': 4})
    """
    return {"layers": 1, "bidirectional": False, **facts} if {"kind", "input", "hidden"} <= facts.keys() else facts


TYPES = {field.name: field.type for field in fields(Spec)}


def _fact(word: str, written: str) -> tuple[str, object]:
    """One word of a spec: a kind, a flag or `name=value`; errors quote it as it was `written`."""
    if word in GATES:
        return "kind", word
    name, equals, value = word.partition("=")
    kind = TYPES.get(name)
    if kind is None or name == "kind" or (not equals and kind != "bool"):
        known = {n: n if t == "bool" else f"{n}=..." for n, t in TYPES.items() if n != "kind"}
        raise UsageError(f"unknown word {written!r} in a spec", hint=near(written, known))
    try:
        return name, _value(str(kind), value, bool(equals))
    except ValueError:
        raise UsageError(f"{written!r}: expected {_EXPECTED[str(kind)]}") from None


_EXPECTED = {"bool": "yes or no", "int": "a whole number", "float": "a number", "str": "a word"}
_YES = {"": True, "yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def _value(kind: str, value: str, said: bool) -> object:
    if kind == "bool":
        if value.lower() not in _YES or (said and not value):
            raise ValueError
        return _YES[value.lower()]
    if kind == "int":
        if not re.fullmatch(r"\d{1,9}", value):
            raise ValueError
        return int(value)
    if kind == "float":
        number = float(value)
        if not 0 <= number < float("inf"):
            raise ValueError
        return number
    if not re.fullmatch(r"\w+(\([\d., ]+\))?", value):
        raise ValueError
    return value.replace(" ", "")


def merged(*sources: tuple[str, Facts]) -> dict[str, object]:
    """The facts of several sources together, each source with a name for errors; UsageError if two disagree."""
    facts: dict[str, object] = {}
    who: dict[str, str] = {}
    for source, said in sources:
        for name, value in said.items():
            if name in facts and facts[name] != value:
                raise UsageError(f"{who[name]} says {word(name, facts[name])}, {source} says {word(name, value)}")
            facts[name] = value
            who[name] = source
    return facts


# --- The names that other libraries use for the fields of a spec.  They are accepted as synonyms ---------------------
#
#     LSTM hidden_size=128 num_layers=2      lstm hidden=128 layers=2
#     rnn relu, rnn_relu, nonlinearity=relu  rnn activation=relu
#
# The names are those of the constructors' arguments: torch.nn.LSTM and RNN, keras.layers.LSTM and GRU,
# mxnet.gluon.rnn.LSTM and mx.sym.RNN, tf.nn.rnn_cell.LSTMCell, the ONNX operators, and cuDNN's descriptors.


@cache
def words() -> Mapping[str, Any]:
    """What other libraries call things, and what they store beside networks: `words.json`."""
    found: Mapping[str, Any] = json.loads(package_data("layouts", "words.json"))
    return found


SAME: Mapping[str, str] = words()["same"]
"""{another library's word in lower case, alone or with its value: the words of a spec that it means}."""
FIELDS = {other: own for own, others in words()["fields"].items() for other in others.split()}
"""{another library's word in lower case: the field of a spec}."""
KIND_FIELDS = words()["kind_fields"].split()
"""Words whose value is a kind of network, as in `mode=lstm`."""
NO_WEIGHTS = words()["no_weights"].split()
"""Arguments of constructors that do not change which weights a network has."""


def same(word: str) -> list[str]:
    """The words of a spec for one word of another library; the word itself if no other library uses it.

    >>> same("LSTM"), same("hidden_size=128"), same("rnn_relu"), same("linear_before_reset=1"), same("hidden=4")
    (['lstm'], ['hidden=128'], ['rnn', 'activation=relu'], ['reset=after'], ['hidden=4'])
    """
    name, equals, value = word.partition("=")
    small = _bare(name)
    said = _bare(value) if small in KIND_FIELDS else "" if equals else small
    if (found := SAME.get(said) or SAME.get(f"{small}={value.lower()}")) is not None:
        return found.split()
    return [f"{FIELDS[small]}{equals}{value}"] if small in FIELDS else [word]


def near(word: str, fields: dict[str, str]) -> str:
    """A hint for a wrong word: the nearest words of a spec, or all.  `fields` maps each field to how it is shown.

    >>> near("hiden=4", {"hidden": "hidden=...", "layers": "layers=..."})
    'did you mean hidden=...?'
    """
    from difflib import get_close_matches

    name = _bare(word.partition("=")[0])
    if name in NO_WEIGHTS:
        return f"leave it out: {name} does not change which weights a network has"
    known = {**{kind: kind for kind in GATES}, **fields}
    known |= {other: fields[own] for other, own in FIELDS.items() if own in fields}
    found = [known[one] for one in get_close_matches(name, known, 3, 0.75)]
    if name in known:
        found = [known[name]]
    if found:
        return f"did you mean {' or '.join(dict.fromkeys(found))}?"
    return f"write lstm, gru or rnn, then any of {', '.join(fields.values())}"


def _bare(name: str) -> str:
    """A word in lower case, without the module of a class name and the dashes of a flag.

    >>> _bare("torch.nn.LSTM"), _bare("--Hidden-Size")
    ('lstm', 'hidden_size')
    """
    return name.lower().rpartition(".")[2].lstrip("-").replace("-", "_")
