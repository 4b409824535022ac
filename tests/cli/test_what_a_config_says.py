"""What config.json says is known, told and the same in every command, and nothing is assumed of it in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import paramtool
from paramtool.errors import UsageError
from tests.hostile.command import Ran, quick

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
TIED = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
APART = TIED | {"tie_word_embeddings": False}


def folder(path: Path, config: object = TIED, names: tuple[str, ...] = (EMBED, NORM)) -> Path:
    """A folder as save_pretrained writes it, with these names."""
    path.mkdir()
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    tensors = {name: torch.ones(64) if "norm" in name else weight.clone() for name in names}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def shared(path: Path) -> list[list[str]]:
    """Names that `inspect` shows on one memory."""
    return [[*names] for _, names in named(path)]


def named(path: Path) -> list[tuple[str, list[str]]]:
    """(owner, its names)"""
    return [(owner, [one.name for one in members]) for owner, members in paramtool.inspect(path).graph.groups()]


def notes(path: Path) -> str:
    """What `inspect` says beside the tensors."""
    return "\n".join(paramtool.inspect(path).checkpoint.notes)


def run(*words: object, cwd: Path) -> Ran:
    """A command that succeeds."""
    ran = quick(*words, cwd=cwd)
    assert ran.code == 0, ran
    return ran


@pytest.mark.parametrize(
    ("names", "together"),
    [
        ((EMBED, NORM), [EMBED, HEAD]),
        ((HEAD, NORM), [HEAD, EMBED]),
        (("embed_tokens.weight", "norm.weight"), ["embed_tokens.weight", HEAD]),
        ((HEAD, "wte.weight"), None),
    ],
)
def test_a_tie_is_known_by_any_of_its_names(names: tuple[str, ...], together: list[str] | None, tmp_path: Path) -> None:
    """Also where only the head is stored, and in a file of the base model, whose names lack its prefix."""
    path = folder(tmp_path / "in", names=names)
    assert shared(path) == ([together] if together else [])
    if together:
        run("dedup", "in", cwd=tmp_path)
        assert sorted(paramtool.read(tmp_path / "in.dedup").entries) == sorted({*names, *together})


def test_one_shard_is_not_asked_for_the_names_of_others(tmp_path: Path) -> None:
    path = folder(tmp_path / "in", APART)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    assert notes(path / "model-00001-of-00002.safetensors") == ""


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (TIED, ""),
        (APART, f"tie_word_embeddings is false, and the file lacks {HEAD!r}"),
        ({key: TIED[key] for key in ("model_type", "tie_word_embeddings")}, "no class is named (`architectures`)"),
        (APART | {"architectures": []}, "no class is named (`architectures`)"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM ties"),
        ({"model_type": "llama", "architectures": ["LlamaModel"]}, ""),
        ("{", "it was not used"),
    ],
)
def test_what_the_file_does_not_show_is_said(config: object, says: str, tmp_path: Path) -> None:
    """A denied tie whose head is missing, a config without a class, of another model, and a damaged one."""
    said = notes(folder(tmp_path / "in", config))
    assert says in said and bool(says) == bool(said)


@pytest.mark.parametrize("damage", ["{", None])
@pytest.mark.parametrize("words", [("lock",), ("check",), ("inspect",), ("dedup", "--dry-run"), ("diff", "in")])
def test_a_damaged_config_has_one_rule(damage: str | None, words: tuple[str, ...], tmp_path: Path) -> None:
    """It is told once and not used, whether it is damaged or a link to nothing; given, it is an error."""
    path = folder(tmp_path / "in", damage or "{}")
    if damage is None:
        (path / "config.json").unlink()
        (path / "config.json").symlink_to("nowhere")
    ran = run(*words, "in", cwd=tmp_path)
    assert (ran.out + ran.err).count("it was not used") == 1
    assert quick("inspect", "--config", "in/config.json", "in", cwd=tmp_path).code in (2, 3)


def test_a_rule_about_a_config_needs_one(tmp_path: Path) -> None:
    folder(tmp_path / "in")
    ran = quick("inspect", "in", "--config", "none", "--fail-on", "config-ties", cwd=tmp_path)
    assert ran.code == 2 and "none" in ran.err


def test_what_ties_gives_to_a_folder_that_denies_it_is_verified(tmp_path: Path) -> None:
    folder(tmp_path / "in", APART)
    run("dedup", "in", "--ties", f"{HEAD}={EMBED}", cwd=tmp_path)
    run("verify", "in.dedup", "in", cwd=tmp_path)


def test_verify_says_which_names_only_the_output_has(tmp_path: Path) -> None:
    folder(tmp_path / "in")
    run("dedup", "in", cwd=tmp_path)
    assert HEAD in run("verify", "in.dedup", "in", "--config", "none", cwd=tmp_path).err
    assert run("verify", "in.dedup", "in", cwd=tmp_path).err == ""


@pytest.mark.parametrize("command", ["dedup", "export"])
def test_no_output_becomes_a_second_set_of_weights(command: str, tmp_path: Path) -> None:
    """What is made of a file in a model's folder is beside the folder."""
    path = folder(tmp_path / "in")
    before = sorted(path.iterdir())
    run(command, "in/model.safetensors", cwd=tmp_path)
    run(command, "model.safetensors", "--force", cwd=path)
    assert sorted(path.iterdir()) == before
    assert len([*tmp_path.glob("in.model.*.safetensors")]) == 1
    assert quick(command, "in/model.safetensors", cwd=tmp_path).code == 7


def test_a_config_that_is_written_anew_is_listed(tmp_path: Path) -> None:
    folder(tmp_path / "in")
    ran = run("convert", "in", "--untie", HEAD, "-o", "out", cwd=tmp_path)
    assert "config.json  written anew" in ran.out


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
def test_diff_says_a_tie_once(way: tuple[str, str], tmp_path: Path) -> None:
    """All names of one memory are one line, in both directions."""
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD)
    config: dict[str, Any] = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
    folder(tmp_path / "a", config | {"tie_word_embeddings": True}, names[:1])
    folder(tmp_path / "b", config | {"tie_word_embeddings": False}, names)
    ties = [text for text in run("diff", *way, cwd=tmp_path).out.splitlines() if text.startswith("ties")]
    assert len(ties) == 1 and all(name in ties[0] for name in names)


def test_an_error_speaks_of_keywords_in_python(tmp_path: Path) -> None:
    torch.save({EMBED: torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(UsageError) as caught:
        paramtool.inspect(tmp_path / "a.pt", fail_on=["config-ties"])
    assert "hint: config=PATH gives" in str(caught.value) and "--" not in str(caught.value)
    assert "--config PATH" in quick("inspect", "a.pt", "--fail-on", "config-ties", cwd=tmp_path).err
