"""Pointers in place of a locked model's files: a clone without its large files is judged by their hashes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file

import paramtool
from paramtool.commands.check.against import pointed
from paramtool.errors import FormatError, UnsafeError
from paramtool.lockfile import read, write
from paramtool.lockfile.lock import LockedFile, LockedModel
from paramtool.lockfile.pointer import Pointer
from paramtool.passes.lock.compare import of_pointers as findings

TENSORS = {f"layer.{k}": torch.full((64,), float(k)) for k in range(4)}


def replaced(path: Path) -> None:
    """Put what git-lfs puts there in a clone without large files; its text is of git-lfs docs/spec.md."""
    data = path.read_bytes()
    oid = hashlib.sha256(data).hexdigest()
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(data)}\n")


def locked(path: Path, headers: bool = False) -> LockedModel:
    """The lock of one path."""
    lock = path.parent / "paramtool.lock"
    paramtool.lock([path], lock, headers=headers, force=True)
    return read.read(str(lock)).models[path.name]


def ids(path: Path, model: LockedModel) -> list[str]:
    """What is found at a path of pointers."""
    seen = pointed(path, model)
    assert seen is not None
    return [one.id for one in findings(model, seen, "l", str(path))]


def test_one_file(tmp_path: Path) -> None:
    path, other = tmp_path / "m.safetensors", tmp_path / "other.safetensors"
    save_file(TENSORS, path)
    save_file({"layer.0": torch.zeros(64)}, other)
    model = locked(path)
    assert pointed(path, model) is None, "the file itself"
    replaced(path)
    replaced(other)
    assert ids(path, model) == [] and ids(other, model) == ["PT404"]
    assert paramtool.check([path], lock=tmp_path / "paramtool.lock").exit_code == 0
    assert paramtool.check([other], lock=tmp_path / "paramtool.lock").exit_code == 1


def test_a_folder_of_shards(tmp_path: Path) -> None:
    """All pointers, some, one changed, one gone, one more; a tokenizer's pointer is of no interest."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_torch_state_dict(TENSORS, folder, max_shard_size=600)
    (folder / "tokenizer.json").write_text("{}" * 50)
    model = locked(folder)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) == 2
    replaced(folder / "tokenizer.json")
    assert pointed(folder, model) is None
    replaced(shards[0])
    seen = pointed(folder, model)
    assert seen is not None and {type(one) for one in seen.values()} == {Pointer, LockedFile}
    assert ids(folder, model) == []
    save_file({"layer.3": torch.zeros(64), "layer.2": torch.zeros(64)}, shards[1])
    assert ids(folder, model) == ["PT401"]
    replaced(shards[1])
    assert ids(folder, model) == ["PT404"]
    shards[1].unlink()
    assert ids(folder, model) == ["PT404"]
    replaced(folder / "tokenizer.json")
    (folder / "model-00003-of-00003.safetensors").write_text(shards[0].read_text())
    assert ids(folder, model) == ["PT404", "PT404"]


def test_a_lock_of_headers_knows_no_hash(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(TENSORS, path)
    model = locked(path, headers=True)
    replaced(path)
    assert ids(path, model) == ["PT405"]


def test_a_damaged_pointer_and_names_that_lead_elsewhere(tmp_path: Path) -> None:
    """A lock is a stranger's file, too: its names are not followed out of the model's folder."""
    path = tmp_path / "m.safetensors"
    save_file(TENSORS, path)
    model = locked(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(FormatError, match="damaged git-LFS pointer"):
        pointed(path, model)
    secret = tmp_path / "secret"
    secret.write_text("x")
    replaced(secret)
    for name in ("../secret", str(secret), "./../secret", "a/../../secret"):
        hostile = replace(model, files=(LockedFile(name, 1, "0" * 64), LockedFile("b", 1, "0" * 64)))
        with pytest.raises(UnsafeError, match="outside its own folder"):
            read.parse(write.text([hostile]))
