"""Folders that transformers 5 writes under other names than its models have: their ties, and `load_model`.

The models are small ones of `zoo_models.py`; a few here, all in `make oracles`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import paramtool
import paramtool.torch
from tests.examples import IS_EVERY_MODEL
from tests.hostile.command import command, quick
from tests.laws.sharing import partition, raw
from tests.oracles import zoo_models

TIED = (
    "gemma3", "t5gemma2", "voxtral_realtime", "paligemma", "paddleocr_vl", "got_ocr2", "glmasr", "granite_speech",
    "granite_speech_plus", "kimi_k25",
)  # fmt: skip
"""Model types whose folders have the tied tensor under another name than the model."""
RENAMED = (*TIED, "mixtral", "qwen2_moe", "llava", "colpali", "sam3", "aya_vision", "internvl")
"""Model types whose folders have other names, or other tensors."""


def some(names: tuple[str, ...], *few: str) -> Any:
    """Parametrized: the first few of them, or all."""
    return pytest.mark.parametrize("model_type", names if IS_EVERY_MODEL else few)


def saved(model_type: str, folder: Path) -> nn.Module:
    """A small model, saved by transformers."""
    model = zoo_models.small(model_type)
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def values(model: nn.Module) -> dict[str, bytes]:
    return {name: raw(tensor) for name, tensor in model.state_dict().items()}


@some(TIED, "gemma3", "t5gemma2")
def test_ties_are_recorded_under_the_names_of_the_folder(model_type: str, tmp_path: Path) -> None:
    """The dropped name is there, is the tensor that it is tied to, and from_pretrained complains of nothing new."""
    model = saved(model_type, tmp_path / "in")
    ran = quick("dedup", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 0, ran
    before, after = load_file(tmp_path / "in/model.safetensors"), paramtool.load_file(tmp_path / "out")
    added = after.keys() - before.keys()
    assert added, "nothing was recorded"
    memory = {after[name].__array_interface__["data"][0] for name in before}
    assert all(after[name].__array_interface__["data"][0] in memory for name in added)
    found, told = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)  # type: ignore[attr-defined]
    assert not told["missing_keys"] and values(found) == values(model)


@pytest.mark.sample(2)
@some(RENAMED, "gemma3", "mixtral", "llava")
@pytest.mark.parametrize("how", ["filled", "meta"])
def test_load_model_takes_the_folder(model_type: str, how: str, tmp_path: Path) -> None:
    """`variants` says so beforehand; every value is as from_pretrained has it, and the ties are the model's."""
    model = saved(model_type, tmp_path / "in")
    paramtool.dedup(tmp_path / "in", tmp_path / "out")
    expected = type(model).from_pretrained(tmp_path / "in")  # type: ignore[attr-defined]
    target = zoo_models.small(model_type, seed=1, device="meta" if how == "meta" else "cpu")
    for folder in ("in", "out"):
        assert paramtool.torch.variants(target, tmp_path / folder)[0].loads
        loaded = paramtool.torch.load_model(target, tmp_path / folder)
        assert not loaded.missing and not loaded.unexpected
        assert values(target) == values(expected)
    assert partition(target.state_dict()) == partition(expected.state_dict())


def test_a_folder_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    """One expert of a Mixtral is missing: its layer cannot be made, and nothing in the model changes."""
    from safetensors.torch import save_file

    saved("mixtral", tmp_path / "in")
    tensors = load_file(tmp_path / "in/model.safetensors")
    gone = next(name for name in tensors if ".experts.1." in name)
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, tmp_path / "in/model.safetensors")
    target = zoo_models.small("mixtral", seed=1)
    before = values(target)
    assert not paramtool.torch.variants(target, tmp_path / "in")[0].loads
    with pytest.raises(paramtool.errors.PlanError):
        paramtool.torch.load_model(target, tmp_path / "in")
    assert values(target) == before


def test_a_tie_without_a_name_adds_nothing(tmp_path: Path) -> None:
    """A file of another model than the config's, and one that has the model in a section."""
    model = saved("gpt2", tmp_path / "in")
    torch.save({"w": torch.ones(3)}, tmp_path / "other.pt")
    torch.save({"model": model.state_dict()}, tmp_path / "whole.pt")
    for name in ("other.pt", "whole.pt"):
        paramtool.dedup(tmp_path / name, tmp_path / "without.safetensors", config="none", force=True)
        paramtool.dedup(tmp_path / name, tmp_path / "with.safetensors", config=tmp_path / "in", force=True)
        made = [(tmp_path / f"{one}.safetensors").read_bytes() for one in ("with", "without")]
        assert made[0] == made[1]


# --- config-ties: what the class says --------------------------------------------------------------------------------

COMPOSITE = (
    "internvl", "mistral3", "glmasr", "granite_speech", "deepseek_vl", "hyperclovax_vision_v2", "janus", "lighton_ocr",
    "modernvbert", "ovis2", "qwen3_vl_moe", "kimi_k25", "qwen2_5_omni_thinker", "minicpm_ocr",
)  # fmt: skip
"""Model types of whose fresh configs the parts say other things of the tie than the whole."""


@some(("bigbird_pegasus", *COMPOSITE), "bigbird_pegasus", "internvl")
def test_a_fresh_folder_is_as_its_class_says(model_type: str, tmp_path: Path) -> None:
    """Nothing is found in what transformers has just written, and dedup warns of nothing and loses nothing."""
    model = saved(model_type, tmp_path / "in")
    ran = quick("inspect", "in", "--config", "in", "--fail-on", "config-ties", cwd=tmp_path)
    assert ran.code == 0 and "DIVERGED" not in ran.out and "SHARED" not in ran.out, ran
    found = paramtool.inspect(tmp_path / "in", config="")
    state = model.state_dict()
    for row in found.config.rows:
        assert not row.by_name and type(model).__name__ in row.because
        if row.says is False and set(row.tie.names) <= state.keys():
            assert len({state[name].data_ptr() for name in row.tie.names}) == len(row.tie.names)
    assert paramtool.dedup(tmp_path / "in", tmp_path / "out").warnings == ()
    again, told = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)  # type: ignore[attr-defined]
    assert not told["missing_keys"] and values(again) == values(model)


def test_equal_bytes_that_the_class_does_not_tie_stay_two_names(tmp_path: Path) -> None:
    """BigBirdPegasusForCausalLM: by name its head would be tied, and from_pretrained would miss what is left out."""
    model = zoo_models.small("bigbird_pegasus", architecture="BigBirdPegasusForCausalLM")
    with torch.no_grad():
        model.lm_head.weight.copy_(model.get_input_embeddings().weight)  # type: ignore[union-attr, operator]
    model.save_pretrained(tmp_path / "in")  # type: ignore[operator]
    paramtool.dedup(tmp_path / "in", tmp_path / "out", min_equal_bytes=1)
    again, told = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)  # type: ignore[attr-defined]
    assert not told["missing_keys"] and values(again) == values(model)


def test_the_class_is_known_without_transformers(tmp_path: Path) -> None:
    """The same folder where transformers cannot be imported: the table says what the class ties, in the same words."""
    model = saved("gpt2", tmp_path / "in")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["lm_head.weight"] += 1
    torch.save(state, tmp_path / "in/pytorch_model.bin")
    (tmp_path / "in/model.safetensors").unlink()
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked/sitecustomize.py").write_text("import sys\nsys.modules['transformers'] = None\n")
    args = ("inspect", "in", "--config", "in", "--fail-on", "config-ties")
    ran = quick(*args, cwd=tmp_path)
    assert ran.code == 1 and "GPT2LMHeadModel of transformers" in ran.out and "by name" not in ran.out, ran
    paths = f"{tmp_path}/blocked:{Path(paramtool.__file__).parents[1]}"
    assert command(*args, cwd=tmp_path, env={"PYTHONPATH": paths})[:2] == ran[:2]


def test_a_tie_of_what_is_made_cannot_be_judged(tmp_path: Path) -> None:
    """Two layers of a Mixtral share their experts, which the file holds one by one: refused before anything changes."""
    saved("mixtral", tmp_path / "in")
    target = zoo_models.small("mixtral", seed=1)
    one, other = (layer.mlp.experts for layer in target.model.layers[:2])  # type: ignore[union-attr, index]
    other.down_proj = one.down_proj
    before = values(target)
    with pytest.raises(paramtool.errors.PlanError, match="cannot be told before loading"):
        paramtool.torch.load_model(target, tmp_path / "in")
    assert values(target) == before
