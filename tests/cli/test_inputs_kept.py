"""`check`, `report` and `lock` never write over a file of the model that they read, also not with --force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file

from tests.hostile.command import quick

COMMANDS = {
    "check": ("check", "m", "--format", "sarif"),
    "check --lock": ("check", "m", "--lock", "m.lock", "--format", "sarif"),
    "check in a folder": ("check", ".", "--format", "sarif"),
    "check with a lock that is none": ("check", "m", "--lock", "m/README.md", "--format", "sarif"),
    "report": ("report", "m"),
    "report --lock": ("report", "m", "--lock", "m.lock"),
    "report B": ("report", "other.safetensors", "m"),
    "lock": ("lock", "m"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Shards that huggingface_hub wrote, their index, both configs, a lock and a file that is not part of the model."""
    state = {f"{name}.weight": torch.randn(64, 8) for name in "abc"}
    (tmp_path / "m").mkdir()
    save_torch_state_dict(state, tmp_path / "m", max_shard_size=2048)
    (tmp_path / "m" / "config.json").write_text(json.dumps({"model_type": "of_nobody"}))
    (tmp_path / "m" / "adapter_config.json").write_text(json.dumps({"target_modules": ["a"]}))
    (tmp_path / "m" / "README.md").write_text("mine\n")
    save_file(state, tmp_path / "other.safetensors")
    assert quick("lock", "m", "-o", "m.lock", cwd=tmp_path).code == 0
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_no_file_of_the_model_is_overwritten(place: Path, command: str) -> None:
    before = {path: path.read_bytes() for path in sorted(place.glob("m/*")) if path.name != "README.md"}
    assert len(before) == 6, "three shards, their index and two configs"
    for path in before:
        ran = quick(*COMMANDS[command], "-o", f"m/{path.name}", "--force", cwd=place)
        assert ran.code == 7, ran.err
        assert f"m/{path.name}: is an input, which is never overwritten" in ran.err
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("command", ["check", "report", "lock"])
def test_other_files_of_the_folder_are_outputs(place: Path, command: str) -> None:
    """What paramtool does not read may be replaced with --force, and only with it."""
    words = (*COMMANDS[command], "-o", "m/README.md")
    assert quick(*words, cwd=place).code == 7
    assert (place / "m" / "README.md").read_text() == "mine\n"
    assert quick(*words, "--force", cwd=place).code in (0, 1)
    assert (place / "m" / "README.md").read_text() != "mine\n"


@pytest.mark.parametrize("command", ["check", "report", "lock"])
def test_a_file_keeps_the_config_beside_it(place: Path, command: str) -> None:
    words = [word.replace("m", "m/model.safetensors.index.json") if word == "m" else word for word in COMMANDS[command]]
    for name in ("config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors"):
        before = (place / "m" / name).read_bytes()
        ran = quick(*words, "-o", f"m/{name}", "--force", cwd=place)
        assert ran.code == 7, ran.err
        assert (place / "m" / name).read_bytes() == before


def test_a_pointer_is_kept(place: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    (place / "m" / "model-00001-of-00003.safetensors").write_text(pointer)
    words = ("check", "m", "--lock", "m.lock", "--format", "sarif", "-o", "m/model-00001-of-00003.safetensors")
    assert quick(*words, "--force", cwd=place).code == 7
    assert (place / "m" / "model-00001-of-00003.safetensors").read_text() == pointer
