"""GPT-2 with cross attention: its keys and values are in one tensor, transposed, and its queries apart.

transformers' class runs what was taken apart and joined again, without the record; other rows of the same shape are off
by far.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

import paramtool
from paramtool.errors import LayoutError
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture
WIDTH, HEADS = 36, 3
TENSORS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=50, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16, add_cross_attention=True)
    model = GPT2LMHeadModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    where = tmp_path_factory.mktemp("gpt2") / "in"
    model.save_pretrained(where)
    return where


def opened(where: Path) -> Any:
    model, info = GPT2LMHeadModel.from_pretrained(where, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return model.eval()


def logits(where: Path) -> torch.Tensor:
    torch.manual_seed(2)
    states = torch.randn(2, 5, WIDTH)
    with torch.no_grad():
        found: torch.Tensor = opened(where)(torch.arange(12).reshape(2, 6), encoder_hidden_states=states).logits
    return found


def stripped(where: Path) -> Path:
    """The same file without a record."""
    save_file(load_file(where / TENSORS), where / TENSORS, {"format": "pt"})
    return where


def test_parts_are_what_the_class_calculates(folder: Path, tmp_path: Path) -> None:
    """Each part is a Linear that gives the keys, or the values, which the class splits off."""
    paramtool.unfuse(folder, tmp_path / "apart")
    parts, model = load_file(tmp_path / "apart" / TENSORS), opened(folder)
    states = torch.randn(2, 5, WIDTH)
    for layer, block in enumerate(model.transformer.h):
        at = f"transformer.h.{layer}.crossattention."
        both = block.crossattention.c_attn(states).split(WIDTH, dim=2)
        for name, expected in zip(("k_proj", "v_proj"), both, strict=True):
            found = torch.nn.functional.linear(states, parts[f"{at}{name}.weight"], parts[f"{at}{name}.bias"])
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(parts[f"{at}q_attn.weight"], block.crossattention.q_attn.weight)
        assert parts[f"transformer.h.{layer}.attn.q_proj.weight"].shape == (WIDTH, WIDTH)


def test_there_and_back_the_class_gives_the_same_logits(folder: Path, tmp_path: Path) -> None:
    paramtool.unfuse(folder, tmp_path / "apart")
    paramtool.fuse(tmp_path / "apart", tmp_path / "kv", layout="kv-conv1d")
    paramtool.fuse(tmp_path / "kv", tmp_path / "back", layout="qkv-conv1d")
    assert (tmp_path / "back" / TENSORS).read_bytes() == (folder / TENSORS).read_bytes()
    stripped(tmp_path / "apart")
    paramtool.fuse(tmp_path / "apart", tmp_path / "kv2", layout="kv-conv1d", at=["*.crossattention"])
    paramtool.fuse(tmp_path / "kv2", tmp_path / "back2", layout="qkv-conv1d")
    assert torch.equal(logits(tmp_path / "back2"), logits(folder))


def test_other_rows_of_the_same_shape_are_off_by_far(folder: Path, tmp_path: Path) -> None:
    """Values before keys, and a key and a value for each head: the class opens both and answers otherwise."""
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "config.json").write_bytes((folder / "config.json").read_bytes())
    right = logits(folder)
    for change in (
        lambda both: torch.cat([both[..., WIDTH:], both[..., :WIDTH]], -1),
        lambda both: both.unflatten(-1, (2, HEADS, -1)).transpose(-3, -2).flatten(-3),
    ):
        tensors = load_file(folder / TENSORS)
        changed = {name: change(value) for name, value in tensors.items() if "crossattention.c_attn." in name}
        save_file({key: value.contiguous() for key, value in (tensors | changed).items()}, tmp_path / "wrong" / TENSORS,
                  {"format": "pt"})  # fmt: skip
        assert (logits(tmp_path / "wrong") - right).abs().max() > 0.1 * right.abs().max()


def test_vllm_has_no_cross_attention(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=r"crossattention.* is of a cross attention; vLLM .* runs this model without"):
        paramtool.convert(folder, tmp_path / "out", target="vllm")
    assert not (tmp_path / "out").exists()
