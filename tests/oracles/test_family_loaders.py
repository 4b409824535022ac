"""Folders of a family opened by the programs that people load checkpoints with.

transformers, accelerate and huggingface_hub, on models that transformers itself builds from small configs and saves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
from paramtool.commands import dedup_many
from tests.laws.sharing import raw

transformers = pytest.importorskip("transformers", reason="the oracle of whole models; not among what every test needs")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 257, "n_positions": 32}
LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 257, "max_position_embeddings": 64,
}  # fmt: skip
TOKENS = torch.arange(20).reshape(2, 10)
Made = dict[str, Any]


def family(kind: str) -> tuple[Any, Made]:
    """A base, a model whose last layer was tuned, one with another head, and one that a stranger trained."""
    torch.manual_seed(0)
    if kind == "gpt2":
        config, make = transformers.GPT2Config(**GPT2), transformers.GPT2LMHeadModel
    else:
        tied = kind == "llama tied"
        config, make = transformers.LlamaConfig(**LLAMA, tie_word_embeddings=tied), transformers.LlamaForCausalLM
    base = make(config)
    models = {"base": base, "tuned": make(config), "headed": make(config), "stranger": make(config)}
    for name in ("tuned", "headed"):
        models[name].load_state_dict(base.state_dict())
    with torch.no_grad():
        for name, parameter in models["tuned"].named_parameters():
            if ".2." in name:
                parameter += 0.5
        models["headed"].get_output_embeddings().weight.mul_(2)
    return make, {name: model.eval() for name, model in models.items()}


@pytest.fixture(params=["gpt2", "llama", "llama tied"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Made, dedup_many.Family]:
    """The models, and the folders of what transformers saved of them."""
    make, models = family(request.param)
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    found = dedup_many.dedup_family([tmp_path / name for name in models], tmp_path / "out")
    return make, models, found


def same_state(expected: torch.nn.Module, found: torch.nn.Module) -> bool:
    """Every tensor bit for bit, and the same ties."""
    mine, theirs = expected.state_dict(), found.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(raw(mine[name]) == raw(theirs[name]) for name in mine)
    return len({t.data_ptr() for t in mine.values()}) == len({t.data_ptr() for t in theirs.values()})


def test_much_is_shared(written: tuple[Any, Made, dedup_many.Family]) -> None:
    """Three relatives take hardly more than one and a stranger; with the stranger nothing large is shared."""
    found = written[2]
    stranger = next(member for member in found.members if member.input.endswith("stranger"))
    others = [member for member in found.members if member is not stranger]
    assert stranger.own > 0.95 * (stranger.own + stranger.shared_by_all + stranger.shared_by_some)
    assert all(member.own < 0.5 * stranger.own for member in others)
    assert found.nbytes_after < 0.75 * found.nbytes_before
    for member in found.members:
        weights = [path for path in member.files if path.endswith((".safetensors", ".index.json"))]
        sizes = {os.stat(path).st_ino: os.stat(path).st_size for path in weights}
        assert sum(sizes.values()) == member.nbytes_after


def test_transformers(written: tuple[Any, Made, dedup_many.Family]) -> None:
    """from_pretrained: no name missing, none unexpected, none of another shape; the same logits bit for bit."""
    make, models, found = written
    for member, model in zip(found.members, models.values(), strict=True):
        loaded, info = make.from_pretrained(member.folder, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        assert same_state(model, loaded)
        with torch.no_grad():
            assert torch.equal(model(TOKENS).logits, loaded.eval()(TOKENS).logits)


def test_accelerate(written: tuple[Any, Made, dedup_many.Family]) -> None:
    """load_checkpoint_in_model fills a model whose weights were something else."""
    from accelerate import load_checkpoint_in_model

    _, models, found = written
    for member, model in zip(found.members, models.values(), strict=True):
        other = type(model)(model.config)
        load_checkpoint_in_model(other, member.folder)
        assert same_state(model, other)


def test_huggingface_hub(written: tuple[Any, Made, dedup_many.Family]) -> None:
    """load_torch_model finds every name that is stored, and no other; what it misses is the model's own tie."""
    from huggingface_hub import load_torch_model

    _, models, found = written
    for member, model in zip(found.members, models.values(), strict=True):
        other = type(model)(model.config)
        missed = load_torch_model(other, member.folder, strict=False)
        assert not missed.unexpected_keys
        tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        assert set(missed.missing_keys) == tied
        assert same_state(model, other)


def test_paramtool(written: tuple[Any, Made, dedup_many.Family]) -> None:
    """Our own loader, strictly."""
    from paramtool.torch import load_model

    _, models, found = written
    for member, model in zip(found.members, models.values(), strict=True):
        other = type(model)(model.config)
        load_model(other, member.folder)
        assert same_state(model, other)


def test_renamed_names_are_missed_by_others(tmp_path: Path) -> None:
    """Why --share-renamed is off by default: transformers then makes up what it does not find; our loader finds it."""
    make, models = family("llama")
    model = models["base"]
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.copy_(model.model.layers[0].mlp.up_proj.weight)
    for name in ("base", "tuned"):
        models[name].save_pretrained(tmp_path / name)
    dedup_many.dedup_family([tmp_path / "base", tmp_path / "tuned"], tmp_path / "out", share_renamed=True)
    folder = tmp_path / "out" / "base"
    _, info = make.from_pretrained(folder, output_loading_info=True)
    assert "model.layers.1.mlp.up_proj.weight" in info["missing_keys"] and not info["unexpected_keys"]
    expected = model.state_dict()
    assert {name: raw(array) for name, array in paramtool.load_file(folder).items()} == {
        name: raw(tensor) for name, tensor in expected.items()
    }
