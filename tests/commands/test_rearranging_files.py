"""Fused, taken apart and renamed tensors of every kind of input and output: ties, sections, shards, many folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool
import paramtool.torch
from tests.attention import LLAMA, MIXTRAL, State, folder_of, state_of
from tests.hostile.command import quick
from tests.laws.sharing import partition, same_values

TIED = {**LLAMA, "tie_word_embeddings": True}


def tied_state() -> State:
    """A Llama whose head is its embedding."""
    state = state_of(TIED)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def pickled(folder: Path, state: State, config: dict[str, object]) -> Path:
    """The folder of an old transformers."""
    folder_of(folder, config)
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def groups(path: Path) -> list[list[str]]:
    """The names that share memory."""
    found: dict[int, list[str]] = {}
    for name, tensor in paramtool.torch.load_file(path).items():
        found.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def training(folder: Path) -> Path:
    """A checkpoint with an optimizer beside the model, and the config beside it."""
    state = tied_state()
    folder_of(folder, TIED)
    (folder / "model.safetensors").unlink()
    parameters = [torch.nn.Parameter(tensor) for name, tensor in state.items() if name != "lm_head.weight"]
    optimizer = torch.optim.AdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save({"model": state, "optimizer": optimizer.state_dict(), "epoch": 3}, folder / "ckpt.pt")
    return folder / "ckpt.pt"


def test_a_section_of_a_training_checkpoint(tmp_path: Path) -> None:
    source = training(tmp_path / "train")
    for output in ("there.safetensors", "there.pt"):
        paramtool.convert(source, tmp_path / output, target="vllm", only="model")
        found = paramtool.verify(tmp_path / output, source, only="model")
        assert not found.differences and found.remade == 4
        assert groups(tmp_path / output) == [["model.embed_tokens.weight", "lm_head.weight"]]
    state = torch.load(tmp_path / "there.pt", weights_only=True)
    assert "model.layers.0.self_attn.qkv_proj.weight" in state


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_whole_training_checkpoint(tmp_path: Path, suffix: str) -> None:
    """The optimizer's state follows; a section of the output still knows how to be taken apart."""
    source, fused = training(tmp_path / "train"), tmp_path / f"fused.{suffix}"
    report = paramtool.fuse(source, fused, layout="qkv")
    assert report.optimizer.moved
    assert not paramtool.verify(fused, source).differences
    paramtool.dedup(fused, tmp_path / "model.safetensors", only="model")
    assert not paramtool.verify(tmp_path / "model.safetensors", fused, only="model").differences
    for path, only in ((tmp_path / "model.safetensors", None), (fused, "model")):
        paramtool.unfuse(path, tmp_path / "back.pt", only=only, force=True)
        assert not paramtool.verify(tmp_path / "back.pt", path, only=only).differences
        back = torch.load(tmp_path / "back.pt", weights_only=True)
        original = torch.load(source, weights_only=False)["model"]
        assert same_values({name: original[name] for name in back}, back)
        assert back.keys() == original.keys()
        assert partition(dict(back)) == partition(dict(original))


def sharded(folder: Path, state: State) -> Path:
    """pytorch_model-00001-of-00002.bin, and its index."""
    folder_of(folder, TIED)
    (folder / "model.safetensors").unlink()
    names, places = list(state), dict[str, str]()
    for k, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :])):
        file = f"pytorch_model-{k + 1:05}-of-00002.bin"
        torch.save({name: state[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("size", [None, 1000])
def test_sharded_files_of_torch(tmp_path: Path, size: int | None) -> None:
    """A folder of them becomes one that is read, compared and converted back; an output of one file, too."""
    source = sharded(tmp_path / "bins", tied_state())
    for output in ("there", "there.pt"):
        paramtool.convert(source, tmp_path / output, target="vllm", max_shard_size=size if output == "there" else None)
        assert not paramtool.verify(tmp_path / output, source).differences
    files = list((tmp_path / "there").glob("*.safetensors"))
    assert (len(files) > 2) == (size is not None)
    paramtool.convert(tmp_path / "there", tmp_path / "back", target="transformers-4")
    assert not paramtool.verify(tmp_path / "back", tmp_path / "there").differences
    assert not paramtool.verify(tmp_path / "back", source).differences
    back = paramtool.torch.load_file(tmp_path / "back")
    for name, tensor in tied_state().items():
        assert torch.equal(back[name], tensor)


def all_tensors(name: str) -> bool:
    """Everything of a layer."""
    return True


def one_expert(name: str) -> bool:
    """One of the experts, which have one tensor in the other dialect."""
    return ".experts.0." in name


def router(name: str) -> bool:
    """A tensor that only gets another name."""
    return "block_sparse_moe.gate" in name


@pytest.mark.parametrize("which", [all_tensors, one_expert, router])
def test_ties_between_layers(tmp_path: Path, which: Callable[[str], bool]) -> None:
    """Tensors that are made of tied ones are tied; where that is not possible a warning says so, both ways."""
    state = state_of(MIXTRAL)
    for name in state:
        if ".layers.1." in name and which(name):
            state[name] = state[name.replace(".layers.1.", ".layers.0.")]
    source, there = pickled(tmp_path / "source", state, dict(MIXTRAL)), tmp_path / "there"
    report = paramtool.convert(source, there, target="transformers-5")
    assert any("untied" in text for text in report.warnings) == (which is one_expert)
    assert not paramtool.verify(there, source).differences
    names = [[f"model.layers.{k}.mlp.{what}" for k in range(2)] for what in
             ("gate.weight", "experts.gate_up_proj", "experts.down_proj")]  # fmt: skip
    found = groups(there)
    assert [pair in found for pair in names] == [
        which is not one_expert, which is all_tensors, which is all_tensors
    ]  # fmt: skip
    (there / "config.json").unlink()  # dedup unties what the config's model does not tie
    paramtool.dedup(there, tmp_path / "again")
    assert groups(tmp_path / "again") == found
    assert not paramtool.verify(tmp_path / "again", there).differences


def test_many_folders(tmp_path: Path) -> None:
    """A Llama and a Mixtral at once, each by its own config."""
    many = tmp_path / "many"
    many.mkdir()
    folder_of(many / "one", LLAMA)
    folder_of(many / "two", MIXTRAL)
    for line in ("convert many --to vllm -o there", "fuse many --layout qkv -o fused", "unfuse fused -o back"):
        ran = quick(*line.split(), "--each", cwd=tmp_path)
        assert ran.code == 0, ran
    pairs = [("there", "many"), ("fused", "many"), ("back", "fused"), ("back", "many")]
    for output, source in pairs:
        found = paramtool.verify_each(tmp_path / output, tmp_path / source)
        assert not found.differences and not found.warnings
    for place in ("one", "two"):
        before, after = (folder / place / "model.safetensors" for folder in (many, tmp_path / "back"))
        assert before.read_bytes() == after.read_bytes()


def test_parts_of_other_names(tmp_path: Path) -> None:
    """`--rename` says what a file calls the parts, and what the fused tensor is to be called."""
    state = {f"enc.self.{name}_proj.weight": torch.randn(8, 8) for name in ("query", "key", "value")}
    save_file(state, tmp_path / "m.safetensors", {"format": "pt"})
    names = {"q_proj": "query_proj", "k_proj": "key_proj", "v_proj": "value_proj", "qkv_proj": "all"}
    paramtool.fuse(tmp_path / "m.safetensors", tmp_path / "n.safetensors", layout="qkv", rename=names)
    fused = load_file(tmp_path / "n.safetensors")
    assert torch.equal(fused["enc.self.all.weight"], torch.cat([*state.values()]))
    paramtool.unfuse(tmp_path / "n.safetensors", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
