"""Tensors that no bytes can be compared of: no verdict calls them the same, and none is left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import paramtool
from paramtool.model.diff import TensorDiff

W = np.arange(64, dtype="f4").reshape(8, 8)


def words(path: Path, *said: str) -> Path:
    """An ONNX graph with a matrix and, if any are given, a tensor of strings, which paramtool does not read."""
    kept = [numpy_helper.from_array(W, "w")]
    kept += [helper.make_tensor("words", TensorProto.STRING, [len(said)], [word.encode() for word in said])] * bool(
        said
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    nodes += [helper.make_node("Identity", ["words"], ["z"])] * bool(said)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    z = [helper.make_tensor_value_info("z", TensorProto.STRING, [len(said)])] * bool(said)
    graph = helper.make_graph(nodes, "g", [x], [y, *z], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


def verdicts(a: Path, b: Path) -> dict[str, TensorDiff]:
    """{name: its verdict}"""
    return {(one.b or one.a)[0]: one for one in paramtool.diff(a, b).tensors}


def test_a_tensor_that_cannot_be_read_is_undecided(tmp_path: Path) -> None:
    """Other strings under the same name: `--exit-code` is 1."""
    a, b = words(tmp_path / "a.onnx", "no", "yes"), words(tmp_path / "b.onnx", "yes", "no")
    found = paramtool.diff(a, b)
    assert {one.b[0]: one.kind for one in found.tensors} == {"w": "same", "words": "undecided"}
    assert "tensors of strings" in verdicts(a, b)["words"].how and not found.is_same


def test_a_copy_of_the_file_has_the_same_tensors(tmp_path: Path) -> None:
    """Whatever they are; the file itself, too."""
    a = words(tmp_path / "a.onnx", "no", "yes")
    shutil.copy(a, tmp_path / "b.onnx")
    for b in (a, tmp_path / "b.onnx"):
        found = paramtool.diff(a, b)
        assert {one.kind for one in found.tensors} == {"same"} and found.judge(strict=True)


def test_a_tensor_that_cannot_be_read_and_is_in_one_only(tmp_path: Path) -> None:
    a, b = words(tmp_path / "a.onnx"), words(tmp_path / "b.onnx", "no", "yes")
    assert verdicts(a, b)["words"].kind == "added" and verdicts(b, a)["words"].kind == "removed"
    assert not paramtool.diff(a, b).is_same and not paramtool.diff(b, a).is_same


@pytest.mark.parametrize("swap", [False, True])
def test_a_tensor_without_data_is_one_change(swap: bool, tmp_path: Path) -> None:
    """A meta tensor beside one with numbers: one row, which says why, with the type and shape of both."""
    torch.save({"w": torch.ones(8, 4)}, tmp_path / "full.pt")
    torch.save({"w": torch.ones(8, 4, dtype=torch.float16, device="meta")}, tmp_path / "meta.pt")
    order = [tmp_path / "full.pt", tmp_path / "meta.pt"]
    a, b = order[::-1] if swap else order
    (one,) = paramtool.diff(a, b).tensors
    types = ("float32", "float16")
    assert (one.kind, one.a, one.b, one.shapes) == ("changed", ("w",), ("w",), ((8, 4), (8, 4)))
    assert one.how == f"no data (meta) in {'A' if swap else 'B'}" and one.dtypes == (types[::-1] if swap else types)


def test_what_a_reader_left_out_is_said(tmp_path: Path) -> None:
    """Datasets of strings, by h5py; `lock` says it, too."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    for name, last in (("a.h5", b"x"), ("b.h5", b"y")):
        with h5py.File(tmp_path / name, "w") as file:
            file["w"] = W
            file["said"] = np.array([b"a", last])
    found = paramtool.diff(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.notes == ("A and B: 'said' holds strings and was left out",)
    locked = paramtool.lock([tmp_path / "a.h5"], tmp_path / "paramtool.lock")
    assert [one for one in locked.warnings if "'said' holds strings and was left out" in one]


def test_what_julia_saved_and_was_left_out_is_said(tmp_path: Path) -> None:
    """Strings of JLD2, written by h5py: the sentence ends with their names."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    for name, text in (("a.jld2", "yes"), ("b.jld2", "no")):
        with h5py.File(tmp_path / name, "w", userblock_size=512) as file:
            file["w"], file["said"] = W, text
        with (tmp_path / name).open("r+b") as raw:
            raw.write(b"HDF5-based Julia Data Format, version 0.1.1 (synthetic)\0")
    found = paramtool.diff(tmp_path / "a.jld2", tmp_path / "b.jld2")
    assert found.notes == ("A and B: 1 value left out, which are not arrays of numbers: said",)


def test_a_lock_of_a_tensor_that_cannot_be_read(tmp_path: Path) -> None:
    """The lock says that it has no digest, and check that it compared nothing; the same file is the same."""
    a, b = words(tmp_path / "a.onnx", "no", "yes"), words(tmp_path / "b.onnx", "yes", "no")
    shutil.copy(a, tmp_path / "c.onnx")
    lock = tmp_path / "paramtool.lock"
    (warning,) = paramtool.lock([a], lock).warnings
    assert warning == "a.onnx: not locked: the numbers of 'words', which cannot be read"
    for same in (a, tmp_path / "c.onnx"):
        assert not paramtool.check([same], lock=lock).findings
    found = paramtool.check([b], lock=lock)
    assert [(one.id, one.severity) for one in found.findings] == [("PT405", "warning"), ("PT401", "warning")]
    assert found.findings[0].message == "'words': cannot be read, so not compared"
    assert found.findings[1].message.endswith("every tensor that can be read is the same")
