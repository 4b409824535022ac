"""Real models, saved, deduplicated and opened again by the programs people use: the same logits, bit for bit.

The models are `docs/examples/real_models.py`: built from small configs, seeded, nothing downloaded.  How variants of
them meet is in `test_real_models_variants.py`, how training goes on in `test_real_models_training.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import huggingface_hub
import pytest
import safetensors.torch
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from tests.hostile.command import quick
from tests.laws.sharing import partition
from tests.oracles.real_models import EVERY, OF_TRANSFORMERS, Made, complaints, examples, made, results, single_thread

__all__ = ["made", "single_thread"]  # fixtures
CONFIG_SAYS_LESS = ("BERT without a head", "BART encoder")
"""Models that no config.json stands for: a pooler is left out by an argument, and an encoder is no class of its own."""
OF_CONFIGS = [name for name in OF_TRANSFORMERS if name not in CONFIG_SAYS_LESS]


# --- from_pretrained -------------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("source", ["small", "small.safetensors"], ids=["folder", "state dict"])
@pytest.mark.parametrize("made", OF_TRANSFORMERS, indirect=True)
def test_from_pretrained_of_every_name(made: Made, source: str, tmp_path: Path) -> None:
    """`export --all-names` of a deduplicated folder, or of one file with the config put beside."""
    opened_as_saved(made, exported(made, source, tmp_path, "--all-names"))


@pytest.mark.sample(8)
@pytest.mark.parametrize("source", ["small", "small.safetensors"], ids=["folder", "state dict"])
@pytest.mark.parametrize("made", OF_CONFIGS, indirect=True)
def test_from_pretrained_of_the_keys_of_the_config(made: Made, source: str, tmp_path: Path) -> None:
    """The same by what the config's model is called: a Mixtral's experts one by one where the folder has them so."""
    opened_as_saved(made, exported(made, source, tmp_path, "--config", made.folder / "hf/config.json"))


@pytest.mark.sample(5)
@pytest.mark.parametrize("made", OF_TRANSFORMERS, indirect=True)
def test_from_pretrained_of_torchs_own_format(made: Made, tmp_path: Path) -> None:
    """`dedup -o pytorch_model.bin` needs no export: every name is in it."""
    made.model.config.save_pretrained(tmp_path)  # type: ignore[union-attr, operator]
    dedup_command.dedup(made.folder / "m.pt", tmp_path / "pytorch_model.bin", min_equal_bytes=1)
    opened_as_saved(made, tmp_path)


@pytest.mark.parametrize("made", ["Mixtral"], indirect=True)
def test_names_that_only_from_pretrained_knows(made: Made, tmp_path: Path) -> None:
    """An export whose names are not the model's own says so; of a state dict it is the model's own that are written."""
    config = made.folder / "hf/config.json"
    for source, own in (("small", False), ("small.safetensors", True)):
        ran = quick("export", made.folder / source, "--config", config, "-o", f"of.{source}", cwd=tmp_path)
        assert ran.code == 0 and ("save_pretrained" in ran.err) != own, ran
        names = paramtool.read(tmp_path / f"of.{source}").entries.keys()
        assert (names == made.model.state_dict().keys()) == own
    ran = quick("export", made.folder / "m.pt", "--config", config, "--prefix", "model.", "-o", "o", cwd=tmp_path)
    assert ran.code == 2 and "mlp.experts.gate_up_proj" in ran.err, ran


@pytest.mark.parametrize("made", CONFIG_SAYS_LESS, indirect=True)
def test_a_config_that_stands_for_another_model(made: Made, tmp_path: Path) -> None:
    """It is refused for what the file lacks, or for the class; the names of the model itself are enough."""
    ran = quick("export", made.folder / "small", "--config", made.folder / "small", "-o", "plain", cwd=tmp_path)
    code, says = {"BERT without a head": (2, "pooler.dense.weight"), "BART encoder": (3, "BartEncoder")}[made.name]
    assert ran.code == code and says in ran.err and not (tmp_path / "plain").exists()
    export_command.export(made.folder / "small", tmp_path / "plain", names=list(made.model.state_dict()))
    opened_as_saved(made, tmp_path / "plain")


def exported(made: Made, source: str, folder: Path, *how: object) -> Path:
    """A folder that `paramtool export` wrote; of a file, the config is put beside it."""
    output = folder / "plain"
    if source == "small.safetensors":
        output.mkdir()
        made.model.config.save_pretrained(output)  # type: ignore[union-attr, operator]
    to = output / "model.safetensors" if source == "small.safetensors" else output
    ran = quick("export", made.folder / source, *how, "-o", to, cwd=folder)
    assert ran.code == 0, ran
    return output


def opened_as_saved(made: Made, folder: Path) -> None:
    """`from_pretrained` misses nothing and finds nothing unexpected; logits, values and ties are those of the model."""
    found, info = type(made.model).from_pretrained(folder, output_loading_info=True, **made.spec.more)  # type: ignore
    assert complaints(info) == {}
    as_the_original(made, found)


def as_the_original(made: Made, found: nn.Module) -> None:
    """The same logits, bit for bit, and the same names sharing memory."""
    assert torch.equal(results(found), made.results)
    assert ties(found) == ties(made.model)


def ties(model: nn.Module) -> list[list[str]]:
    """Names that are one parameter."""
    groups: dict[tuple[int, torch.Size], list[str]] = {}
    for name, tensor in model.state_dict().items():
        groups.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
    return sorted(groups.values())


# --- load_model ------------------------------------------------------------------------------------------------------


@pytest.mark.sample(8)
@EVERY
@pytest.mark.parametrize("output", ["small.safetensors", "small.pt"])
@pytest.mark.parametrize("how", ["copy", "assign", "meta", "meta assign"])
def test_load_model(made: Made, output: str, how: str) -> None:
    """Into a fresh model with other values, or without any: the same logits, bit for bit, sharing as the model does."""
    target = made.spec.build(seed=1)
    assert not torch.equal(results(target), made.results)
    others = {name: tensor.clone() for name, tensor in target.named_buffers()}
    if "meta" in how:
        with torch.device("meta"):
            target = made.spec.blank()
    (variant,) = paramtool.torch.variants(target, made.folder / output)
    assert variant.loads and not variant.unused
    loaded = paramtool.torch.load_model(target, made.folder / output, assign="assign" in how)
    assert loaded.missing == loaded.unexpected == ()
    for name in loaded.on_meta:  # buffers that are in no file: what their class computes
        module, _, attribute = name.rpartition(".")
        target.get_submodule(module).register_buffer(attribute, others[name], persistent=False)
    assert torch.equal(results(target), made.results)
    assert partition(target.state_dict()) == partition(made.model.state_dict())


@pytest.mark.parametrize("made", OF_TRANSFORMERS, indirect=True)
def test_load_model_of_a_folder_of_save_pretrained(made: Made) -> None:
    """`load_model` knows the names that save_pretrained writes, a Mixtral's too, and `variants` says so."""
    target = made.spec.build(seed=1)
    (variant,) = paramtool.torch.variants(target, made.folder / "small")
    assert variant.loads
    paramtool.torch.load_model(target, made.folder / "small")
    as_the_original(made, target)


# --- the loaders of others -------------------------------------------------------------------------------------------

LOADERS: dict[str, Callable[[nn.Module, Path], Any]] = {
    "torch": lambda model, path: model.load_state_dict(safetensors.torch.load_file(path)),
    "accelerate": lambda model, path: accelerate.load_checkpoint_in_model(model, str(path)),
    "huggingface_hub": lambda model, path: huggingface_hub.load_torch_model(model, path, strict=True),
}
"""Each on the model's own names: they know of no other."""


@pytest.mark.sample(16)
@EVERY
@pytest.mark.parametrize("loader", LOADERS)
def test_stock_loaders_of_an_export(made: Made, loader: str, tmp_path: Path) -> None:
    """`export --all-names` is a plain file: every name a tensor, and whoever loads it needs to know no tie."""
    export_command.export(made.folder / "small.safetensors", tmp_path / "model.safetensors", all_names=True)
    target = made.spec.build(seed=1)
    LOADERS[loader](target, tmp_path / "model.safetensors")
    as_the_original(made, target)


@EVERY
def test_stock_safetensors(made: Made) -> None:
    """Its `load_model` wants one name of each tie, as `dedup --no-equal` stores them, and no windows on one buffer."""
    target = examples.MODELS[made.name].build(seed=1)
    if isinstance(target, examples.Recurrent):
        target = examples.Model(examples.Recurrent, sizes=made.spec.sizes | {"flat": False}).build(seed=1)
    missing, unexpected = safetensors.torch.load_model(target, made.folder / "tied.safetensors")
    assert (list(missing), list(unexpected)) == ([], [])
    assert torch.equal(results(target), made.results)
    assert ties(target) == ties(made.model)


@EVERY
def test_torch_load_of_the_pt(made: Made) -> None:
    """torch itself opens the `.pt` output, mapped or not: what is tied shares memory, and what is equal does not."""
    for mapped in (False, True):
        state = torch.load(made.folder / "small.pt", weights_only=True, mmap=mapped)
        assert partition(state) == partition(made.model.state_dict())
    target = made.spec.build(seed=1)
    target.load_state_dict(state)
    as_the_original(made, target)


@EVERY
def test_the_files_are_smaller_and_hold_what_was_planted(made: Made) -> None:
    """Every pair that is equal by chance is stored once and stands apart; a tie is one memory."""
    checkpoint = paramtool.read(made.folder / "small.safetensors")
    entries = checkpoint.entries
    pairs = list(examples.equal_by_chance(made.model))
    assert pairs
    for first, second in pairs:
        assert entries[first].value == entries[second].value
        assert entries[second].link.alias_set == second  # type: ignore[union-attr]
    stored = sum(tensor.nbytes for tensor in safetensors.torch.load_file(made.folder / "small.safetensors").values())
    distinct = {(t.data_ptr(), t.shape): t.nbytes for t in made.model.state_dict().values()}
    planted = sum(made.model.get_parameter(second).nbytes for _, second in pairs)
    assert stored == sum(distinct.values()) - planted
