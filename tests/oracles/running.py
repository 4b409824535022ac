"""Running networks in torch and in ONNX Runtime, on weights that are there as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

Arrays = Mapping[str, Any]


def below(arrays: Arrays, at: str, mark: str = ".") -> dict[str, Any]:
    """{own name: tensor} of one module."""
    return {name[len(at) + 1 :]: value for name, value in arrays.items() if name.startswith(at + mark)}


def close(found: Any, expected: Any, bound: float = 1e-5) -> None:
    """Both have one shape, and differ by less than `bound`."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert float(np.abs(found - expected).max()) < bound


def run_torch(kind: str, weights: Arrays, x: Any, *states: Any) -> tuple[np.ndarray, ...]:
    """(y, hn, and cn of an LSTM) of torch's own network that takes just these weights; x (T, N, input)."""
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[kind](
        tensors["weight_ih_l0"].shape[1],
        tensors["weight_hh_l0"].shape[1],
        num_layers=1 + max(int(name.split("_l")[1][0]) for name in tensors),
        bias="bias_ih_l0" in tensors,
        bidirectional="weight_ih_l0_reverse" in tensors,
        dtype=tensors["weight_ih_l0"].dtype,
    )
    module.load_state_dict(tensors)
    given = [torch.from_numpy(np.array(state)) for state in states]
    with torch.no_grad():
        y, last = module(torch.from_numpy(np.array(x)), tuple(given) if kind == "lstm" else given[0])
    return tuple(value.numpy() for value in (y, *(last if kind == "lstm" else (last,))))


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """float32, the same each time."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run_onnx(kind: str, weights: Arrays, x: np.ndarray, *states: np.ndarray, **attributes: int) -> np.ndarray:
    """Y (T, N, H) of one forward node of ONNX Runtime; W, R and B of the weights go into it untouched."""
    values = {"X": x, **dict(zip(("h0", "c0"), states, strict=False))}
    stored = {name: np.array(weights[name]) for name in "WRB" if name in weights}
    inputs = ["X", "W", "R", "B" if "B" in stored else "", "", *list(values)[1:]]
    node = onnx.helper.make_node(kind.upper(), inputs, ["Y"], hidden_size=states[0].shape[2], **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, v.shape) for name, v in values.items()],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["Y"], values)[0])[:, 0]
