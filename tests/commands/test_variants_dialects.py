"""`variants` of files whose names are those of another dialect than the variant wants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
import paramtool.torch
from tests.attention import HEAD_DIM, HEADS, LLAMA, MIXTRAL, folder_of, state_of
from tests.hostile.command import quick
from tests.versions import needs

DIALECTS = {"llama": ("vllm", "megatron", "meta"), "mixtral": ("transformers-5", "vllm")}
ROUND: Mapping[str, Any] = {**LLAMA, "hidden_size": HEADS * HEAD_DIM}
"""Meta's code has no heads of another size."""
CONFIGS: Mapping[str, Mapping[str, Any]] = {"llama": ROUND, "mixtral": MIXTRAL}
PAIRS = [
    (model, source, target)
    for model, others in DIALECTS.items()
    for source in ("transformers-4", *others)
    for target in ("transformers-4", *others)
    if source != target
]


def in_dialect(folder: Path, model: str, dialect: str) -> Path:
    """A model's folder in a dialect."""
    source = folder / "transformers-4"
    if not source.exists():
        folder_of(source, CONFIGS[model])
    if not (folder / dialect).exists():
        paramtool.convert(source, folder / dialect, target=dialect)
    return folder / dialect


@pytest.mark.sample(5)
@pytest.mark.parametrize(("model", "source", "target"), PAIRS)
def test_the_hint_is_true(tmp_path: Path, model: str, source: str, target: str) -> None:
    """What it says is done, and the variant loads."""
    path, against = (in_dialect(tmp_path, model, dialect) for dialect in (source, target))
    (found,) = paramtool.variants(path, [against])
    assert (found.verdict, found.convert_to) == ("cannot load", target)
    assert found.advice == f"loads after `convert --to {target}`"
    paramtool.convert(path, tmp_path / "out", target=found.convert_to)
    (found,) = paramtool.variants(tmp_path / "out", [against])
    assert (found.verdict, found.convert_to, found.advice) == ("loads", "", "")


def test_names_of_a_list(tmp_path: Path) -> None:
    path = in_dialect(tmp_path, "mixtral", "transformers-4")
    state = paramtool.torch.load_file(in_dialect(tmp_path, "mixtral", "transformers-5"))
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in state))
    (tmp_path / "more.txt").write_text("".join(f"{name}\n" for name in [*state, "ghost.weight"]))
    first, second = paramtool.variants(path, [tmp_path / "names.txt", tmp_path / "more.txt"])
    assert (first.convert_to, second.convert_to) == ("transformers-5", "")
    assert second.advice.startswith("names are compared; the code of modules may take more")


@needs("transformers", "5", "builds the model of a config")
def test_the_model_of_a_config(tmp_path: Path) -> None:
    """transformers takes both of its own dialects, and no other."""
    config = in_dialect(tmp_path, "mixtral", "transformers-4") / "config.json"
    for dialect in ("transformers-4", "transformers-5"):
        (found,) = paramtool.torch.variants([config], in_dialect(tmp_path, "mixtral", dialect))
        assert found.loads and not found.convert_to
    (found,) = paramtool.torch.variants([config], in_dialect(tmp_path, "mixtral", "vllm"))
    assert (found.loads, found.convert_to) == (False, "transformers-4")


def test_another_shape(tmp_path: Path) -> None:
    """A model of another width would not load after any conversion."""
    path = in_dialect(tmp_path, "llama", "vllm")
    other = folder_of(tmp_path / "wide", {**ROUND, "intermediate_size": 7})
    (found,) = paramtool.variants(path, [other])
    assert (found.loads, found.convert_to) == (False, "") and "convert" not in found.advice
    deep = folder_of(tmp_path / "deep", {**ROUND, "num_hidden_layers": 3})
    (found,) = paramtool.variants(path, [deep])
    assert (found.loads, found.convert_to) == (False, "")


def test_without_a_config(tmp_path: Path) -> None:
    path, against = (in_dialect(tmp_path, "llama", dialect) for dialect in ("vllm", "transformers-4"))
    (path / "config.json").unlink()
    (found,) = paramtool.variants(path, [against])
    assert (found.loads, found.convert_to) == (False, "")


def test_tied_embeddings(tmp_path: Path) -> None:
    """A head that only the record provides is under every dialect's name for it."""
    config = {**LLAMA, "tie_word_embeddings": True}
    source = folder_of(tmp_path / "plain", config)
    state = state_of(config)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    torch.save(state, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    paramtool.dedup(source, tmp_path / "transformers-4")
    path = in_dialect(tmp_path, "llama", "vllm")
    (found,) = paramtool.variants(path, [source])
    assert found.convert_to == "transformers-4"


def test_people_and_programs(tmp_path: Path) -> None:
    for dialect in ("vllm", "transformers-4"):
        in_dialect(tmp_path, "llama", dialect)
    ran = quick("variants", "vllm", "--against", "transformers-4", cwd=tmp_path)
    assert ran.code == 1
    assert [" ".join(line.split()) for line in ran.out.splitlines()][-1] == (
        "hint transformers-4 loads after `convert --to transformers-4`"
    )
    ran = quick("variants", "vllm", "--against", "transformers-4", "--json", cwd=tmp_path)
    (one,) = json.loads(ran.out)["variants"]
    assert (ran.code, one["verdict"], one["convert_to"]) == (1, "cannot load", "transformers-4")


@pytest.mark.parametrize("layout", ["qkv", "qkv-per-group", "qkv-conv1d"])
def test_what_was_fused_loads_after_unfuse(tmp_path: Path, layout: str) -> None:
    """And what was taken apart after `fuse`; the record says how."""
    apart, fused, back = folder_of(tmp_path / "apart", LLAMA), tmp_path / "fused", tmp_path / "back"
    paramtool.fuse(apart, fused, layout=layout)
    (found,) = paramtool.variants(fused, [apart])
    assert (found.verdict, found.convert_to, found.advice) == ("cannot load", "", "loads after `unfuse`")
    bare = folder_of(tmp_path / "bare", LLAMA, dict(paramtool.torch.load_file(fused)))  # as others write it
    paramtool.unfuse(bare, back, layout=layout)
    (found,) = paramtool.variants(back, [fused])
    assert (found.verdict, found.advice) == ("cannot load", f"loads after `fuse --layout {layout}`")
    paramtool.fuse(back, tmp_path / "again", layout=layout)
    (found,) = paramtool.variants(tmp_path / "again", [fused])
    assert found.verdict == "loads"


def test_load_model_names_the_command(tmp_path: Path) -> None:
    apart, fused = folder_of(tmp_path / "apart", LLAMA), tmp_path / "fused"
    paramtool.fuse(apart, fused, layout="qkv")
    model = torch.nn.Module()
    for name, value in paramtool.torch.load_file(apart).items():
        *path, last = name.split(".")
        module = model
        for word in path:
            if word not in dict(module.named_children()):
                module.add_module(word, torch.nn.Module())
            module = module.get_submodule(word)
        module.register_parameter(last, torch.nn.Parameter(torch.zeros_like(value)))
    with pytest.raises(paramtool.ModelError) as caught:
        paramtool.torch.load_model(model, fused)
    assert f"`paramtool unfuse {fused} -o out` writes what the model loads" in str(caught.value)
