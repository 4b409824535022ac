"""Files of a locked model as paths: hooks and patterns name shards, and the lock names their folder."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import paramtool
from tests.hostile import makers_torch
from tests.hostile.makers_torch import call_of, state, tensor


def sharded(folder: Path, count: int = 2, *, first: float = 0.0) -> list[str]:
    """A model of six tensors in shards with their index, as transformers names them; the paths of the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*"):
        old.unlink()
    arrays = {f"layer.{k}.weight": torch.full((8,), first + k) for k in range(6)}
    names = [f"model-{k + 1:05d}-of-{count:05d}.safetensors" for k in range(count)]
    for k, name in enumerate(names):
        save_file(dict(list(arrays.items())[k::count]), folder / name)
    weight_map = {key: names[k % count] for k, key in enumerate(arrays)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [os.path.relpath(folder / name) for name in names]


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards of models/m, which is locked, and the lock's only model."""
    monkeypatch.chdir(tmp_path)
    made = sharded(tmp_path / "models" / "m")
    paramtool.lock(["models/m"])
    return made


def seen(*paths: str, content_only: bool = False) -> list[tuple[str, int]]:
    """What was checked: path and exit code."""
    found = paramtool.check(paths, content_only=content_only)
    return [(file.path, file.exit_code) for file in found.files]


@pytest.mark.parametrize("content_only", [False, True])
def test_shards_are_their_model(content_only: bool, shards: list[str]) -> None:
    """Once, however they are named; what changed in one is found once."""
    whole = [("models/m", 0)]
    for paths in (shards, shards[:1], ["models/**/*.safetensors"], [os.path.abspath(one) for one in shards],
                  [*shards, "models/m", "models/m/model.safetensors.index.json"]):  # fmt: skip
        assert seen(*paths, content_only=content_only) == whole
    sharded(Path("models/m"), first=10.0)
    found = paramtool.check(shards, content_only=content_only)
    assert found.exit_code == 1 and [one.id for one in found.findings if one.fails] == ["PT201"] * 6
    assert found.files[0].locked == "models/m" and shards[0] in found.files[0].notes[0]


def test_shards_of_several_models(shards: list[str], tmp_path: Path) -> None:
    others = sharded(tmp_path / "models" / "n", 3, first=5.0)
    torch.save({"w": torch.ones(3)}, "models/one.pt")
    paramtool.lock(["models/m", "models/n", "models/one.pt"], force=True)
    assert seen(*shards, *others, "models/one.pt") == [("models/m", 0), ("models/n", 0), ("models/one.pt", 0)]


def test_a_configuration_names_shards(shards: list[str]) -> None:
    Path("paramtool.toml").write_text('files = ["models/**/*.safetensors"]\n')
    assert seen() == [("models/m", 0)]


def test_the_lock_names_the_index(shards: list[str]) -> None:
    index = "models/m/model.safetensors.index.json"
    Path("paramtool.lock").unlink()
    paramtool.lock([index])
    assert seen(*shards) == [(index, 0)]


def test_a_file_that_the_lock_names_is_itself(shards: list[str]) -> None:
    paramtool.lock(["models/m", shards[0]], force=True)
    assert seen(*shards) == [(shards[0], 0), ("models/m", 0)]


def test_links_to_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two snapshots of one cache: each file is of the model in whose folder it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blobs").mkdir()
    shards = sharded(tmp_path / "a")
    sharded(tmp_path / "b")
    for k, name in enumerate(map(os.path.basename, shards)):
        (tmp_path / "a" / name).rename(tmp_path / "blobs" / str(k))
        for folder in ("a", "b"):
            (tmp_path / folder / name).unlink(missing_ok=True)
            (tmp_path / folder / name).symlink_to(tmp_path / "blobs" / str(k))
    paramtool.lock(["a", "b"])
    assert seen(shards[0].replace("a/", "b/", 1)) == [("b", 0)]
    (tmp_path / "c").symlink_to(tmp_path / "a")
    assert seen(shards[0].replace("a/", "c/", 1)) == [("a", 0)]


def test_new_shards_of_a_locked_model(shards: list[str], tmp_path: Path) -> None:
    """Another number of shards has other names, which no line of the lock has: still the model, and equal."""
    new = sharded(tmp_path / "models" / "m", 3)
    found = paramtool.check(new)
    assert [(file.path, file.exit_code) for file in found.files] == [("models/m", 0)]
    assert {one.id for one in found.findings} == {"PT401"}


def test_not_compared_is_not_joined(shards: list[str]) -> None:
    """A configuration that compares a path with no lock judges that path."""
    Path("paramtool.toml").write_text('[[paths]]\nmatch = ["*-00001-of-*"]\nchanged = false\n')
    assert seen(*shards) == [(shards[0], 0), ("models/m", 0)]


def test_other_files_in_a_locked_folder(shards: list[str]) -> None:
    """What a Trainer writes beside the weights is compared with no lock, and judged by the rules."""
    torch.save({"state": {}, "param_groups": [{"lr": 0.1}]}, "models/m/optimizer.pt")
    found = paramtool.check(["models/m/optimizer.pt", *shards])
    assert [(file.path, file.exit_code, file.locked) for file in found.files] == [
        ("models/m/optimizer.pt", 0, ""), ("models/m", 0, "models/m")]  # fmt: skip
    assert "not compared with the lock" in found.files[0].notes[0]
    evil = makers_torch.zipped(state(w=tensor(), evil=call_of("os", "system")))(Path("models"))
    evil.rename("models/m/training_args.bin")
    found = paramtool.check(["models/m/training_args.bin"])
    assert found.exit_code == 4 and [one.id for one in found.findings] == ["PT301"]


def test_pointers_of_shards(shards: list[str]) -> None:
    """Compared by their hashes, as those of the folder."""
    for shard in shards:
        data = Path(shard).read_bytes()
        oid = hashlib.sha256(data).hexdigest()
        Path(shard).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(data)}\n")
    assert seen(*shards) == [("models/m", 0)]
    Path(shards[1]).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n")
    found = paramtool.check(shards[:1])
    assert [one.id for one in found.findings] == ["PT404"] and found.exit_code == 1


def test_a_shard_that_is_gone(shards: list[str]) -> None:
    """The path that was given is missing, and so is the model's file."""
    Path(shards[0]).unlink()
    assert seen(*shards) == [(shards[0], 3), ("models/m", 3)]
