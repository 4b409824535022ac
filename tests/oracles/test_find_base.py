"""`find_base` of models that transformers saved: without a head, in its two forms, in half precision, in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from paramtool.commands.diff.find_base import find_base
from tests.oracles.dialects import converting

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip


def llama(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def mixtral(seed: int) -> MixtralForCausalLM:
    torch.manual_seed(seed)
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4))


def tuned(model: Any) -> Any:
    """The model after a small step in every weight."""
    torch.manual_seed(9)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 1e-4)
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, each saved in many ways, and fine-tunes of the first."""
    place = tmp_path_factory.mktemp("bases")
    for name, seed in (("base", 1), ("other", 2)):
        model = llama(seed)
        model.save_pretrained(place / name)
        model.model.save_pretrained(place / f"{name} alone")
        model.save_pretrained(place / f"{name} in shards", max_shard_size="20KB")
        llama(seed).bfloat16().save_pretrained(place / f"{name} in half")
        for dialect in ("vllm", "meta", "megatron"):
            converting.convert(place / name, place / f"{name} of {dialect}", dialect)
        for form in (4, 5):
            mixtral(seed).save_pretrained(place / f"{name} of experts, {form}", save_original_format=form == 4)
    one = tuned(llama(1))
    one.save_pretrained(place / "tuned")
    one.model.save_pretrained(place / "tuned alone")
    one.resize_token_embeddings(80)
    one.bfloat16().save_pretrained(place / "tuned with more words", max_shard_size="30KB")
    for form in (4, 5):
        tuned(mixtral(1)).save_pretrained(place / f"tuned experts, {form}", save_original_format=form == 4)
    return place


NAMED = ("", " alone", " in shards", " in half")
DIALECTS = (" of vllm", " of meta", " of megatron")


def is_named(place: Path, of: str, kind: str) -> str:
    """How the base was found; the other model, saved as it is, is far away."""
    assert list((place / f"other{kind}").iterdir())
    found = find_base(place / of, [place / f"other{kind}", place / f"base{kind}"])
    assert found.base == str(place / f"base{kind}"), found
    near, far = found.candidates
    assert near.distance < 0.01 and 1.3 < far.distance < 1.5 and near.sampled == far.sampled >= 5
    assert near.how == far.how
    return near.how


@pytest.mark.parametrize("kind", [*NAMED, *DIALECTS])
@pytest.mark.parametrize("of", ["tuned", "tuned with more words"])
def test_a_base_saved_in_another_way(of: str, kind: str, place: Path) -> None:
    how = is_named(place, of, kind)
    wanted = {" alone": "'' -> 'model.' in front of names", **{one: one.removeprefix(" of ") for one in DIALECTS}}
    assert how == wanted.get(kind, "")


@pytest.mark.parametrize("kind", NAMED)
def test_a_fine_tune_without_its_head(kind: str, place: Path) -> None:
    assert is_named(place, "tuned alone", kind) == ("" if kind == " alone" else "'model.' -> '' in front of names")


@pytest.mark.parametrize("form", [4, 5])
@pytest.mark.parametrize("of", [4, 5])
def test_a_mixture_of_experts_in_its_two_forms(of: int, form: int, place: Path) -> None:
    """By names if both are of one form; experts apart and in stacks are found by the dialect of the base."""
    how = is_named(place, f"tuned experts, {of}", f" of experts, {form}")
    assert how == ("" if of == form else f"transformers-{form}")


def test_one_norm_in_common_makes_no_base(place: Path) -> None:
    """Meta's names have `norm.weight` in common with a model alone: ones, as in every model."""
    found = find_base(place / "tuned alone", [place / "base of meta"])
    assert not found.base and found.candidates[0].why
