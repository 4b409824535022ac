"""Write ONNX: a model of recurrent networks, with the weights inside it or in a file beside it.

    NAME.onnx        ir_version, producer_name, the graph (nodes, initializers, inputs, outputs), opset, metadata
    NAME.onnx.data   the weights, if the model would have more bytes than protobuf allows for one message

The metadata has one text of ours, `paramtool.networks`: which nodes are the layers of one network, as JSON.  The reader
proves it by the nodes.

Source: onnx/onnx.proto (onnx 1.23); docs/ExternalData.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from paramtool.formats.onnx import _encode, graph, proto
from paramtool.formats.onnx.graph import RecurrentNetwork
from paramtool.formats.output import OutputFile, Segment
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
            initializers.append(_encode.message(5, *facts, *external(location, places[target.name], target.nbytes)))
        else:
            initializers += _encode.nested(5, (*facts, _encode.opening(9, target.nbytes), target))
    defaults = [_default(one, state) for one in networks for state in one.given]
    content: tuple[Segment, ...] = (
        *map(graph.nodes, networks),
        _encode.text(2, "networks"),
        *initializers,
        *defaults,
        *map(graph.inputs, networks),
        *map(graph.outputs, networks),
    )
    model = _encode.joined(
        (
            _encode.whole(1, IR_VERSION),
            _encode.text(2, "paramtool"),
            *_encode.nested(7, content),
            _encode.message(8, _encode.text(1, ""), _encode.whole(2, OPSET)),
            _encode.message(14, _encode.text(1, proto.NETWORKS), _encode.text(2, _said(networks))),
        )
    )
    return (OutputFile(location, beside), OutputFile(name, model)) if location else (OutputFile("", model),)


def _facts(name: str, dtype: str, shape: Sequence[int]) -> list[bytes]:
    """The fields of a TensorProto apart from its data."""
    return [*(_encode.whole(1, size) for size in shape), _encode.whole(2, CODE_OF[dtype]), _encode.text(8, name)]


def external(location: str, start: int, nbytes: int) -> list[bytes]:
    """The fields of a TensorProto whose data is in another file."""
    entries = {"location": location, "offset": str(start), "length": str(nbytes)}
    made = [_encode.message(13, _encode.text(1, key), _encode.text(2, value)) for key, value in entries.items()]
    return [*made, _encode.whole(14, proto.EXTERNAL)]


def data(parts: Mapping[str, Sequence[Segment]]) -> tuple[tuple[Segment, ...], dict[str, int]]:
    """The file with the data: some parts, each at a multiple of `DATA_ALIGN`, and where each begins."""
    segments: list[Segment] = []
    places: dict[str, int] = {}
    at = 0
    for name, part in parts.items():
        places[name] = at + -at % DATA_ALIGN
        segments += [bytes(places[name] - at), *part]
        at = places[name] + _encode.length(part)
    return _encode.joined(segments), places


def _default(one: RecurrentNetwork, name: str) -> bytes:
    """An initial state of zeros for any batch, which the caller can replace."""
    shape = (len(one.weights) * one.directions, 1, one.hidden)
    dtype = proto.TYPES[one.type]
    return _encode.message(
        5, *_facts(one.prefix + name, dtype, shape), _encode.message(9, bytes(DTYPES[dtype].nbytes(prod(shape))))
    )


def _said(networks: Sequence[RecurrentNetwork]) -> str:
    """What the metadata says: {module: its nodes, how it merges directions, and inputs that have a default}."""
    said = {}
    for one in networks:
        facts: dict[str, object] = {"nodes": one.nodes(), "states": [one.prefix + name for name in one.given]}
        said[one.at] = facts | ({"merge": one.merge} if one.merge != "concat" else {})
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))
