"""What a pattern gives: each checkpoint once, and nothing that is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file

import paramtool
from tests.hostile.command import quick

A = torch.arange(2000.0).reshape(40, 50)
ONE, SHARDED = "m/one/small.safetensors", "m/sharded"
NOTE = "not checked, since they are no checkpoints: "


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model in one file, one in shards, and what else is in folders."""
    monkeypatch.chdir(tmp_path)
    for folder in ("m/one", "m/sharded", "m/docs"):
        (tmp_path / folder).mkdir(parents=True)
    save_file({"w": A}, tmp_path / "m" / "one" / "small.safetensors")
    save_torch_state_dict({name: A + k for k, name in enumerate("abc")}, tmp_path / SHARDED, max_shard_size=9000)
    for folder in ("one", "sharded"):
        (tmp_path / "m" / folder / "config.json").write_text(json.dumps({"model_type": "of_nobody"}))
    (tmp_path / "m" / "sharded" / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    (tmp_path / "m" / "docs" / "README.md").write_text("# mine\n")
    (tmp_path / "m" / "docs" / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return tmp_path


def paths(found: paramtool.Checked) -> list[str]:
    return [str(Path(file.path)) for file in found.files]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**", [ONE, SHARDED]),
        ("**/*", [ONE, SHARDED]),
        ("m/**/*", [ONE, SHARDED]),
        ("./m/**", [ONE, SHARDED]),
        ("./**", [ONE, SHARDED]),
        ("**/", ["m/one", SHARDED]),
        ("m/*", ["m/one", SHARDED]),
        ("m/sharded/*", [f"{SHARDED}/model.safetensors.index.json"]),
        ("m/**/*.*", [ONE, f"{SHARDED}/model.safetensors.index.json"]),
    ],
)
def test_each_checkpoint_once(at: Path, pattern: str, expected: list[str]) -> None:
    """Patterns that name no suffix: one note has what is no checkpoint, and nothing fails."""
    found = paramtool.check([pattern])
    assert paths(found) == expected and found.exit_code == 0
    assert [note.startswith(NOTE) for note in found.notes] == [True]


def test_shards_without_their_index(at: Path) -> None:
    assert len(paths(paramtool.check(["m/sharded/*.safetensors"]))) == 3


def test_a_table_for_a_file_in_a_folder(at: Path) -> None:
    """The file is checked and not its folder, which the pattern of `[[paths]]` does not match."""
    (at / "paramtool.toml").write_text(
        'files = ["m/**/*"]\nsize = 10\n[[paths]]\nmatch = ["small*"]\nsize = "1MB"\n'
        '[[paths]]\nmatch = ["m/sharded"]\nsize = "2MB"\n'
    )
    found = paramtool.check()
    assert found.findings == () and paths(found) == [ONE, SHARDED]


def test_folders_that_the_lock_names(at: Path) -> None:
    lock = paramtool.lock(["m/one", SHARDED]).output
    found = paramtool.check(["m/**/*"], lock=lock)
    assert sorted(paths(found)) == ["m/one", SHARDED] and found.exit_code == 0 and found.findings == ()


@pytest.mark.parametrize("pattern", ["m/**/*", "m/sharded/*"])
@pytest.mark.parametrize("names", ["model.safetensors.index.json", "model-*.safetensors"])
def test_files_that_the_lock_names(at: Path, names: str, pattern: str) -> None:
    """Each is compared with its own model: neither their folder nor their index stands for them."""
    files = sorted(str(path.relative_to(at)) for path in (at / SHARDED).glob(names))
    lock = paramtool.lock([*files, ONE]).output
    found = {str(Path(file.path)): file for file in paramtool.check([pattern], lock=lock).files}
    assert SHARDED not in found
    assert [found[name].locked for name in files] == files and not any(found[name].error for name in files)


@pytest.mark.parametrize("pattern", ["m/**/*.json", "m/docs/*", "m/**/*.md", "m/docs/**"])
def test_what_was_asked_for_is_an_error(at: Path, pattern: str) -> None:
    """A pattern with the suffix, and one that nothing else matches."""
    found = paramtool.check([pattern])
    assert found.exit_code == 3 and not found.notes


def _first_shard(at: Path) -> Path:
    return min((at / SHARDED).glob("*-of-*"))


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "a shard is lost": lambda at: _first_shard(at).unlink(),
    "a shard is cut": lambda at: _first_shard(at).write_bytes(b"12345678"),
    "a file is cut": lambda at: (at / "m" / "cut.pt").write_bytes(b"PK"),
    "a file of zeros": lambda at: (at / "m" / "zeros").write_bytes(bytes(9)),
    "a format that is not read": lambda at: (at / "m" / "docs" / "a").write_bytes(b"GGUF\3\0\0\0"),
    "a pointer": lambda at: (at / "m" / "pointer").write_text(POINTER),
    "a folder without its metadata": lambda at: (at / "m" / "docs" / "__0_0.distcp").write_bytes(b"1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_read_is_not_passed_over(at: Path, damage: str) -> None:
    DAMAGES[damage](at)
    assert paramtool.check(["m/**/*"]).exit_code == 3


def test_training_state_in_a_folder_is_judged(at: Path) -> None:
    """Its pickles may be unsafe."""
    torch.save({"epoch": 1}, at / SHARDED / "training_args.bin")
    assert paths(paramtool.check(["m/**/*"])) == [ONE, SHARDED, f"{SHARDED}/training_args.bin"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_of_torch_distributed(at: Path) -> None:
    """It stands for its files, also where it is inside the folder of a model."""
    import torch.distributed.checkpoint as dcp

    dcp.save({"w": A}, checkpoint_id=at / "d", no_dist=True)
    assert paths(paramtool.check(["**/*"])) == ["d", ONE, SHARDED]


def test_the_note_is_said(at: Path) -> None:
    ran = quick("check", "m/**/*", cwd=at)
    assert ran.code == 0 and f"warning: {NOTE}'m/docs/README.md'" in ran.err, ran
