"""The network of an LSTM, GRU or RNN node of ONNX.

A node is one layer in one or both directions: W (D, G*H, input), R (D, G*H, H), B (D, 2*G*H) with the input biases
before the recurrent ones, P (D, 3*H).

Source: docs/Operators.md of onnx, LSTM, GRU and RNN; for how `activation_alpha` and `activation_beta` are distributed
over the activations, onnxruntime (core/providers/cpu/rnn/rnn_helpers.cc).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from paramtool.errors import plural
from paramtool.formats.protobuf import Message, Reader
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Module
from paramtool.model.view import Shapes

INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
"""The inputs of an LSTM; GRU and RNN have the first six."""
WEIGHTS = ("W", "R", "B", "P")
STATES = ("initial_h", "initial_c")
"""The initial states; (D, batch, H)."""
DOMAINS = ("", "ai.onnx")
KINDS = {"LSTM": ("lstm", 4), "GRU": ("gru", 3), "RNN": ("rnn", 1)}
"""{operator: (kind, gates)}."""
DIRECTIONS = {"forward": (1, ""), "reverse": (1, "backward"), "bidirectional": (2, "bidirectional")}
USUAL = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}
"""The default activations: of the gates, of the candidate, of the output."""
ACTIVATIONS: dict[str, tuple[str, tuple[float | None, ...]]] = {
    "Sigmoid": ("sigmoid", ()),
    "Tanh": ("tanh", ()),
    "Relu": ("relu", ()),
    "HardSigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "LeakyRelu": ("leaky_relu", (0.01,)),
    "ThresholdedRelu": ("thresholded_relu", (1.0,)),
    "Elu": ("elu", (1.0,)),
    "Softsign": ("softsign", ()),
    "Softplus": ("softplus", ()),
    "Affine": ("affine", (None, None)),
    "ScaledTanh": ("scaled_tanh", (None, None)),
}
"""{name: (word of a spec, default alpha and beta)}; the numbers are from the operators' documentation."""


@frozen
class Node:
    """A recurrent node, with the parts that are used."""

    reader: Reader
    operator: str
    label: str
    """Its name, or the name of its first output."""
    inputs: tuple[str, ...]
    attributes: Mapping[str, Message]
    output: str = ""
    """Its first output, Y."""

    @property
    def source(self) -> str:
        """The name of the node as the source of a fact."""
        return f"{self.operator} node {self.label!r}"

    def given(self, name: str) -> str:
        """The value that is connected to an input; empty if none is."""
        place = INPUTS.index(name)
        return self.inputs[place] if place < len(self.inputs) and (place < 6 or self.operator == "LSTM") else ""

    def whole(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return self.reader.number(self.attributes[name], "i") if name in self.attributes else default

    def word(self, name: str, default: str) -> str:
        """A string attribute."""
        return self.reader.text(self.attributes[name], "s") if name in self.attributes else default

    def words(self, name: str) -> list[str]:
        """An attribute that is a list of strings."""
        return self.reader.texts(self.attributes.get(name, {}), "strings")

    def numbers(self, name: str, field: str = "floats") -> list[float]:
        """float32 numbers; ValueError if they are truncated."""
        data = b"".join(self.reader.content(span) for span in self.attributes.get(name, {}).get(field, ()))
        if len(data) % 4:
            raise ValueError(f"{name} has {len(data)} bytes; expected a multiple of 4, for float32")
        return list(struct.unpack(f"<{len(data) // 4}f", data))


def describe(node: Node, at: str, tensors: Mapping[str, str], shapes: Shapes) -> Module:
    """The module of a recurrent node; ValueError says what a spec cannot express, or what is inconsistent.

    `tensors` maps those of W, R, B and P that are stored to their names in the file; `shapes` has their shapes.
    """
    kind, gates = KINDS[node.operator]
    count, direction = DIRECTIONS.get(node.word("direction", "forward"), (0, ""))
    if not count:
        raise ValueError(f"has the direction {node.word('direction', '')!r:.60}")
    hidden = node.whole("hidden_size") or (shapes["R"][-1] if shapes.get("R") else 0)
    # ValueError if the stored tensors have wrong shapes; in `expected`, None means any size.
    expected: dict[str, tuple[int | None, ...]] = {
        "W": (count, gates * hidden, None),
        "R": (count, gates * hidden, hidden),
        "B": (count, 2 * gates * hidden),
        "P": (count, 3 * hidden),
        **dict.fromkeys(STATES, (count, 1, hidden)),
    }
    for name, shape in shapes.items():
        want = expected[name]
        if len(shape) != len(want) or any(b not in (None, a) for a, b in zip(shape, want, strict=True)):
            text = ", ".join("any" if size is None else str(size) for size in want)
            raise ValueError(f"has hidden_size {hidden}, and {name} of shape {list(shape)}; expected [{text}]")
    words = [kind]
    if "W" in shapes:
        words.append(f"input={shapes['W'][2]}")
    if hidden:
        words.append(f"hidden={hidden}")
    words += [direction] * (direction == "bidirectional")
    words += ["bias=no"] * (not node.given("B"))
    if kind == "gru":
        words.append(f"reset={'after' if node.whole('linear_before_reset') else 'before'}")
    words += _activations(node, kind, count)
    words += [f"clip={shortest(clip)}" for clip in node.numbers("clip", "f") if clip]
    words += ["peephole"] * bool(node.given("P"))
    words += ["coupled"] * bool(kind == "lstm" and node.whole("input_forget"))
    words += ["initial_state"] * any(name in tensors for name in STATES)
    words += [direction] * (direction == "backward")
    return Module(at, "onnx", " ".join(words), dict(tensors), source=node.source)


def _activations(node: Node, kind: str, directions: int) -> Iterator[str]:
    """The words of a spec for activations that are not the defaults."""
    usual = USUAL[kind] * directions
    names = node.words("activations") or usual
    if len(names) != len(usual):
        raise ValueError(f"has {plural(len(names), 'activation')}; expected {len(usual)}")
    alphas, betas = iter(node.numbers("activation_alpha")), iter(node.numbers("activation_beta"))
    made, known = [], {name.lower(): row for name, row in ACTIVATIONS.items()}
    for name in names:
        if name.lower() not in known:
            raise ValueError(f"has the activation {name!r:.60}, which a spec cannot express")
        word, usual_numbers = known[name.lower()]
        given = [next(values, usual_) for values, usual_ in zip((alphas, betas), usual_numbers, strict=False)]
        numbers = [number for number in given if number is not None]
        if len(numbers) < len(given):
            raise ValueError(f"has the activation {name!r:.60} without its numbers, which have no defaults")
        if any(number < 0 for number in numbers):
            raise ValueError(f"has the activation {name} with {numbers[0]:g}, which a spec cannot express")
        if (word, numbers) == ("affine", [1.0, 0.0]):
            word, numbers = "linear", []
        made.append(word + (f"({','.join(map(shortest, numbers))})" if numbers else ""))
    each = len(made) // directions
    first = made[:each]
    if made != first * directions or len(set(first[kind != "rnn" :])) != 1:
        raise ValueError(f"has different activations ({', '.join(made)}), which a spec cannot express")
    if kind == "rnn" or first[-1] != "tanh":
        yield f"activation={first[-1]}"
    if kind != "rnn" and first[0] != "sigmoid":
        yield f"gate_activation={first[0]}"


def shortest(value: float) -> str:
    """The shortest decimal that is this float32.

    >>> shortest(0.20000000298023224), shortest(0.1666666716337204), shortest(3.0)
    ('0.2', '0.16666667', '3.0')
    """
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == struct.pack("<f", value):
            break
    return str(float(text))
