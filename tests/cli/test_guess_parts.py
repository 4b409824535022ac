"""What `guess` says of attention, gated MLPs and experts: the groups that `inspect` finds, and lines that work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool
from tests.attention import LLAMA, MIXTRAL, folder_of, state_of
from tests.cli.test_guess import rows, typed, validate
from tests.hostile.command import quick


def document(command: str, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(quick(command, path.name, "--json", cwd=path.parent).out)
    return found


def made(folder: Path, kind: str) -> Path:
    """A folder `m` with a model."""
    path = folder / "m"
    if kind in ("llama", "mixtral"):
        return folder_of(path, LLAMA if kind == "llama" else MIXTRAL)
    if kind == "stacked":
        paramtool.convert(folder_of(folder / "old", MIXTRAL), path, target="transformers-5")
        return path
    if kind == "vllm":
        paramtool.convert(folder_of(folder / "old", LLAMA), path, target="vllm")
        return path
    assert kind == "neox"
    state = {f"gpt_neox.layers.{k}.attention.query_key_value.weight": torch.randn(24, 8) for k in range(2)}
    config = {"model_type": "gpt_neox", "num_attention_heads": 2, "hidden_size": 8}
    return folder_of(path, config, state)


KINDS = ("llama", "mixtral", "stacked", "vllm", "neox")


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_line_works(kind: str, tmp_path: Path) -> None:
    """Each on a folder as it was: they are alternatives."""
    path = made(tmp_path, kind)
    ran = quick("guess", "m", cwd=tmp_path)
    lines = rows(ran, "next")
    assert (ran.code, ran.err) == (0, "") and lines and not rows(ran, "none")
    assert quick("guess", "m", "--quiet", cwd=tmp_path).out.splitlines() == lines == document("guess", path)["commands"]
    for k, line in enumerate(lines):
        (tmp_path / str(k)).mkdir()
        shutil.copytree(path, tmp_path / str(k) / "m")
        typed(line, tmp_path / str(k))
        (out,) = (one for one in (tmp_path / str(k)).iterdir() if one.name != "m")
        assert not paramtool.verify(out, tmp_path / str(k) / "m").differences
        (new,), (old,) = (folder.glob("*.safetensors") for folder in (out, path))
        assert load_file(new).keys() != load_file(old).keys()


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
def test_the_groups_are_those_of_inspect(kind: str, tmp_path: Path) -> None:
    """In the table and in JSON, whose document validates."""
    path = made(tmp_path, kind)
    found = document("guess", path)
    validate(json.dumps(found))
    assert found["parts"] == document("inspect", path)["parts"]
    assert rows(quick("guess", "m", cwd=tmp_path), "parts") == rows(quick("inspect", "m", cwd=tmp_path), "parts")


def test_the_words_of_a_mixtral(tmp_path: Path) -> None:
    made(tmp_path, "mixtral")
    ran = quick("guess", "m", cwd=tmp_path)
    (parts,) = rows(ran, "parts")
    assert parts == "model.layers  2 layers: q, k, v apart; experts as a list of 3  names of transformers-4"
    assert rows(ran, "next")[0] == "paramtool convert m --to transformers-5 -o m.transformers-5"


@pytest.mark.parametrize("kind, dialect", [("stacked", "transformers-5"), ("vllm", "vllm"), ("neox", "")])
def test_the_dialect_of_fused_tensors(kind: str, dialect: str, tmp_path: Path) -> None:
    """The record or the config says it; a config without architectures does not."""
    path = made(tmp_path, kind)
    assert document("guess", path)["parts"]["dialect"] == dialect
    if kind == "stacked":
        file = path / "model.safetensors"
        save_file(load_file(file), file)  # without the record
        assert document("guess", path)["parts"]["dialect"] == dialect


@pytest.mark.parametrize(
    "at", ["model.layers.0.block_sparse_moe.experts", "model.layers.1.block_sparse_moe.experts.2.w1.weight",
           "model.layers.*.block_sparse_moe.experts.0"],
)  # fmt: skip
def test_at_chooses_experts(at: str, tmp_path: Path) -> None:
    path = made(tmp_path, "mixtral")
    ran = quick("guess", "m", "--at", at, cwd=tmp_path)
    (line,) = rows(ran, "next")
    assert line == "paramtool fuse m --layout experts --at 'model.layers.*.block_sparse_moe.experts'"
    typed(line, tmp_path)
    left = load_file(tmp_path / "m.fused" / "model.safetensors")
    assert sum("experts" in name for name in left) == 4 and len(left) < len(load_file(path / "model.safetensors"))


def test_what_is_refused_has_no_line(tmp_path: Path) -> None:
    """A missing expert: the row says why, and the other groups keep their lines."""
    state = state_of(MIXTRAL)
    del state["model.layers.1.block_sparse_moe.experts.1.w2.weight"]
    path = folder_of(tmp_path / "m", MIXTRAL, state)
    ran = quick("guess", "m", cwd=tmp_path)
    (why,) = rows(ran, "decide")
    assert "fuse refuses it" in why and "experts.1.w2.weight" in why
    assert rows(ran, "next") == ["paramtool fuse m --layout qkv"]
    found = document("guess", path)
    validate(json.dumps(found))
    assert [one["at"] for one in found["refused"]] == ["model.layers.*.block_sparse_moe.experts"]


def test_what_nothing_decides(tmp_path: Path) -> None:
    """Without a config: candidates, the fact that decides, where to say it, and no line."""
    path = made(tmp_path, "neox")
    (path / "config.json").unlink()
    ran = quick("guess", "m", cwd=tmp_path)
    assert len(rows(ran, "candidate")) > 2 and rows(ran, "decide") and not rows(ran, "next")
    at = "gpt_neox.layers.*.attention"
    assert rows(ran, "then") == [f"{at}  unfuse --at '{at}.query_key_value', with --layout and --spec of its row"]
    line = f"paramtool unfuse m --layout qkv-per-head --spec \"qkv heads=2\" --at '{at}.query_key_value'"
    typed(line, tmp_path)


def test_without_values(tmp_path: Path) -> None:
    made(tmp_path, "mixtral")
    assert rows(quick("guess", "m", "--no-values", cwd=tmp_path), "next") == rows(
        quick("guess", "m", cwd=tmp_path), "next"
    )
