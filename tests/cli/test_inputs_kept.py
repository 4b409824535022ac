"""What `check`, `report` and `lock` replace with --force: what they wrote before, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
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


FORMS = {
    **{form: ("check", "m", "--format", form) for form in ("text", "github", "sarif", "junit", "markdown", "json")},
    "report": ("report", "m"),
    "lock": ("lock", "m"),
}
OTHERS = {
    "m/README.md": "a file of another kind",
    "other.safetensors": "a checkpoint (safetensors)",
    "other.pt": "a checkpoint (torch)",
    "other.index.json": "the index of a checkpoint",
    "m.lock": "a lock of paramtool",
    "page.html": "an HTML page",
    "pointer": "a git-LFS pointer",
    "config.json": "JSON text without weights: the config of a model",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", FORMS)
def test_other_files_are_never_replaced(place: Path, form: str) -> None:
    """--force replaces an earlier output of the same form, and an empty file."""
    torch.save({"a": torch.ones(2)}, place / "other.pt")
    (place / "other.index.json").write_bytes((place / "m" / "model.safetensors.index.json").read_bytes())
    (place / "page.html").write_text("<!DOCTYPE html>\n<title>mine</title>\n")
    (place / "pointer").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n")
    (place / "config.json").write_text('{"model_type": "of_nobody"}\n')
    for name, what in OTHERS.items():
        if (form, name) == ("lock", "m.lock"):
            continue
        before = (place / name).read_bytes()
        for flags in ((), ("--force",)):
            ran = quick(*FORMS[form], "-o", name, *flags, cwd=place)
            assert (ran.code, (place / name).read_bytes()) == (7, before)
            assert f"error: {name}: exists and is {what}, not " in ran.err
            assert "choose another -o, or delete the file first" in ran.err
    (place / "out").touch()
    for flags, code in (((), 7), (("--force",), 0), ((), 7), (("--force",), 0)):
        before = (place / "out").read_bytes()
        ran = quick(*FORMS[form], "-o", "out", *flags, cwd=place)
        assert ran.code == code, ran.err
        assert ((place / "out").read_bytes() == before) == (before != b"" or code == 7)


def test_the_output_of_a_failed_check_is_replaced(place: Path) -> None:
    """Where nothing was checked, each form says why; the next run replaces it."""
    for form in ("text", "github", "sarif", "junit", "markdown", "json"):
        for lock in ("m/README.md", "m.lock"):
            ran = quick(*FORMS[form], "--lock", lock, "-o", f"out.{form}", "--force", cwd=place)
            assert ran.code == (3 if lock == "m/README.md" else 0), ran.err


def test_an_output_name_that_a_pattern_gives(place: Path) -> None:
    """`lock --force -o *.pt`: the shell makes the first checkpoint the output."""
    for name in "ab":
        torch.save({"w": torch.ones(2)}, place / f"{name}.pt")
    before = (place / "a.pt").read_bytes()
    ran = quick("lock", "--force", "-o", "a.pt", "b.pt", cwd=place)
    assert (ran.code, (place / "a.pt").read_bytes()) == (7, before)


def test_what_never_was_a_lock_is_not_made_again(place: Path) -> None:
    ran = quick("check", "m", "--lock", "other.safetensors", cwd=place)
    assert ran.code == 3
    assert "name a file that `paramtool lock` wrote" in ran.err
    assert "make it again" not in ran.err


DAMAGES: dict[str, Callable[[str], str]] = {
    "no first line": lambda text: text.partition("\n")[2],
    "neither it nor what follows": lambda text: text[text.index("model") :],
    "a byte order mark": lambda text: f"\ufeff{text}",
    "a conflict at the top": lambda text: f"<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> theirs\n",
    "a conflict below": lambda text: text.replace("tensor ", "<<<<<<< HEAD\ntensor ", 1),
    "an older version": lambda text: text.replace("version 2", "version 0"),
    "nothing": lambda text: "",
}


@pytest.mark.parametrize("headers", [(), ("--headers",)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_lock_is_made_again_as_its_hint_says(place: Path, damage: str, headers: tuple[str, ...]) -> None:
    assert quick("lock", "m", "-o", "m.lock", "--force", *headers, cwd=place).code == 0
    text = (place / "m.lock").read_text()
    (place / "m.lock").write_text(DAMAGES[damage](text), "utf-8")
    ran = quick("check", "m", "--lock", "m.lock", cwd=place)
    assert ran.code == 3 and "delete it and make it again" in ran.err, ran
    ran = quick("lock", "m", "-o", "m.lock", "--force", *headers, cwd=place)
    assert ran.code == (3 if damage != "nothing" else 0), ran  # the models that it had are not lost in silence
    (place / "m.lock").unlink()
    assert quick("lock", "m", "-o", "m.lock", *headers, cwd=place).code == 0
    assert (place / "m.lock").read_text() == text


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
