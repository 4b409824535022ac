"""Outputs opened by the programs that people load checkpoints with: accelerate, huggingface_hub, safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
import torch

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from tests.laws.sharing import partition, raw


class Tied(torch.nn.Module):
    """An embedding whose weight is the head's too, and a layer that is only equal to another."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(64, 32)
        self.first = torch.nn.Linear(32, 64)
        self.second = torch.nn.Linear(32, 64)
        self.second.load_state_dict(self.first.state_dict())
        self.head = torch.nn.Linear(32, 64, bias=False)
        self.head.weight = self.emb.weight


@pytest.fixture
def model() -> Tied:
    """The same model each time."""
    torch.manual_seed(0)
    return Tied()


def file(model: Tied, tmp_path: Path) -> Path:
    """One deduplicated file."""
    torch.save(model.state_dict(), tmp_path / "m.pt")
    dedup_command.dedup(tmp_path / "m.pt", tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def folder(model: Tied, tmp_path: Path) -> Path:
    """A folder of shards and their index."""
    torch.save(model.state_dict(), tmp_path / "m.pt")
    dedup_command.dedup(tmp_path / "m.pt", tmp_path / "shards", max_shard_size=9000)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    return tmp_path / "shards"


def test_the_outputs_hold_the_model(model: Tied, tmp_path: Path) -> None:
    """Equal layers are stored once, the tie and the two memories stay."""
    for path in (file(model, tmp_path), folder(model, tmp_path)):
        found = paramtool.load_file(path)
        assert partition(model.state_dict()) == partition(found)
        assert {n: raw(t) for n, t in model.state_dict().items()} == {n: raw(a) for n, a in found.items()}


def test_accelerate_load_state_dict(model: Tied, tmp_path: Path) -> None:
    """accelerate reads the stored tensors of a file: `format: pt` is there, and no metadata confuses it."""
    from accelerate.utils.modeling import load_state_dict

    expected = model.state_dict()
    found = load_state_dict(str(file(model, tmp_path)))
    assert {"emb.weight", "first.weight"} <= found.keys() <= expected.keys()
    assert all(raw(expected[name]) == raw(tensor) for name, tensor in found.items())


@pytest.mark.parametrize("make", [file, folder])
def test_accelerate_load_checkpoint_in_model(model: Tied, tmp_path: Path, make: object) -> None:
    """accelerate fills a tied model from a file or a folder; what it does not fill are names stored under another."""
    from accelerate.utils.modeling import load_checkpoint_in_model

    other = Tied()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    load_checkpoint_in_model(other, str(make(model, tmp_path)))  # type: ignore[operator]
    assert other.head.weight is other.emb.weight
    stored = {"emb.weight", "first.weight", "first.bias"}
    assert all(raw(model.state_dict()[name]) == raw(other.state_dict()[name]) for name in stored)
    assert raw(model.head.weight) == raw(other.head.weight)


def test_huggingface_hub_load_state_dict_from_file(model: Tied, tmp_path: Path) -> None:
    """huggingface_hub reads the stored tensors of a file."""
    from huggingface_hub import load_state_dict_from_file

    expected = model.state_dict()
    found = load_state_dict_from_file(file(model, tmp_path))
    assert "emb.weight" in found
    assert all(raw(expected[name]) == raw(tensor) for name, tensor in found.items())


@pytest.mark.parametrize("make", [file, folder])
def test_huggingface_hub_load_torch_model(model: Tied, tmp_path: Path, make: object) -> None:
    """huggingface_hub loads a tied model from a file or a folder, with what it knows of flat pairs."""
    from huggingface_hub import load_torch_model

    other = Tied()
    load_torch_model(other, make(model, tmp_path), strict=False, safe=True)  # type: ignore[operator]
    assert raw(model.emb.weight) == raw(other.emb.weight)
    assert other.head.weight is other.emb.weight
    assert raw(model.first.weight) == raw(other.first.weight)


def test_safetensors_load_model(tmp_path: Path) -> None:
    """safetensors' own `load_model` finds a tied name missing and the model's own tie in its place."""
    from safetensors.torch import load_model

    torch.manual_seed(1)
    model, other = Tied(), Tied()
    torch.save({n: t for n, t in model.state_dict().items() if not n.startswith("second")}, tmp_path / "m.pt")
    dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors")
    del model.second, other.second
    missing, unexpected = load_model(other, tmp_path / "o.safetensors")
    assert (list(missing), list(unexpected)) == ([], [])
    assert raw(model.head.weight) == raw(other.head.weight)


def test_an_export_is_plain(model: Tied, tmp_path: Path) -> None:
    """What no loader resolves by itself, `export` writes in full: every name a tensor."""
    from safetensors.torch import load_file

    export_command.export(file(model, tmp_path), tmp_path / "plain.safetensors", names=list(model.state_dict()))
    found = load_file(tmp_path / "plain.safetensors")
    assert {n: raw(t) for n, t in model.state_dict().items()} == {n: raw(t) for n, t in found.items()}


def test_flat_pairs_of_other_tools_are_read(tmp_path: Path) -> None:
    """What `save_model` of safetensors leaves out is there again: a declared tie, in one memory."""
    from safetensors.torch import save_model

    torch.manual_seed(2)
    model = Tied()
    save_model(model, str(tmp_path / "m.safetensors"))
    found = paramtool.load_file(tmp_path / "m.safetensors")
    assert set(model.state_dict()) == set(found)
    assert partition(model.state_dict()) == partition(found)


def test_the_index_is_what_hub_expects(model: Tied, tmp_path: Path) -> None:
    """Names in weight_map are stored tensors of that shard, and total_size is the sum of their bytes."""
    from safetensors import safe_open

    shards = folder(model, tmp_path)
    index = json.loads((shards / "model.safetensors.index.json").read_text())
    total = 0
    for shard in sorted(set(index["weight_map"].values())):
        with safe_open(shards / shard, "pt") as opened:
            assert set(opened.keys()) == {n for n, s in index["weight_map"].items() if s == shard}
            total += sum(opened.get_tensor(name).nbytes for name in opened.keys())  # noqa: SIM118 - no mapping
    assert total == index["metadata"]["total_size"]


def test_no_metadata_is_no_metadata(tmp_path: Path) -> None:
    """A header whose `__metadata__` is null: the safetensors library reads it, and so does paramtool."""
    header = b'{"__metadata__":null,"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\1\2")
    with safetensors.safe_open(path, "numpy") as file:
        assert file.get_tensor("w").tolist() == paramtool.load_file(path)["w"].tolist() == [1, 2]
