"""Folders of diffusers and PEFT: their own loaders open an output as they open the input, tensor by tensor.

A handful of models; all of them in `make oracles` (PARAMTOOL_EVERY_MODEL=1).  The models are built from small configs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import dedup_many
from paramtool.commands import export as export_command
from paramtool.commands import verify as verify_command
from tests.examples import IS_EVERY_MODEL
from tests.hostile.command import contents, quick
from tests.laws.sharing import raw
from tests.oracles import library_models
from tests.oracles.library_models import DIFFUSERS, PEFT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: pip install --group test")
    peft = pytest.importorskip("peft", reason="PEFT is not installed: pip install --group test")

pytestmark = pytest.mark.filterwarnings("ignore")
"""Of these libraries, about their own next versions."""
SOME_DIFFUSERS = ["UNet2DConditionModel", "AutoencoderKL", "FluxTransformer2DModel", "ControlNetModel"]
SOME_PEFT = ["LoRA", "LoRA with modules to save", "IA3", "prefix tuning"]
STEM = "diffusion_pytorch_model"


def chosen(every: Iterable[str], some: list[str]) -> list[str]:
    """All names, or those of a few."""
    return list(every) if IS_EVERY_MODEL else some


def same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """The same names, dtypes, shapes and bytes."""
    assert found.keys() == expected.keys() != set()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape, raw(found[name])) == (tensor.dtype, tensor.shape, raw(tensor)), (
            name
        )


def opened(kind: Any, folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    """What `from_pretrained` makes of a folder; of an output from safetensors only."""
    state: dict[str, torch.Tensor] = kind.from_pretrained(folder, **options).state_dict()
    return state


def test_there_are_as_many_as_were_found_broken() -> None:
    """33 models of diffusers and 24 of PEFT could not be opened once; there are more here."""
    assert len(DIFFUSERS) >= 33 and len(PEFT) >= 24
    assert {*SOME_DIFFUSERS} <= DIFFUSERS.keys() and {*SOME_PEFT} <= PEFT.keys()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", chosen(DIFFUSERS, SOME_DIFFUSERS))
def test_diffusers_opens_its_models(name: str, tmp_path: Path) -> None:
    """As one file; and paramtool finds the weights again, and knows its own output."""
    model = library_models.diffusers_model(name)
    model.save_pretrained(tmp_path / "in")
    dedup_command.dedup(tmp_path / "in", tmp_path / "out")
    assert sorted(contents(tmp_path / "out")) == ["config.json", f"{STEM}.safetensors"]
    expected = opened(type(model), tmp_path / "in")
    same(expected, model.state_dict())
    same(opened(type(model), tmp_path / "out", use_safetensors=True), expected)
    assert verify_command.verify(tmp_path / "out", tmp_path / "in").differences == ()
    dedup_command.dedup(tmp_path / "in", tmp_path / "out", force=True)


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "shards": ({"max_shard_size": "40KB"}, {}),
    "shards made here": ({}, {"max_shard_size": 40_000}),
    "pickle": ({"safe_serialization": False}, {}),
    "shards of pickle": ({"safe_serialization": False, "max_shard_size": "40KB"}, {"max_shard_size": 40_000}),
    "a variant": ({"variant": "fp16"}, {}),
    "shards of a variant": ({"variant": "fp16", "max_shard_size": "40KB"}, {"max_shard_size": 40_000}),
}
"""{form: (options of save_pretrained, options of dedup)}"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", chosen(DIFFUSERS, SOME_DIFFUSERS[:2]))
def test_diffusers_opens_all_forms(name: str, form: str, tmp_path: Path) -> None:
    """Shards, pickles and variants: index and shards have the names that diffusers looks for."""
    saving, options = FORMS[form]
    model = library_models.diffusers_model(name)
    model.save_pretrained(tmp_path / "in", **saving)
    found = dedup_command.dedup(tmp_path / "in", tmp_path / "out", **options)
    which = {"variant": saving["variant"]} if "variant" in saving else {}
    same(opened(type(model), tmp_path / "out", use_safetensors=True, **which), model.state_dict())
    assert found.left_out == ()
    assert verify_command.verify(tmp_path / "out", tmp_path / "in").differences == ()
    dedup_command.dedup(tmp_path / "in", tmp_path / "out", force=True)
    export_command.export(tmp_path / "out", tmp_path / "plain", all_names=True)
    same(opened(type(model), tmp_path / "plain", use_safetensors=True, **which), model.state_dict())


@pytest.mark.sample(5)
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("name", chosen(PEFT, SOME_PEFT))
def test_peft_opens_its_adapters(name: str, safe: bool, tmp_path: Path) -> None:
    """On the same language model: every tensor of the whole."""
    model = library_models.peft_model(name)
    model.save_pretrained(tmp_path / "in", safe_serialization=safe)
    dedup_command.dedup(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    found, before = (_adapted(tmp_path / name) for name in ("out", "in"))
    same(found.state_dict(), before.state_dict())
    kept = peft.get_peft_model_state_dict(model)
    same(peft.get_peft_model_state_dict(found), kept)
    dedup_command.dedup(tmp_path / "in", tmp_path / "out", force=True)


def _adapted(folder: Path) -> Any:
    """The language model with the adapter of a folder; what the folder lacks is made from the same random numbers."""
    return peft.PeftModel.from_pretrained(library_models.language_model(), folder).eval()


def test_a_family_of_diffusers_and_one_of_peft(tmp_path: Path) -> None:
    """Folders of a family keep the names, too."""
    models = [library_models.diffusers_model("UNet2DConditionModel") for _ in range(2)]
    with torch.no_grad():
        next(iter(models[1].parameters())).add_(1)
    for k, model in enumerate(models):
        model.save_pretrained(tmp_path / f"unet-{k}")
    dedup_many.dedup_family([tmp_path / "unet-0", tmp_path / "unet-1"], tmp_path / "unets")
    for k, model in enumerate(models):
        same(opened(type(model), tmp_path / "unets" / f"unet-{k}", use_safetensors=True), model.state_dict())
        assert verify_command.verify(tmp_path / "unets" / f"unet-{k}", tmp_path / f"unet-{k}").differences == ()


# --- several sets -----------------------------------------------------------------------------------------------------


def parts(pipe: Any) -> dict[str, torch.Tensor]:
    """{part and name: tensor} of a pipeline's models."""
    models = {name: getattr(pipe, name) for name in ("unet", "vae", "text_encoder")}
    return {f"{part}/{name}": value for part, model in models.items() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("options", [(), ("--max-shard-size", "40kB")], ids=["one file", "shards"])
def test_a_pipeline(options: tuple[str, ...], tmp_path: Path) -> None:
    """Refused with its parts listed; `--each` writes a pipeline that diffusers opens, and --force replaces it."""
    pipe = library_models.pipeline()
    pipe.save_pretrained(tmp_path / "pipe")
    for args in (("dedup", "pipe"), ("inspect", "pipe"), ("export", "pipe", "--all-names", "-o", "out")):
        ran = quick(*args, cwd=tmp_path)
        assert ran.code == 2 and all(part in ran.err for part in ("unet/", "vae/", "text_encoder/", "--each")), ran
    before = contents(tmp_path / "pipe")
    for more in ((), ("--force",)):
        ran = quick("dedup", "pipe", "--each", "-o", "out", *options, *more, cwd=tmp_path)
        assert ran.code == 0, ran
        found = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path / "out", use_safetensors=True)
        same(parts(found), parts(pipe))
    assert quick("dedup", "pipe", "--each", "-o", "out", cwd=tmp_path).code == 7
    assert contents(tmp_path / "pipe") == before
    others = {name for name in before if ".safetensors" not in name}
    assert {name: contents(tmp_path / "out")[name] for name in others} == {name: before[name] for name in others}
    (tmp_path / "out" / "unet" / "diary.txt").write_text("precious")
    ran = quick("dedup", "pipe", "--each", "-o", "out", "--force", cwd=tmp_path)
    assert ran.code == 7 and "unet/diary.txt" in ran.err, ran


def test_a_pipeline_with_variants(tmp_path: Path) -> None:
    """Both variants of every part are written, each under its own name."""
    pipe = library_models.pipeline()
    pipe.save_pretrained(tmp_path / "pipe")
    pipe.to(torch.float16).save_pretrained(tmp_path / "pipe", variant="fp16")
    ran = quick("dedup", "pipe/unet", cwd=tmp_path)
    assert ran.code == 2 and f"{STEM}.fp16.safetensors" in ran.err and "--weights" in ran.err, ran
    dedup_command.dedup_each(tmp_path / "pipe", tmp_path / "out")
    for which in ({}, {"variant": "fp16", "torch_dtype": torch.float16}):
        found, expected = (
            diffusers.StableDiffusionPipeline.from_pretrained(tmp_path / name, use_safetensors=True, **which)
            for name in ("out", "pipe")
        )
        same(parts(found), parts(expected))


def test_export_of_a_pipeline(tmp_path: Path) -> None:
    """`export --all-names --each`."""
    pipe = library_models.pipeline()
    pipe.save_pretrained(tmp_path / "pipe")
    ran = quick("export", "pipe", "--each", "--all-names", "-o", "out", cwd=tmp_path)
    assert ran.code == 0, ran
    same(parts(diffusers.StableDiffusionPipeline.from_pretrained(tmp_path / "out")), parts(pipe))
    assert paramtool.read(tmp_path / "out" / "vae").producer == ""
