"""Pointers that git-LFS itself wrote, in a clone without the files they point to."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import paramtool
from tests.hostile.command import quick

pytestmark = pytest.mark.skipif(not shutil.which("git-lfs"), reason="git-LFS is not installed (Debian: git-lfs)")


class Repository:
    """A repository of git in which git-LFS keeps every safetensors file."""

    def __init__(self, folder: Path) -> None:
        self.place, self.folder = folder, folder / "origin"
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        self.environment |= {"GIT_CONFIG_GLOBAL": str(folder / "gitconfig"), "GIT_CONFIG_NOSYSTEM": "1"}
        (folder / "gitconfig").write_text("[user]\nname = a\nemail = a@b\n")
        self.folder.mkdir()
        self.run("git", "init", "--quiet")
        self.run("git", "lfs", "install")
        self.run("git", "lfs", "track", "*.safetensors")

    def run(self, *words: object, **environment: str) -> str:
        """What a program prints in the repository; it has to succeed."""
        done = subprocess.run(
            [*map(str, words)], cwd=self.folder, env=self.environment | environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        return done.stdout

    def commit(self) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", "x")

    def clone(self, name: str, *, skips: bool) -> Path:
        """A clone with pointers, or with the files."""
        skip = {"GIT_LFS_SKIP_SMUDGE": "1"} if skips else {}
        self.run("git", "clone", "--quiet", self.folder.as_uri(), self.place / name, **skip)
        return self.place / name


@pytest.fixture
def origin(tmp_path: Path) -> Repository:
    """A sharded model of transformers, and its lock."""
    made = Repository(tmp_path)
    save(made.folder / "m", 0)
    assert quick("lock", "m", cwd=made.folder).code == 0
    made.commit()
    return made


def save(folder: Path, seed: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, vocab_size=99
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="40KB")


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("m/*.safetensors"))
    assert len(found) > 2
    return found


def test_a_clone_without_the_files(origin: Repository) -> None:
    """Its pointers are those of the lock, for the folder, for its shards, and for a pattern."""
    clone = origin.clone("pointers", skips=True)
    assert all(one.read_text().startswith("version https://git-lfs.github.com/spec/v1\n") for one in shards(clone))
    names = [str(one.relative_to(clone)) for one in shards(clone)]
    for paths in ([], ["m"], names, names[1:2], ["m/*.safetensors"]):
        ran = quick("check", *paths, cwd=clone)
        assert ran.code == 0 and "only pointers to its files are here" in ran.out, ran


def test_a_clone_with_the_files(origin: Repository) -> None:
    """git-LFS fetches them, and every tensor is compared."""
    clone = origin.clone("files", skips=False)
    ran = quick("check", cwd=clone)
    assert ran.code == 0 and "pointers" not in ran.out, ran


def test_a_commit_of_other_weights(origin: Repository) -> None:
    """Their pointers are not those of the lock: one finding for each shard that git-LFS stored anew."""
    before = {one.name: one.read_bytes() for one in shards(origin.folder)}
    save(origin.folder / "m", 1)
    changed = [one.name for one in shards(origin.folder) if one.read_bytes() != before[one.name]]
    origin.commit()
    clone = origin.clone("changed", skips=True)
    ran = quick("check", cwd=clone)
    assert changed and ran.code == 1 and ran.out.count("PT404 pointer-changed") == len(changed), ran


def test_pointers_of_git_lfs_itself(origin: Repository) -> None:
    """`git lfs pointer --file` in place of one shard, while the others are there."""
    shard = shards(origin.folder)[0]
    pointer = origin.run("git", "lfs", "pointer", f"--file={shard}")
    shard.write_text(pointer)
    ran = quick("check", cwd=origin.folder)
    assert ran.code == 0 and "only pointers" in ran.out, ran
    other = shards(origin.folder)[1]
    shard.write_text(origin.run("git", "lfs", "pointer", f"--file={other}"))
    found = quick("check", cwd=origin.folder)
    assert found.code == 1 and f"PT404 pointer-changed: '{shard.name}'" in found.out, found


def test_no_pointer_is_locked(origin: Repository) -> None:
    """A lock of a clone without the files is refused: nothing is known of their tensors."""
    clone = origin.clone("unlocked", skips=True)
    with pytest.raises(paramtool.FormatError, match="git-LFS pointer"):
        paramtool.lock([clone / "m"], clone / "new.lock")
    assert not (clone / "new.lock").exists()
