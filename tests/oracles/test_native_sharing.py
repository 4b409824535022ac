"""Where a format itself lets two names stand on one range of bytes: its own reader is asked.

docs/formats.md has the table; its cells that say `tested` are these tests.  Each file here holds its bytes once.
"""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.distributed.checkpoint as dcp
from onnx import TensorProto, external_data_helper, helper
from safetensors import SafetensorError, safe_open

import paramtool
from paramtool.model import alias

NUMBERS = np.arange(6 * 1024, dtype="f4").reshape(6, 1024)
HALF = NUMBERS.nbytes * 3 // 2
"""A file below this size does not hold the numbers twice."""


def memories(path: Path) -> set[str]:
    """The memories that paramtool sees in a file, by their first names."""
    return {member.alias_set for member in alias.build(paramtool.read(path)).names.values()}


def test_torch_by_storage_keys(tmp_path: Path) -> None:
    """One storage, two names, and a transpose: they come back as one memory, so they train as one."""
    a = torch.from_numpy(NUMBERS.copy())
    torch.save({"a": a, "b": a, "c": a.t()}, tmp_path / "m.pt")
    assert (tmp_path / "m.pt").stat().st_size < HALF
    for mmap in (False, True):
        found = torch.load(tmp_path / "m.pt", weights_only=True, mmap=mmap)
        found["a"][0, 0] = -1
        assert found["b"][0, 0] == -1 and found["c"][0, 0] == -1
    assert memories(tmp_path / "m.pt") == {"a"}


def test_safetensors_not(tmp_path: Path) -> None:
    """Two names on one range are an error to the library, in either order, and to paramtool."""
    item = {"dtype": "F32", "shape": [6, 1024], "data_offsets": [0, NUMBERS.nbytes]}
    header = json.dumps({"a": item, "b": item}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + NUMBERS.tobytes())
    with pytest.raises(SafetensorError):
        safe_open(path, "numpy").__enter__()
    with pytest.raises(paramtool.errors.FormatError):
        paramtool.read(path)


def test_an_index_of_shards_not(tmp_path: Path) -> None:
    """A name that no shard has is missing, though the index says in which file it would be."""
    import transformers

    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8, bos_token_id=0,
                                     eos_token_id=0, tie_word_embeddings=False)  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    file = tmp_path / index["weight_map"]["lm_head.weight"]
    with safe_open(file, "pt") as shard:
        rest = {name: shard.get_tensor(name) for name in shard.keys() if name != "lm_head.weight"}  # noqa: SIM118
    from safetensors.torch import save_file

    save_file(rest, file, {"format": "pt"})
    index["weight_map"]["lm_head.weight"] = index["weight_map"]["transformer.wte.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    _, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {"lm_head.weight"}


def test_npz_not(tmp_path: Path) -> None:
    """A second entry of the zip's directory with another name for the same member is refused by Python's zipfile."""
    path = tmp_path / "m.npz"
    np.savez(path, a=NUMBERS)
    with zipfile.ZipFile(path, "a") as archive:
        (info,) = archive.infolist()
        again = zipfile.ZipInfo("b.npy", info.date_time)
        for fact in ("CRC", "compress_size", "file_size", "header_offset", "compress_type", "create_system"):
            setattr(again, fact, getattr(info, fact))
        archive.filelist.append(again)
        archive.NameToInfo["b.npy"] = again
        archive._didModify = True
    assert path.stat().st_size < HALF
    with np.load(path) as found:
        assert found.files == ["a", "b"] and found["a"].tobytes() == NUMBERS.tobytes()
        with pytest.raises(zipfile.BadZipFile):
            found["b"]
    with pytest.raises(paramtool.errors.FormatError):
        paramtool.read(path)


def test_hdf5_by_hard_links(tmp_path: Path) -> None:
    """h5py reads both names, and what is written through one is read through the other."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["a"] = NUMBERS
        file["group/b"] = file["a"]
    assert (tmp_path / "m.h5").stat().st_size < HALF
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        assert file["a"] == file["group/b"] and file["group/b"][()].tobytes() == NUMBERS.tobytes()
        file["a"][0, 0] = -1
        assert file["group/b"][0, 0] == -1
    assert memories(tmp_path / "m.h5") == {"a"}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_keras_by_hard_links(tmp_path: Path) -> None:
    """Weights of two layers on one dataset: Keras fills both, and gives each memory of its own."""
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(64)])
    path = tmp_path / "m.weights.h5"
    model.save_weights(path)
    with h5py.File(path, "r") as old, h5py.File(tmp_path / "linked.weights.h5", "w") as new:
        for name in old:
            old.copy(name, new)
        first, second = "layers/dense/vars", "layers/dense_1/vars"
        expected = [new[first][number][()] for number in ("0", "1")]
        for number in ("0", "1"):
            del new[second][number]
            new[second][number] = new[first][number]
    assert len(memories(path)) == 4 and len(memories(tmp_path / "linked.weights.h5")) == 2
    model.load_weights(tmp_path / "linked.weights.h5")
    for layer in model.layers:
        assert [np.asarray(weight.numpy()).tobytes() for weight in layer.weights] == [e.tobytes() for e in expected]
    kernels = [layer.kernel.value for layer in model.layers]
    assert kernels[0].data_ptr() != kernels[1].data_ptr()


def test_onnx_by_one_range_of_a_file_beside_it(tmp_path: Path) -> None:
    """Two initializers with one location, offset and length: checked, loaded, and run with both."""
    (tmp_path / "weights.bin").write_bytes(NUMBERS.tobytes())
    made = []
    for name in ("a", "b"):
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=NUMBERS.shape, raw_data=b" ")
        external_data_helper.set_external_data(proto, "weights.bin", offset=0, length=NUMBERS.nbytes)
        proto.ClearField("raw_data")
        made.append(proto)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1024])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [6])
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("MatMul", ["sum", "x"], ["y"])]
    graph = helper.make_graph(nodes, "shared", [x], [y], made)
    path = tmp_path / "m.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(path))
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    assert all(tensors[name].tobytes() == NUMBERS.tobytes() for name in "ab")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.eye(1, 1024, 5, dtype="f4")[0]})
    assert found.tolist() == (2 * NUMBERS[:, 5]).tolist()
    assert memories(path) == {"a"}


ONE_PROCESS = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@ONE_PROCESS
def test_dcp_by_a_second_entry_of_its_metadata(tmp_path: Path) -> None:
    """Another name with the place of the first: torch.distributed.checkpoint fills both, each in its own memory."""
    a = torch.from_numpy(NUMBERS.copy())
    dcp.save({"a": a}, checkpoint_id=tmp_path, no_dist=True)
    before = sum(path.stat().st_size for path in tmp_path.glob("*.distcp"))
    with (tmp_path / ".metadata").open("rb") as file:
        metadata = pickle.load(file)
    metadata.state_dict_metadata["b"] = metadata.state_dict_metadata["a"]
    for index, place in list(metadata.storage_data.items()):
        metadata.storage_data[replace(index, fqn="b")] = place
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    found = {"a": torch.zeros_like(a), "b": torch.zeros_like(a)}
    dcp.load(found, checkpoint_id=tmp_path, no_dist=True)
    assert torch.equal(found["a"], a) and torch.equal(found["b"], a) and before < HALF
    found["a"].zero_()
    assert torch.equal(found["b"], a)


@ONE_PROCESS
def test_dcp_writes_shared_tensors_for_each_name(tmp_path: Path) -> None:
    """By itself it does not share: what is one memory is written once for every name."""
    a = torch.from_numpy(NUMBERS.copy())
    dcp.save({"a": a, "b": a}, checkpoint_id=tmp_path, no_dist=True)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.distcp")) > 2 * NUMBERS.nbytes
