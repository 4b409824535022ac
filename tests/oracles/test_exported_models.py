"""Models out of the checkpoints of trainings: `export --only model`, opened by from_pretrained of transformers.

No name may be missing and none unexpected, each weight is that of the training, and names are tied where the config
ties them.  The models are built from small configs; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from paramtool.commands.export import export
from paramtool.errors import UsageError
from tests.hostile.command import quick

pytestmark = pytest.mark.usefixtures("quiet_training")
SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
HEAD, WORDS = "lm_head.weight", "model.embed_tokens.weight"


def settings(model: Any, folder: Path) -> None:
    """The files that save_pretrained writes beside the weights."""
    folder.mkdir(exist_ok=True)
    model.config.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def stepped(model: Any) -> torch.optim.Optimizer:
    """An optimizer that has made one step."""
    made = torch.optim.AdamW(model.parameters())
    words = torch.arange(3, 9)[None]
    model(input_ids=words, labels=words).loss.backward()
    made.step()
    return made


def of_trainer(model: Any, place: Path) -> tuple[Path, tuple[str, ...]]:
    """A checkpoint of the Trainer."""
    rows = [{"input_ids": torch.arange(3, 9), "labels": torch.arange(3, 9)} for _ in range(4)]
    args = TrainingArguments(str(place), max_steps=2, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    Trainer(model, args, train_dataset=rows, processing_class=tokenizer, data_collator=default_data_collator).train()
    return place / "checkpoint-2", ()


def of_accelerate(model: Any, place: Path) -> tuple[Path, tuple[str, ...]]:
    """What `save_state` writes, and the settings beside it."""
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(model, stepped(model))
    accelerator.save_state(str(place))
    settings(model, place)
    return place, ()


def of_lightning(model: Any, place: Path) -> tuple[Path, tuple[str, ...]]:
    """A checkpoint in the form of Lightning's, whose module has the model as `net`; the settings are beside it."""
    settings(model, place)
    optimizers = [stepped(model).state_dict()]
    state = {f"net.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 1, "state_dict": state, "optimizer_states": optimizers, "lr_schedulers": []},
               place / "last.ckpt")  # fmt: skip
    return place / "last.ckpt", ("--prefix", "net.")


def of_dcp(model: Any, place: Path) -> tuple[Path, tuple[str, ...]]:
    """What torch.distributed.checkpoint writes of a model and its optimizer, each tied name for itself."""
    made = stepped(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dcp.save({"model": state, "optimizer": made.state_dict()}, checkpoint_id=str(place), no_dist=True)
    settings(model, place)
    return place, ()


def of_fsdp(model: Any, place: Path) -> tuple[Path, tuple[str, ...]]:
    """The folders that accelerate writes with FSDP: the model in one, its optimizer in another."""
    made = stepped(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings(model, place)
    dcp.save({"model": state}, checkpoint_id=str(place / "pytorch_model_fsdp_0"), no_dist=True)
    dcp.save({"optimizer": made.state_dict()}, checkpoint_id=str(place / "optimizer_0"), no_dist=True)
    torch.save({"step": 3}, place / "random_states_0.pkl")
    return place, ()


def of_fsdp_inside(model: Any, place: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder of the model alone; its settings are beside it."""
    of_fsdp(model, place)
    return place / "pytorch_model_fsdp_0", ()


def of_full_fsdp(model: Any, place: Path) -> tuple[Path, tuple[str, ...]]:
    """The whole model in one file, as accelerate calls it."""
    settings(model, place)
    torch.save(stepped(model).state_dict(), place / "optimizer.bin")
    torch.save(model.state_dict(), place / "pytorch_model_fsdp.bin")
    return place, ()


KINDS = (of_trainer, of_accelerate, of_lightning, of_dcp, of_fsdp, of_fsdp_inside, of_full_fsdp)
Kind = Callable[[Any, Path], tuple[Path, tuple[str, ...]]]


def opened(folder: Path) -> Any:
    """The model, if no name is missing or unexpected."""
    model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    return model


def llama(tied: bool) -> Any:
    """A model with random weights."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))


@pytest.mark.sample(5)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
def test_from_pretrained_opens_it(kind: Kind, tied: bool, tmp_path: Path) -> None:
    """The model of the training, without its training, with its tokenizer."""
    model = llama(tied)
    path, more = kind(model, tmp_path / "in")
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ran = quick("export", path, "--only", "model", *more, "-o", tmp_path / "out", cwd=tmp_path)
    assert ran.code == 0, ran
    names = {one.name for one in (tmp_path / "out").iterdir()}
    assert names - {"generation_config.json"} == {
        "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert (HEAD in load_file(tmp_path / "out" / "model.safetensors")) is not tied
    found = opened(tmp_path / "out")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in found.state_dict().items())
    assert (found.lm_head.weight is found.model.embed_tokens.weight) is tied
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()["a"] == 0


def test_shards_as_they_are_asked_for(tmp_path: Path) -> None:
    path, _ = of_trainer(llama(False), tmp_path / "in")
    export(path, tmp_path / "out", only="model", max_shard_size=8000)
    assert (tmp_path / "out" / "model.safetensors.index.json").exists()
    opened(tmp_path / "out")


def saved(state: dict[str, torch.Tensor], model: Any, place: Path) -> Path:
    """A folder of torch.distributed.checkpoint with a model's config."""
    dcp.save({"model": state}, checkpoint_id=str(place), no_dist=True)
    settings(model, place)
    return place


def test_a_head_that_is_missing_and_not_tied(tmp_path: Path) -> None:
    """from_pretrained would make one of random numbers."""
    state = {name: tensor for name, tensor in llama(False).state_dict().items() if name != HEAD}
    with pytest.raises(UsageError, match=f"lacks 1 of 21 names:\n  {HEAD!r}"):
        export(saved(state, llama(False), tmp_path / "in"), tmp_path / "out", only="model")
    assert not (tmp_path / "out").exists()


def test_embeddings_that_are_saved_as_the_head(tmp_path: Path) -> None:
    """They get the name that from_pretrained looks for."""
    state = {name: tensor for name, tensor in llama(True).state_dict().items() if name != WORDS}
    found = export(saved(state, llama(True), tmp_path / "in"), tmp_path / "out", only="model")
    assert not found.warnings and load_file(tmp_path / "out" / "model.safetensors").keys() >= {WORDS}
    assert torch.equal(opened(tmp_path / "out").lm_head.weight, state[HEAD])


def test_a_tie_that_the_training_broke(tmp_path: Path) -> None:
    """Both are written, and the report says so: the config is wrong about this file."""
    model = llama(True)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state[HEAD] += 1
    found = export(saved(state, model, tmp_path / "in"), tmp_path / "out", only="model")
    assert any("they stay apart; both are written" in text and HEAD in text for text in found.warnings), found.warnings
    assert load_file(tmp_path / "out" / "model.safetensors").keys() >= {HEAD, WORDS}


def test_names_that_the_file_ties_and_the_config_does_not(tmp_path: Path) -> None:
    """Each is written for itself: from_pretrained misses neither."""
    state = dict(llama(True).state_dict())
    torch.save({"model": state, "optimizer": stepped(llama(True)).state_dict()}, tmp_path / "c.pt")
    settings(llama(False), tmp_path)
    export(tmp_path / "c.pt", tmp_path / "out", only="model")
    found = opened(tmp_path / "out")
    assert torch.equal(found.lm_head.weight, state[WORDS])
    assert found.lm_head.weight is not found.model.embed_tokens.weight


def test_names_that_the_model_does_not_have(tmp_path: Path) -> None:
    state = {**llama(False).state_dict(), "model.layers.0.extra": torch.ones(3)}
    found = export(saved(state, llama(False), tmp_path / "in"), tmp_path / "out", only="model")
    assert any("'model.layers.0.extra'" in text for text in found.warnings)


def test_without_a_config_it_says_what_is_missing(tmp_path: Path) -> None:
    torch.save({"model": llama(False).state_dict(), "optimizer": stepped(llama(False)).state_dict()}, tmp_path / "c.pt")
    found = export(tmp_path / "c.pt", tmp_path / "out", only="model")
    assert any("--config" in text for text in found.warnings)
    settings(llama(False), tmp_path / "settings")
    export(
        tmp_path / "c.pt",
        tmp_path / "other",
        only="model",
        config=tmp_path / "settings",
        format="safetensors",
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "other").get_vocab()["a"] == 0
    opened(tmp_path / "other")


def test_the_flag_that_brings_a_config_makes_a_folder(tmp_path: Path) -> None:
    """The warning of an export without it names the flag alone: an output without a suffix is a folder with it."""
    torch.save({"model": llama(False).state_dict(), "optimizer": stepped(llama(False)).state_dict()}, tmp_path / "c.pt")
    settings(llama(False), tmp_path / "settings")
    export(tmp_path / "c.pt", tmp_path / "out", only="model", config=tmp_path / "settings")
    opened(tmp_path / "out")
    export(tmp_path / "c.pt", tmp_path / "out.pt", only="model", config=tmp_path / "settings")
    assert torch.load(tmp_path / "out.pt").keys() == llama(False).state_dict().keys()


def test_a_config_beside_and_one_that_is_given_leave_out_the_same(tmp_path: Path) -> None:
    """Of names that are tied and equal, the first is written, though a checkpoint of DCP stores both."""
    state = {name: value.clone() for name, value in llama(True).state_dict().items()}
    dcp.save({"model": state}, checkpoint_id=tmp_path / "c", no_dist=True)
    settings(llama(True), tmp_path / "settings")
    given = export(tmp_path / "c", tmp_path / "given", only="model", config=tmp_path / "settings")
    config = (tmp_path / "settings/config.json").read_bytes()
    (tmp_path / "c/config.json").write_bytes(config)
    beside = export(tmp_path / "c", tmp_path / "beside", only="model")
    assert "lm_head.weight" not in given.names and [*given.names] == [*beside.names]
    assert not any("separately" in text for text in given.warnings)
