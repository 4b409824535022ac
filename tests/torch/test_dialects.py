"""`load_model` of transformers' models from files in both of its dialects, and from files in others."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import paramtool
import paramtool.torch
from paramtool.errors import ModelError
from tests.hostile.command import quick

SIZES: dict[str, Any] = {
    "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32,
}  # fmt: skip


def llama() -> transformers.PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, "head_dim": 4}))


def mixtral() -> transformers.PreTrainedModel:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=3))


def qwen3_moe() -> transformers.PreTrainedModel:
    """Tied embeddings."""
    config = transformers.Qwen3MoeConfig(
        **SIZES, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=12, decoder_sparse_step=1,
        tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.Qwen3MoeForCausalLM(config)


Maker = Callable[[], transformers.PreTrainedModel]


def logits(model: transformers.PreTrainedModel) -> torch.Tensor:
    model.train(False)
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(12).view(2, 6)).logits
    return found


def saved(make: Maker, folder: Path) -> tuple[transformers.PreTrainedModel, Path]:
    """A model, and the folder that transformers makes of it: transformers-4."""
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(folder / "model")
    return model, folder / "model"


@pytest.mark.parametrize("make", [mixtral, qwen3_moe, llama])
def test_both_dialects_of_transformers(tmp_path: Path, make: Maker) -> None:
    """The converted folder gives the model and from_pretrained the same logits, bit by bit."""
    model, folder = saved(make, tmp_path)
    folders = [folder]
    if make is not llama:  # whose two dialects are one
        paramtool.convert(folder, tmp_path / "memory", target="transformers-5")
        folders.append(tmp_path / "memory")
        model.save_pretrained(tmp_path / "own", save_original_format=False)
        assert not paramtool.verify(tmp_path / "memory", tmp_path / "own").differences
    for one in folders:
        for assign in (False, True):
            torch.manual_seed(1)
            other = make()
            assert not torch.equal(logits(other), logits(model))
            found = paramtool.torch.load_model(other, one, assign=assign)
            assert not found.missing and not found.unexpected
            assert torch.equal(logits(other), logits(model))
            tied = other.get_parameter("model.embed_tokens.weight") is other.get_parameter("lm_head.weight")
            assert tied == (make is qwen3_moe)
        assert torch.equal(logits(type(model).from_pretrained(one)), logits(model))
        (verdict,) = paramtool.torch.variants([make()], one)
        assert verdict.loads


@pytest.mark.parametrize(("make", "dialect"), [(mixtral, "vllm"), (mixtral, "megatron"), (llama, "vllm"),
                                               (llama, "megatron"), (llama, "meta")])  # fmt: skip
def test_another_dialect_says_what_to_do(tmp_path: Path, make: Maker, dialect: str) -> None:
    """The command of the hint is run, and what it writes loads."""
    model, folder = saved(make, tmp_path)
    paramtool.convert(folder, tmp_path / "there", target=dialect)
    with pytest.raises(ModelError) as refused:
        paramtool.torch.load_model(make(), tmp_path / "there")
    line = refused.value.hint.split("`")[1]
    ran = quick(*shlex.split(line)[1:], cwd=tmp_path)
    assert ran.code == 0, ran
    other = make()
    paramtool.torch.load_model(other, tmp_path / "out")
    assert torch.equal(logits(other), logits(model))


def test_another_model_has_no_such_hint(tmp_path: Path) -> None:
    _, folder = saved(llama, tmp_path)
    paramtool.convert(folder, tmp_path / "there", target="vllm")
    with pytest.raises(ModelError) as refused:
        paramtool.torch.load_model(mixtral(), tmp_path / "there")
    assert "convert" not in refused.value.hint


def test_what_does_not_fit_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    """transformers makes one tensor of a list of experts, of which one is missing."""
    from safetensors.torch import load_file, save_file

    model, folder = saved(mixtral, tmp_path)
    path, name = folder / "model.safetensors", "model.layers.0.block_sparse_moe.experts.1.w2.weight"
    state = load_file(path)
    save_file({key: one for key, one in state.items() if key != name}, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"made of 'model.*experts\.0\.w2\.weight' and 1 tensor more\): has shape"):
        paramtool.torch.load_model(model, folder)
    save_file({**state, "more.weight": torch.ones(2)}, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 name \('more\.weight'\)\nhint: strict=False"):
        paramtool.torch.load_model(model, folder)


def test_a_base_model_goes_into_that_part_of_a_model_with_a_head(tmp_path: Path) -> None:
    """from_pretrained adds the prefix, and takes it off; here the error says which part, and it loads."""
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    base, model = transformers.BertModel(config), transformers.BertForSequenceClassification(config)
    base.save_pretrained(tmp_path / "base")
    with pytest.raises(ModelError) as error:
        paramtool.torch.load_model(model, tmp_path / "base")
    assert "the prefix 'bert.' only in the model: load the file into that part of it" in error.value.hint
    paramtool.torch.load_model(model.bert, tmp_path / "base")
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base")
    assert all(torch.equal(one, theirs.bert.state_dict()[name]) for name, one in model.bert.state_dict().items())
    model.save_pretrained(tmp_path / "head")
    paramtool.torch.load_model(other := transformers.BertModel(config), tmp_path / "head", prefix="bert")
    assert all(torch.equal(one, base.state_dict()[name]) for name, one in other.state_dict().items())
