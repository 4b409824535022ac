"""Write ONNX: a model of recurrent networks, with the weights inside it or in a file beside it.

    NAME.onnx        ir_version, producer_name, the graph (nodes, initializers, inputs, outputs), opset, metadata
    NAME.onnx.data   the weights, if the model would have more bytes than protobuf allows for one message

The metadata has one text of ours, `paramtool.networks`: which nodes are the layers of one network, as JSON.  The reader
proves it by the nodes.

Source: onnx/onnx.proto (onnx 1.23); docs/ExternalData.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from paramtool.formats.onnx import proto
from paramtool.formats.onnx._rnn import ACTIVATIONS, INPUTS, STATES, WEIGHTS
from paramtool.formats.output import OutputFile, Segment, joined, length
from paramtool.formats.protobuf import BYTES, FIXED32, VARINT
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Target

IR_VERSION = 7
"""That of opset 14 (docs/Versioning.md)."""
OPSET = 14
MAX_MODEL_NBYTES = (1 << 31) - 1
"""The largest message that protobuf reads."""
DATA_SUFFIX = ".data"
"""The file beside a model is called as the model, with this."""
DATA_ALIGN = 4096
"""The data of a tensor begins at a multiple of this many bytes, so that it can be mapped (docs/ExternalData.md)."""
CODE_OF = {name: code for code, name in proto.TYPES.items()}
"""{dtype: TensorProto.DataType}"""
COMPUTED = ("float16", "float32", "float64")
"""The types of LSTM, GRU and RNN in opset 14."""


def is_external(targets: Iterable[Target]) -> bool:
    """Whether so much data needs a file beside the model."""
    return sum(target.nbytes + ROOM for target in targets) + ROOM > MAX_MODEL_NBYTES


ROOM = 4096
"""More than the bytes of a tensor's or a network's own description, unless its name is long."""


def lay_out(
    networks: Sequence[RecurrentNetwork],
    stored: Mapping[str, Target],
    name: str = "",
) -> tuple[OutputFile, ...]:
    """A model whose initializers are {name: what stores it}, and before it the file with its data if it has one.

    `name` is what the model's file is called, if its data is to go into a file beside it, in which names with one
    target share their range.  Empty: the data is inside.
    """
    location = name + DATA_SUFFIX if name else ""
    beside, places = data({one.name: (one,) for one in stored.values()}) if location else ((), {})
    initializers: list[Segment] = []
    for own, target in stored.items():
        facts = _facts(own, target.dtype.name, target.shape)
        if location:
            initializers.append(message(5, *facts, *external(location, places[target.name], target.nbytes)))
        else:
            initializers += nested(5, (*facts, opening(9, target.nbytes), target))
    defaults = [_default(one, state) for one in networks for state in one.given]
    content: tuple[Segment, ...] = (
        *map(nodes, networks),
        text(2, "networks"),
        *initializers,
        *defaults,
        *map(inputs, networks),
        *map(outputs, networks),
    )
    model = joined(
        (
            whole(1, IR_VERSION),
            text(2, "paramtool"),
            *nested(7, content),
            message(8, text(1, ""), whole(2, OPSET)),
            message(14, text(1, proto.NETWORKS), text(2, _said(networks))),
        )
    )
    return (OutputFile(location, beside), OutputFile(name, model)) if location else (OutputFile("", model),)


def _facts(name: str, dtype: str, shape: Sequence[int]) -> list[bytes]:
    """The fields of a TensorProto apart from its data."""
    return [*(whole(1, size) for size in shape), whole(2, CODE_OF[dtype]), text(8, name)]


def external(location: str, start: int, nbytes: int) -> list[bytes]:
    """The fields of a TensorProto whose data is in another file."""
    entries = {"location": location, "offset": str(start), "length": str(nbytes)}
    made = [message(13, text(1, key), text(2, value)) for key, value in entries.items()]
    return [*made, whole(14, proto.EXTERNAL)]


def data(parts: Mapping[str, Sequence[Segment]]) -> tuple[tuple[Segment, ...], dict[str, int]]:
    """The file with the data: some parts, each at a multiple of `DATA_ALIGN`, and where each begins."""
    segments: list[Segment] = []
    places: dict[str, int] = {}
    at = 0
    for name, part in parts.items():
        places[name] = at + -at % DATA_ALIGN
        segments += [bytes(places[name] - at), *part]
        at = places[name] + length(part)
    return joined(segments), places


def _default(one: RecurrentNetwork, name: str) -> bytes:
    """An initial state of zeros for any batch, which the caller can replace."""
    shape = (len(one.weights) * one.directions, 1, one.hidden)
    dtype = proto.TYPES[one.type]
    return message(5, *_facts(one.prefix + name, dtype, shape), message(9, bytes(DTYPES[dtype].nbytes(prod(shape)))))


def _said(networks: Sequence[RecurrentNetwork]) -> str:
    """What the metadata says: {module: its nodes, how it merges directions, and inputs that have a default}."""
    said = {}
    for one in networks:
        facts: dict[str, object] = {"nodes": one.nodes(), "states": [one.prefix + name for name in one.given]}
        said[one.at] = facts | ({"merge": one.merge} if one.merge != "concat" else {})
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


# --- The graph of recurrent networks: for each of them its inputs, its nodes and its outputs, as ONNX' messages -------
#
#     X (steps, batch, input) ---> LSTM ---> Transpose, Reshape ---> LSTM ---> Transpose, Reshape ---> Y
#     initial_h ---> Expand, Split -^                               -^    `---> Concat ---> Y_h
#
# Everything is as torch.nn.LSTM has it with batch_first=False: Y is (steps, batch, directions * hidden), initial_h and
# Y_h are (layers * directions, batch, hidden), layer by layer.  The initial states are zeros unless the caller gives
# others: they are inputs with a value of batch size 1, which is spread over the batch.
#
# Opset 14 has every operator in a form that onnxruntime 1.7 and all later versions run.  Shapes are attributes of
# Constant nodes, so that the weights alone are tensors of the file.
#
# Source: docs/Operators.md of onnx 1.23, versions of opset 14; onnx/onnx.proto for the numbers of fields.


OPERATORS = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
FUNCTIONS = {word: (name, numbers) for name, (word, numbers) in ACTIVATIONS.items()}
LINEAR = ("affine", (1.0, 0.0))
"""ONNX has no linear activation; its Affine with these numbers is one."""
REDUCE = {"sum": "ReduceSum", "ave": "ReduceMean", "mul": "ReduceProd"}
"""The operator by which the outputs of two directions are merged."""


class RecurrentNetwork(NamedTuple):
    """A recurrent network whose weights are initializers."""

    at: str
    """Its module, of which everything in the graph has its name."""
    kind: str
    input: int
    hidden: int
    type: int
    """TensorProto.DataType of its weights, and so of all that it computes."""
    weights: Sequence[Mapping[str, str]]
    """For each layer {input of the node: name of the initializer}, with initial states of batch size 1."""
    direction: str = "forward"
    """`forward`, `reverse` or `bidirectional`."""
    activations: Sequence[tuple[str, Sequence[float]]] = ()
    """(word of a spec, its numbers) of one direction, if they are not the defaults."""
    clip: float = 0.0
    coupled: bool = False
    reset_after: bool = False
    merge: str = "concat"

    @property
    def prefix(self) -> str:
        """What the names of its tensors begin with."""
        return f"{self.at}." if self.at else ""

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.direction == "bidirectional" else 1

    @property
    def states(self) -> tuple[str, ...]:
        """The inputs for initial states that a node of its kind has."""
        return STATES if self.kind == "lstm" else STATES[:1]

    @property
    def given(self) -> tuple[str, ...]:
        """The initial states that are inputs of the graph: those that it does not store."""
        return tuple(name for name in self.states if name not in self.weights[0])

    def nodes(self) -> tuple[str, ...]:
        """The names of its recurrent nodes, layer by layer."""
        if len(self.weights) == 1:
            return (self.at or self.kind,)
        return tuple(f"{self.prefix}layer{k}" for k in range(len(self.weights)))


def node(operator: str, inputs: Iterable[str], outputs: Iterable[str], name: str = "", **attributes: object) -> bytes:
    """A field of a GraphProto: a node."""
    parts = [text(1, one) for one in inputs]
    parts += [text(2, one) for one in outputs]
    parts += [text(3, name)] * bool(name)
    parts += [text(4, operator)]
    parts += [message(5, _attribute(key, value)) for key, value in attributes.items()]
    return message(1, *parts)


def _attribute(name: str, value: object) -> bytes:
    """The fields of an AttributeProto: a number or a text, or a list of them."""
    values, more = (value, LISTS) if isinstance(value, list) else ([value], 0)
    write, number, kind = ATTRIBUTES[type(values[0])]
    return text(1, name) + b"".join(write(number + more, one) for one in values) + whole(20, kind + more)


def value_info(number: int, name: str, type: int, shape: Sequence[int | str]) -> bytes:
    """A field of a GraphProto: an input or an output, of which sizes can be names."""
    sizes = [message(1, whole(1, size) if isinstance(size, int) else text(2, size)) for size in shape]
    tensor = message(1, whole(1, type), message(2, *sizes))
    return message(number, text(1, name), message(2, tensor))


def nodes(one: RecurrentNetwork) -> bytes:
    """The nodes of a network, in the order in which they run."""
    at, layers = one.prefix, len(one.weights)
    made = [_constant(f"{at}zero_zero_rest", [0, 0, -1])]
    if any(one.states):
        made += [
            node("Shape", [f"{at}X"], [f"{at}shape"]),
            _constant(f"{at}axis", [1]),
            node("Gather", [f"{at}shape", f"{at}axis"], [f"{at}batch"], axis=0),
            _constant(f"{at}one", [1]),
            node("Concat", [f"{at}one", f"{at}batch", f"{at}one"], [f"{at}of_batch"], axis=0),
        ]
    for name in one.given:
        made.append(node("Expand", [f"{at}{name}", f"{at}of_batch"], [f"{at}{name}.all"]))
        parts = [f"{at}{name}.{k}" for k in range(layers)]
        made += [node("Split", [f"{at}{name}.all"], parts, axis=0)] if layers > 1 else []
    x = f"{at}X"
    for k, weights in enumerate(one.weights):
        made += _layer(one, k, weights, x)
        x = f"{at}Y" if k == layers - 1 else f"{at}Y.{k}"
    for name in _ends(one) if layers > 1 else ():
        made.append(node("Concat", [f"{at}{name}.{k}" for k in range(layers)], [f"{at}{name}"], axis=0))
    return b"".join(made)


def _constant(name: str, numbers: list[int]) -> bytes:
    return node("Constant", [], [name], value_ints=numbers)


def _ends(one: RecurrentNetwork) -> tuple[str, ...]:
    """The outputs that hold the last states."""
    return ("Y_h", "Y_c") if one.kind == "lstm" else ("Y_h",)


def _layer(one: RecurrentNetwork, k: int, weights: Mapping[str, str], x: str) -> list[bytes]:
    """The nodes of one layer."""
    at, layers, made = one.prefix, len(one.weights), []
    taken = {"X": x, **{name: weights[name] for name in WEIGHTS if name in weights}}
    for name in one.states:
        if name in weights:
            made.append(node("Expand", [weights[name], f"{at}of_batch"], [f"{at}{name}.{k}.all"]))
            taken[name] = f"{at}{name}.{k}.all"
        else:
            taken[name] = f"{at}{name}.{k}" if layers > 1 else f"{at}{name}.all"
    inputs = [taken.get(name, "") for name in INPUTS]
    while not inputs[-1]:
        inputs.pop()
    end = f".{k}" if layers > 1 else ""
    raw, merged = f"{at}Y.{k}.steps_directions", f"{at}Y" if k == layers - 1 else f"{at}Y.{k}"
    outputs = [raw, *(f"{at}{name}{end}" for name in _ends(one))]
    made.append(node(OPERATORS[one.kind], inputs, outputs, one.nodes()[k], **_attributes(one)))
    if one.merge in REDUCE:
        return [*made, *_reduced(one, raw, merged)]
    turned = f"{at}Y.{k}.steps_batch" if one.merge == "concat" else merged
    made.append(node("Transpose", [raw], [turned], perm=[0, 2, 1, 3]))
    if one.merge == "concat":
        made.append(node("Reshape", [turned, f"{at}zero_zero_rest"], [merged]))
    return made


def _reduced(one: RecurrentNetwork, raw: str, merged: str) -> list[bytes]:
    """The nodes that merge the outputs of two directions; the axis is an input of ReduceSum, and else an attribute."""
    if one.merge == "sum":
        return [_constant(f"{raw}.axis", [1]), node("ReduceSum", [raw, f"{raw}.axis"], [merged], keepdims=0)]
    return [node(REDUCE[one.merge], [raw], [merged], axes=[1], keepdims=0)]


def _attributes(one: RecurrentNetwork) -> dict[str, object]:
    """The attributes of its nodes; those that have their defaults are left out."""
    found: dict[str, object] = {"hidden_size": one.hidden, "direction": one.direction}
    if one.activations:
        each = list(one.activations) * one.directions
        names, alphas, betas = list[str](), list[float](), list[float]()
        for word, given in each:
            word, given = LINEAR if word == "linear" else (word, given)
            name, usual = FUNCTIONS[word]
            names.append(name)
            numbers = [number for number in (*given, *usual[len(given) :]) if number is not None]
            alphas += numbers[:1]
            betas += numbers[1:2]
        found["activations"] = names
        found |= {"activation_alpha": alphas} if alphas else {}
        found |= {"activation_beta": betas} if betas else {}
    if one.clip:
        found["clip"] = float(one.clip)
    if one.coupled:
        found["input_forget"] = 1
    if one.kind == "gru":
        found["linear_before_reset"] = int(one.reset_after)
    return found


def inputs(one: RecurrentNetwork) -> bytes:
    """The inputs of a network."""
    at, layers = one.prefix, len(one.weights)
    made = [value_info(11, f"{at}X", one.type, [f"{at}steps", f"{at}batch", one.input])]
    rows = layers * one.directions
    made += [value_info(11, at + name, one.type, [rows, f"{at}batch_or_1", one.hidden]) for name in one.given]
    return b"".join(made)


def outputs(one: RecurrentNetwork) -> bytes:
    """The outputs of a network."""
    at, layers = one.prefix, len(one.weights)
    steps, batch = f"{at}steps", f"{at}batch"
    width = one.hidden * (one.directions if one.merge == "concat" else 1)
    shape: list[int | str] = [steps, batch, width]
    if one.merge == "none":
        shape = [steps, batch, one.directions, one.hidden]
    made = [value_info(12, f"{at}Y", one.type, shape)]
    rows = layers * one.directions
    made += [value_info(12, at + name, one.type, [rows, batch, one.hidden]) for name in _ends(one)]
    return b"".join(made)


# --- Protobuf messages as segments: literal bytes, and tensors that are copied when the file is written ---------------
#
# A message needs its length before its content, and a tensor knows its length, so no content is needed here.
#
# Source: protobuf.dev, "Encoding"; the wire types are those of `_protobuf`.


def varint(value: int) -> bytes:
    """A number as a varint; a negative one as the 64 bits of an int64.

    >>> varint(1), varint(300), len(varint(-1))
    (b'\\x01', b'\\xac\\x02', 10)
    """
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def tag(number: int, wire: int) -> bytes:
    """The bytes before the content of a field."""
    return varint(number << 3 | wire)


def whole(number: int, value: int) -> bytes:
    """A field that is an integer."""
    return tag(number, VARINT) + varint(value)


def real(number: int, value: float) -> bytes:
    """A field that is a float32."""
    return tag(number, FIXED32) + struct.pack("<f", value)


def text(number: int, value: str) -> bytes:
    """A field that is a string."""
    return message(number, value.encode())


def message(number: int, *parts: bytes) -> bytes:
    """A field that is a message of these fields, or bytes."""
    return b"".join((opening(number, sum(map(len, parts))), *parts))


def opening(number: int, nbytes: int) -> bytes:
    """The bytes before the content of a field of `nbytes` bytes."""
    return tag(number, BYTES) + varint(nbytes)


def nested(number: int, parts: Iterable[Segment]) -> tuple[Segment, ...]:
    """A field that is a message with tensors in it."""
    inside = tuple(parts)
    return (opening(number, length(inside)), *inside)


ATTRIBUTES: Mapping[type, tuple[Callable[[int, Any], bytes], int, int]] = {
    float: (real, 2, 1), int: (whole, 3, 2), str: (text, 4, 3),
}  # fmt: skip
"""{type: (its writer, the number of its field in an AttributeProto, AttributeProto.AttributeType)}"""
LISTS = 5
"""What both numbers are more for a list."""
