"""Inputs of a recurrent ONNX node other than weights: sequence lengths and initial states.

Usually both come with the data.  If the model stores them, they are part of its function, and no layout has a place for
them.  Their few bytes are read; no other tensor data is read when a model is described.

Source: docs/Operators.md of onnx, LSTM: X (steps, batch, input), or (batch, steps, input) with layout=1; sequence_lens
(batch); onnx/onnx.proto, ValueInfoProto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramtool.formats.onnx import proto
from paramtool.formats.onnx._tensor import Found, OnnxTensor
from paramtool.formats.protobuf import Message, Reader, Span
from paramtool.model.storage import ByteRange

MAX_NBYTES = 1 << 20
"""The largest stored tensor whose numbers are read."""
SPREADING = {"Expand", "Tile", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Slice", "Cast"}
"""Operators whose first output only has numbers of the first input."""
Sizes = Mapping[str, tuple[int | None, ...]]
"""{name of a value in a graph: its shape}; None for a size that is not fixed."""


def sizes(reader: Reader, graph: Message) -> dict[str, tuple[int | None, ...]]:
    """The shapes that a graph declares for its inputs and for values inside it."""
    found: dict[str, tuple[int | None, ...]] = {}
    for span in (*graph.get("input", ()), *graph.get("value_info", ())):
        info = reader.message(span, proto.VALUE_INFO)
        inner = info
        for step, fields in (("type", proto.TYPE), ("tensor_type", proto.TENSOR_TYPE), ("shape", proto.SHAPE)):
            inner = reader.message(inner[step][0], fields) if step in inner else {}
        dims = [reader.message(dim, proto.DIMENSION) for dim in inner.get("dim", ())]
        if dims:
            name = reader.text(info, "name")
            found[name] = tuple(reader.number(dim, "dim_value") if "dim_value" in dim else None for dim in dims)
    return found


def name_of(reader: Reader, info: Span) -> str:
    """The name of an input or an output of a graph."""
    return reader.text(reader.message(info, proto.VALUE_INFO), "name")


SAID = ("PARAMETER", "BUFFER")
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
"""The key under which torch's exporter says what a value of the graph is in the model (torch 2.13,
torch/onnx/_internal/exporter/_core.py; the words are those of torch.export.graph_signature.InputKind)."""


def said_parameters(reader: Reader, graph: Message) -> Iterator[str]:
    """The values of a graph that the exporter itself calls parameters or buffers of the model."""
    for span in (*graph.get("value_info", ()), *graph.get("input", ())):
        info = reader.message(span, proto.VALUE_INFO)
        for place in info.get("metadata_props", ()):
            prop = reader.message(place, proto.ENTRY)
            if reader.text(prop, "key") == KIND and reader.text(prop, "value") in SAID:
                yield reader.text(info, "name")


def content(reader: Reader, stored: Found | object) -> bytes | None:
    """The bytes of a small tensor that is stored in the model file itself; None for other tensors."""
    if not isinstance(stored, OnnxTensor) or stored.packed:
        return None
    place = stored.backing
    if not isinstance(place, ByteRange):
        return place.data
    if place.file != reader.where or place.nbytes > MAX_NBYTES:
        return None
    return bytes(reader.data[place.start : place.stop])


def refuse_lengths(name: str, data: bytes | None, steps: int | None) -> None:
    """ValueError unless every stored sequence length (int32) is the full length of X."""
    lengths = (
        [int.from_bytes(data[k : k + 4], "little", signed=True) for k in range(0, len(data or b""), 4)] if data else []
    )
    if lengths and set(lengths) == {steps}:
        return
    shown = ", ".join(map(str, lengths[:8])) + (", ..." if len(lengths) > 8 else "")
    steps_of = "of an unknown number of steps" if steps is None else f"of {steps} steps"
    raise ValueError(
        f"has the stored sequence_lens {name!r:.200}{f' ({shown})' if shown else ''} and an X {steps_of}: "
        "no layout has a place for them; if each is the full length of X, remove them from the model"
    )
