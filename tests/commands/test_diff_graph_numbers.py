"""`diff` of two graphs with the same weights that calculate with other numbers: their values are undecided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.checkpoint import GRAPH

onnx = pytest.importorskip("onnx")
WEIGHT = np.random.default_rng(0).normal(size=(16, 8)).astype("f4")


def written(path: Path, scale: float, weight: np.ndarray = WEIGHT) -> Path:
    """A product with a weight, scaled by a number of the graph."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Constant", [], ["scale"], value=numpy_helper.from_array(np.float32(scale))),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 16), ("y", 8))]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def compared(place: Path, *scales: float, weight: np.ndarray = WEIGHT) -> Diffed:
    first, second = scales
    return diff(written(place / "a.onnx", first), written(place / "b.onnx", second, weight))


def test_another_scale_is_a_doubt(tmp_path: Path) -> None:
    found = compared(tmp_path, 0.125, 0.25)
    assert [one.b for one in found.tensors if one.kind == GRAPH] == [("scale",)]
    assert not found.is_same and found.verdict == "same bytes, undecided values"
    (doubt,) = found.doubts
    assert doubt.startswith("1 number of the graph differs; a model") and doubt.endswith("'scale'")


def test_one_scale_or_other_weights(tmp_path: Path) -> None:
    assert compared(tmp_path, 0.125, 0.125).is_same
    assert compared(tmp_path, 0.125, 0.25, weight=WEIGHT + 1).verdict == "different weights"
