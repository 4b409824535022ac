"""Small ONNX models, made and read by the onnx package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx import TensorProto, external_data_helper, helper, numpy_helper

EXTERNAL = "weights.bin"


def array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as an array, bfloat16 too."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.contiguous().numpy()


def model(*initializers: TensorProto, nodes: tuple[onnx.NodeProto, ...] = (), **graph: Any) -> onnx.ModelProto:
    """A model that holds tensors, and nothing that could run."""
    made = helper.make_graph(list(nodes), "g", [], [], list(initializers), **graph)
    return helper.make_model(made, producer_name="tests", opset_imports=[helper.make_opsetid("", 20)])


def written(folder: Path, made: onnx.ModelProto, name: str = "model.onnx") -> Path:
    """The model as a file."""
    (folder / name).write_bytes(made.SerializeToString())
    return folder / name


def raw(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Every tensor in raw_data, as exporters write them; one of them in a Constant node."""
    protos = [numpy_helper.from_array(array(tensor), name) for name, tensor in tensors.items()]
    constant = helper.make_node("Constant", [], [protos[-1].name], name="c", value=protos[-1])
    return written(folder, model(*protos[:-1], nodes=(constant,)))


def typed(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Tensors in float_data and double_data, packed."""
    codes = {torch.float32: TensorProto.FLOAT, torch.float64: TensorProto.DOUBLE}
    chosen = {name: tensor for name, tensor in tensors.items() if tensor.dtype in codes}
    return written(
        folder,
        model(*(helper.make_tensor(n, codes[t.dtype], t.shape, t.flatten().tolist()) for n, t in chosen.items())),
    )


def external(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Tensors in a file beside the model, each on a page of 64 bytes; those of one storage share a range."""
    data = b""
    places: dict[tuple[int, tuple[int, ...]], int] = {}
    protos = []
    for name, tensor in tensors.items():
        key = tensor.data_ptr(), tuple(tensor.shape)
        held = array(tensor)
        if key not in places or not held.nbytes:
            data += bytes(-len(data) % 64)
            places[key] = len(data)
            data += held.tobytes()
        proto = numpy_helper.from_array(held, name)
        external_data_helper.set_external_data(proto, EXTERNAL, offset=places[key], length=held.nbytes)
        proto.ClearField("raw_data")
        proto.data_location = TensorProto.EXTERNAL
        protos.append(proto)
    (folder / EXTERNAL).write_bytes(data)
    return written(folder, model(*protos))


def load(path: Path) -> dict[str, np.ndarray]:
    """What onnx' own reader has of initializers and Constant nodes; one array for each range of a file beside it."""
    held = onnx.load(str(path), load_external_data=False)
    found: dict[str, np.ndarray] = {}
    shared: dict[object, np.ndarray] = {}
    constants = [(n.output[0], n.attribute[0].t) for n in held.graph.node if n.op_type == "Constant"]
    for name, proto in [*((proto.name, proto) for proto in held.graph.initializer), *constants]:
        place = tuple((entry.key, entry.value) for entry in proto.external_data)
        read = numpy_helper.to_array(proto, str(path.parent))
        found[name] = shared.setdefault(place, read) if place and read.nbytes else read
    return found
