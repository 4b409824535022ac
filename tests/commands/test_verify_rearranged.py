"""`verify` of outputs whose tensors were fused, taken apart, or renamed to another dialect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import paramtool
from tests.attention import HEAD_DIM, HEADS, KV_HEADS, LLAMA, MIXTRAL, folder_of, state_of

Q = HEADS * HEAD_DIM
K = KV_HEADS * HEAD_DIM
FUSED = "model.layers.0.self_attn.query_key_value.weight"


def llama(folder: Path) -> Path:
    """A Llama with grouped heads."""
    return folder_of(folder / "llama", LLAMA)


def metas(folder: Path) -> Path:
    """A Llama with heads of the size that Meta's code gives them."""
    return folder_of(folder / "llama", {**LLAMA, "hidden_size": HEADS * HEAD_DIM})


def mixtral(folder: Path) -> Path:
    """Three experts in a list."""
    return folder_of(folder / "mixtral", MIXTRAL)


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Edit the tensors of a folder, and nothing else."""
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    state = load_file(path)
    edit(state)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path, metadata=metadata)


@pytest.mark.parametrize(
    "layout", ["qkv", "qkv-per-group", "gate-up", "up-gate", "gate-up-interleaved"]
)  # fmt: skip
def test_there_and_back(tmp_path: Path, layout: str) -> None:
    source = llama(tmp_path)
    paramtool.fuse(source, tmp_path / "fused", layout=layout)
    found = paramtool.verify(tmp_path / "fused", source)
    assert (found.differences, found.warnings, found.remade) == ((), (), 2)
    paramtool.unfuse(tmp_path / "fused", tmp_path / "back")
    found = paramtool.verify(tmp_path / "back", tmp_path / "fused")
    assert not found.differences and not found.warnings and found.remade == (6 if "qkv" in layout else 4)
    found = paramtool.verify(tmp_path / "back", source)
    assert not found.differences and not found.warnings and not found.remade
    assert (tmp_path / "back/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("make", "dialect"), [(llama, "vllm"), (llama, "megatron"), (metas, "meta"),
                                               (mixtral, "transformers-5"), (mixtral, "vllm")])  # fmt: skip
def test_dialects_there_and_back(tmp_path: Path, make: Callable[[Path], Path], dialect: str) -> None:
    source = make(tmp_path)
    paramtool.convert(source, tmp_path / "there", target=dialect)
    found = paramtool.verify(tmp_path / "there", source)
    assert not found.differences and not found.warnings
    assert found.remade
    paramtool.convert(tmp_path / "there", tmp_path / "back", target="transformers-4")
    for other in (tmp_path / "there", source):
        found = paramtool.verify(tmp_path / "back", other)
        assert not found.differences and not found.warnings


def test_a_file_whose_config_is_gone_is_not_compared_and_no_proof(tmp_path: Path) -> None:
    source = mixtral(tmp_path)
    paramtool.convert(source, tmp_path / "there", target="transformers-5")
    for folder in (source, tmp_path / "there"):
        (folder / "config.json").unlink()
    found = paramtool.verify(tmp_path / "there", source)
    (difference,) = found.differences
    assert "config.json" in difference and "not compared" in difference and found.converted == 6

    def edit(state: dict[str, torch.Tensor]) -> None:
        state["model.norm.weight"][0] += 1

    change(tmp_path / "there", edit)
    assert any("model.norm.weight" in text for text in paramtool.verify(tmp_path / "there", source).differences)


@pytest.mark.parametrize("steps", [("fuse", "convert"), ("convert", "fuse")])
def test_two_steps(tmp_path: Path, steps: tuple[str, str]) -> None:
    """Attention fused and experts stacked, in either order: the last output is compared with the first source."""
    source, path = mixtral(tmp_path), mixtral(tmp_path)
    for step in steps:
        if step == "fuse":
            paramtool.fuse(path, tmp_path / step, layout="qkv-per-group")
        else:
            paramtool.convert(path, tmp_path / step, source="transformers-4", target="transformers-5")
        found = paramtool.verify(tmp_path / step, path)
        assert not found.differences and not found.warnings
        path = tmp_path / step
    found = paramtool.verify(path, source)
    assert (found.differences, found.warnings) == ((), ())
    assert found.remade == (6 if steps[-1] == "fuse" else 4)  # a dialect has queries, keys and values apart again
    for name in (
        *([FUSED] if steps[-1] == "fuse" else []),
        "model.layers.1.mlp.experts.gate_up_proj",
        "model.layers.1.mlp.gate.weight",
    ):

        def edit(state: dict[str, torch.Tensor], name: str = name) -> None:
            state[name][-1] += 1

        change(path, edit)
        assert any(name in text for text in paramtool.verify(path, source).differences)


def one_row(state: dict[str, torch.Tensor]) -> None:
    """A row of a key of the second group."""
    state[FUSED][-1] += 1


def exchanged(state: dict[str, torch.Tensor]) -> None:
    """Keys where values are."""
    part = state[FUSED].reshape(KV_HEADS, -1, HEAD_DIM, state[FUSED].shape[1])
    group = HEADS // KV_HEADS
    state[FUSED] = part[:, [*range(group), group + 1, group]].reshape(state[FUSED].shape)


def in_blocks(state: dict[str, torch.Tensor]) -> None:
    """All queries, all keys, all values: layout qkv under the record of qkv-per-group."""
    original = state_of(LLAMA)
    state[FUSED] = torch.cat([original[f"model.layers.0.self_attn.{one}_proj.weight"] for one in "qkv"])


def lacking(state: dict[str, torch.Tensor]) -> None:
    """A fused tensor is gone."""
    del state[FUSED]


def longer(state: dict[str, torch.Tensor]) -> None:
    """A fused tensor has a row more."""
    state[FUSED] = torch.cat([state[FUSED], state[FUSED][:1]])


def half(state: dict[str, torch.Tensor]) -> None:
    """A fused tensor of another type."""
    state[FUSED] = state[FUSED].half()


def tied(state: dict[str, torch.Tensor]) -> None:
    """Nothing changed: for the control."""


@pytest.mark.parametrize("edit", [one_row, exchanged, in_blocks, lacking, longer, half, tied])
def test_what_was_tampered_with_is_found(tmp_path: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    source = llama(tmp_path)
    paramtool.fuse(source, tmp_path / "fused", layout="qkv-per-group")
    change(tmp_path / "fused", edit)
    found = paramtool.verify(tmp_path / "fused", source)
    if edit is tied:
        assert not found.differences
        return
    assert len(found.differences) == 1, found
    assert FUSED in found.differences[0]


def test_a_part_that_was_tampered_with_is_found(tmp_path: Path) -> None:
    source = llama(tmp_path)
    paramtool.fuse(source, tmp_path / "fused", layout="qkv")
    paramtool.unfuse(tmp_path / "fused", tmp_path / "back")
    name = "model.layers.1.self_attn.k_proj.weight"

    def edit(state: dict[str, torch.Tensor]) -> None:
        state[name][0, 0] += 1

    change(tmp_path / "back", edit)
    (difference,) = paramtool.verify(tmp_path / "back", tmp_path / "fused").differences
    assert name in difference


@pytest.mark.parametrize("name", ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.1.mlp.gate.weight"])
def test_a_tensor_of_another_dialect_that_was_tampered_with_is_found(tmp_path: Path, name: str) -> None:
    source = mixtral(tmp_path)
    paramtool.convert(source, tmp_path / "there", target="transformers-5")

    def edit(state: dict[str, torch.Tensor]) -> None:
        state[name][1, 0] += 1

    change(tmp_path / "there", edit)
    (difference,) = paramtool.verify(tmp_path / "there", source).differences
    assert name in difference


def test_of_another_source(tmp_path: Path) -> None:
    """The record speaks of parts that this source does not have."""
    source = llama(tmp_path)
    paramtool.fuse(source, tmp_path / "fused", layout="qkv")
    other = state_of(LLAMA)
    del other["model.layers.1.self_attn.k_proj.weight"]
    found = paramtool.verify(tmp_path / "fused", folder_of(tmp_path / "other", LLAMA, other))
    assert any("does not fit the source" in text and "k_proj" in text for text in found.differences)


def shared(folder: Path) -> Path:
    """A Mixtral whose first two layers share an expert, and whose head is the embedding."""
    state = state_of(MIXTRAL)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for name in ("w1", "w2", "w3"):
        first, second = (f"model.layers.{k}.block_sparse_moe.experts.0.{name}.weight" for k in range(2))
        state[second] = state[first]
    folder_of(folder / "plain", {**MIXTRAL, "tie_word_embeddings": True}, state_of(MIXTRAL))
    torch.save(state, folder / "plain/pytorch_model.bin")
    (folder / "plain/model.safetensors").unlink()
    paramtool.dedup(folder / "plain", folder / "source")
    return folder / "source"


def test_renamed_tensors_keep_their_ties(tmp_path: Path) -> None:
    source = shared(tmp_path)
    there = tmp_path / "there"
    report = paramtool.convert(source, there, target="vllm")
    found = paramtool.verify(there, source)
    assert not found.differences
    loaded = paramtool.torch.load_file(there)
    a, b = loaded["model.embed_tokens.weight"], loaded["lm_head.weight"]
    assert a.data_ptr() == b.data_ptr()
    assert report.written


def test_a_tie_that_was_lost_is_found(tmp_path: Path) -> None:
    """The same bytes, stored twice: equal is not tied."""
    state = state_of(LLAMA)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    source = folder_of(tmp_path / "source", {**LLAMA, "tie_word_embeddings": True}, state_of(LLAMA))
    torch.save(state, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    paramtool.fuse(source, tmp_path / "fused", layout="qkv")
    assert not paramtool.verify(tmp_path / "fused", source).differences
    names = {name: tensor.clone() for name, tensor in paramtool.torch.load_file(tmp_path / "fused").items()}
    (path,) = (tmp_path / "fused").glob("*.safetensors")
    with safe_open(path, "pt") as file:
        metadata = {key: text for key, text in file.metadata().items() if key == "paramtool.parts"}
    save_file(names, path, metadata=metadata)
    found = paramtool.verify(tmp_path / "fused", source)
    assert any("shares memory" in text for text in found.differences)
