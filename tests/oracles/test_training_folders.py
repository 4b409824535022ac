"""Folders of a training whose model is converted: transformers' Trainer and accelerate go on with other parameters.

Twenty steps, a command, twenty more with a model whose parameters are joined or split, in float64: losses and weights
are those of forty steps without a stop.  Llama and Phi-3 are one model of transformers in two forms: q, k and v apart
and in one tensor, gate and up apart and in one tensor, in modules that list their parameters in another order.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Trainer,
    TrainingArguments,
)

import paramtool
from paramtool.commands.optimizers import bindings
from paramtool.commands.relayout import convert, fuse, unfuse
from paramtool.commands.verify import verify
from paramtool.errors import PlanError
from tests.oracles.test_optimizer_training import Gpt
from tests.oracles.trainers import Recording, reset_accelerate

pytestmark = pytest.mark.usefixtures("quiet_training")
STEPS = 20
NEAR = 1e-9
FAR = 1e-4
SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "rms_norm_eps": 1e-6,
}  # fmt: skip


def trainer(model: Any, folder: Path) -> Recording:
    """A Trainer that saves half way, with weight decay, so that both groups differ.

    torch's fused AdamW, the Trainer's own choice, does not compare shapes, and ends the process in the control.
    """
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(3, 39, (16, 8), generator=generator)
    args = TrainingArguments(
        str(folder), max_steps=2 * STEPS, save_steps=STEPS, per_device_train_batch_size=2, learning_rate=1e-2, seed=3,
        weight_decay=0.1, optim="adamw_torch", use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    made = Recording(model, args, train_dataset=[{"input_ids": row, "labels": row} for row in words])
    made.losses = []
    return made


def model_of(kind: Any, config: Any, seed: int = 0) -> Any:
    """A model with random weights."""
    torch.manual_seed(seed)
    return kind(config(**SIZES)).double()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recording]:
    """A Llama that trained without a stop, and the folder that was saved half way."""
    folder = tmp_path_factory.mktemp("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = trainer(model_of(LlamaForCausalLM, LlamaConfig), folder)
        run.train()
    return folder / f"checkpoint-{STEPS}", run


@pytest.fixture(scope="module")
def fused(llama: tuple[Path, Recording], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as that of a Phi-3, with its config.json."""
    place = tmp_path_factory.mktemp("phi")
    config = Phi3Config(**SIZES, architectures=["Phi3ForCausalLM"])
    config.save_pretrained(place / "phi")
    first = fuse(llama[0], place / "first", layout="qkv")
    assert any("--new-config" in text for text in first.warnings)
    assert verify(place / "first", llama[0]).differences == ()
    second = fuse(place / "first", place / "second", layout="gate-up", new_config=place / "phi" / "config.json")
    assert not any("--new-config" in text for text in second.warnings)
    assert "entries in the order of the class Phi3ForCausalLM" in second.optimizer.moved[0].words
    assert verify(place / "second", place / "first", new_config=place / "phi" / "config.json").differences == ()
    return place / "second"


def parts(named: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The tensor of a Phi-3 from those of a Llama."""
    for whole, names in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
        if whole in name:
            return torch.cat([named[name.replace(whole, part)] for part in names])
    return named[name]


def state_by_name(run: Trainer, model: Any) -> dict[str, dict[str, Any]]:
    """{parameter: what the optimizer of a Trainer keeps for it}, by the identity of the parameters."""
    optimizer = getattr(run.optimizer, "optimizer", run.optimizer)
    assert optimizer is not None
    return {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}


def test_the_optimizer_of_a_trainer_takes_the_state_by_position(llama: tuple[Path, Recording], fused: Path) -> None:
    """Every moment is that of its parameter, and no two groups or entries are exchanged."""
    old = trainer(model_of(LlamaForCausalLM, LlamaConfig), fused.parent / "old")
    new = trainer(model_of(Phi3ForCausalLM, Phi3Config), fused.parent / "new")
    for run, folder in ((old, llama[0]), (new, fused)):
        run.create_optimizer()
        run.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))  # type: ignore[union-attr]
    before, after = state_by_name(old, old.model), state_by_name(new, new.model)
    assert [*after] != sorted(after) and len(after) < len(before)
    for name, found in after.items():
        for slot in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(found[slot], parts({n: one[slot] for n, one in before.items()}, name)), name
        assert int(found["step"]) == STEPS
    groups = torch.load(fused / "optimizer.pt", weights_only=True)["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [key for group in groups for key in group["params"]] == list(range(len(after)))


def test_a_trainer_goes_on_with_the_other_model(llama: tuple[Path, Recording], fused: Path) -> None:
    """Losses and weights are those of the run without a stop."""
    whole = llama[1]
    run = trainer(model_of(Phi3ForCausalLM, Phi3Config, 5), fused.parent / "rest")
    run.train(resume_from_checkpoint=str(fused))
    assert len(run.losses) == STEPS
    assert run.losses == pytest.approx(whole.losses[STEPS:], rel=NEAR)
    expected, found = dict(whole.model.named_parameters()), dict(run.model.named_parameters())  # type: ignore[union-attr]
    for name, mine in found.items():
        other = parts(expected, name)
        assert float((mine - other).abs().max()) <= NEAR * float(other.abs().max()), name


def test_entries_in_the_order_of_the_old_model_end_elsewhere(llama: tuple[Path, Recording], fused: Path) -> None:
    """The control: without the config.json of the new model the entries of o_proj and qkv_proj are exchanged."""
    place = fused.parent
    fuse(place / "first", place / "control", layout="gate-up")
    run = trainer(model_of(Phi3ForCausalLM, Phi3Config, 5), place / "elsewhere")
    with pytest.raises((RuntimeError, AssertionError)):
        run.train(resume_from_checkpoint=str(place / "control"))
        assert run.losses == pytest.approx(llama[1].losses[STEPS:], rel=FAR)


@pytest.mark.parametrize("write", [paramtool.dedup, convert, lambda a, b: paramtool.export(a, b, all_names=True)])
def test_a_copied_state_of_another_training_is_told(
    write: Any, llama: tuple[Path, Recording], fused: Path, tmp_path: Path
) -> None:
    """Its own state is no matter; that of the Phi-3, and half of the file, are."""
    assert not any("is copied" in text for text in write(llama[0], tmp_path / "own").warnings)
    shutil.copytree(llama[0], tmp_path / "mixed")
    shutil.copy(fused / "optimizer.pt", tmp_path / "mixed" / "optimizer.pt")
    (told,) = (text for text in write(tmp_path / "mixed", tmp_path / "other").warnings if "is copied" in text)
    assert "is not the state of this model" in told
    content = (llama[0] / "optimizer.pt").read_bytes()
    (tmp_path / "mixed" / "optimizer.pt").write_bytes(content[: len(content) // 2])
    (told,) = (text for text in write(tmp_path / "mixed", tmp_path / "half").warnings if "is copied" in text)
    assert "no training goes on from it" in told


def test_a_config_of_another_model_is_refused(llama: tuple[Path, Recording], tmp_path: Path) -> None:
    Phi3Config(**{**SIZES, "num_hidden_layers": 1}, architectures=["Phi3ForCausalLM"]).save_pretrained(tmp_path / "c")
    with pytest.raises(paramtool.LayoutError, match="is not of the model that the output holds"):
        fuse(llama[0], tmp_path / "out", layout="qkv", new_config=tmp_path / "c" / "config.json")
    assert not (tmp_path / "out").exists()


def test_a_parameter_that_would_change_its_group_is_refused(llama: tuple[Path, Recording], tmp_path: Path) -> None:
    """The Trainer does not decay what is called a norm."""
    with pytest.raises(PlanError, match="which the Trainer has in the other group"):
        fuse(llama[0], tmp_path / "out", layout="qkv", rename={"qkv_proj": "qkv_norm"})
    assert not (tmp_path / "out").exists()


class Accelerated:
    """A training by hand with accelerate."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.accelerator = Accelerator(cpu=True)
        module = module.double()
        self.module, self.optimizer = self.accelerator.prepare(module, torch.optim.AdamW(module.parameters(), lr=1e-2))
        self.losses: list[float] = []

    def train(self, first: int) -> None:
        """Twenty steps, each with its own data."""
        for step in range(first, first + STEPS):
            inputs = torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            found = self.module(inputs)
            loss = found.square().mean() + found[..., 0].sin().mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.losses.append(float(loss.detach()))


def test_accelerate_goes_on_with_separate_projections(tmp_path: Path) -> None:
    """`save_state`, `unfuse` of q, k and v, `load_state` of a module that has three layers in place of one."""
    torch.manual_seed(0)
    whole = Accelerated(Gpt(True))
    whole.train(0)
    whole.accelerator.save_state(str(tmp_path / "saved"))
    names = "\n".join(name for name, _ in whole.module.named_parameters())
    whole.train(STEPS)
    (tmp_path / "names.txt").write_text(names)
    unfuse(
        tmp_path / "saved", tmp_path / "apart", layout="qkv-conv1d", spec="qkv heads=2 kv_heads=2",
        optimizer_names=tmp_path / "names.txt",
    )  # fmt: skip
    assert load_file(tmp_path / "apart" / "model.safetensors").keys() == Gpt(False).state_dict().keys()
    reset_accelerate()
    rest = Accelerated(Gpt(False))
    rest.accelerator.load_state(str(tmp_path / "apart"))
    rest.train(STEPS)
    assert rest.losses == pytest.approx(whole.losses[STEPS:], rel=NEAR)
    lost = Accelerated(Gpt(False))
    lost.module.load_state_dict({n: t.double() for n, t in load_file(tmp_path / "apart" / "model.safetensors").items()})
    lost.train(STEPS)
    assert lost.losses != pytest.approx(whole.losses[STEPS:], rel=FAR)


def test_the_files_that_a_training_resumes_from_come_along(llama: tuple[Path, Recording], fused: Path) -> None:
    names = {"scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"}
    for name in names:
        assert (fused / name).read_bytes() == (llama[0] / name).read_bytes()
    assert json.loads((fused / "config.json").read_text())["model_type"] == "phi3"
    assert transformers.AutoModelForCausalLM.from_pretrained(fused).config.model_type == "phi3"


def test_experts_that_a_class_trains_in_one_tensor(tmp_path: Path) -> None:
    """Files of a Mixtral have experts one by one, its optimizer as the class has them: that stays as it is."""
    sizes = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    whole = trainer(MixtralForCausalLM(MixtralConfig(**sizes)), tmp_path / "run")
    whole.train()
    folder = tmp_path / "run" / f"checkpoint-{STEPS}"
    (bound,) = bindings(folder, paramtool.read(folder))
    own = dict(whole.model.named_parameters())  # type: ignore[union-attr]
    names = {id(parameter): name.replace("mlp.gate.", "block_sparse_moe.gate.") for name, parameter in own.items()}
    inner = getattr(whole.optimizer, "optimizer", whole.optimizer)
    held = [parameter for group in inner.param_groups for parameter in group["params"]]
    assert bound.is_unique and bound.names == {k: names[id(parameter)] for k, parameter in enumerate(held)}
    assert not any("is copied" in text for text in paramtool.dedup(folder, tmp_path / "same").warnings)
    convert(folder, tmp_path / "stacked", target="transformers-5")
    assert (tmp_path / "stacked" / "optimizer.pt").read_bytes() == (folder / "optimizer.pt").read_bytes()
    torch.manual_seed(1)
    rest = trainer(MixtralForCausalLM(MixtralConfig(**sizes)), tmp_path / "rest")
    rest.train(resume_from_checkpoint=str(tmp_path / "stacked"))
    assert rest.losses == whole.losses[STEPS:]
    with pytest.raises(PlanError, match="has no trainer that goes on from it"):
        convert(folder, tmp_path / "other", target="vllm")
    with pytest.raises(PlanError, match=r"parameters such as .*gate_up_proj', which the weights have in another form"):
        convert(folder, tmp_path / "other", target="megatron")


TIED = {**SIZES, "tie_word_embeddings": True}


def test_a_tie_that_is_only_in_the_config_is_untied(tmp_path: Path) -> None:
    """The file has no lm_head.weight; from_pretrained finds one in the output, and ties nothing."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TIED))
    model.save_pretrained(tmp_path / "tied")
    convert(tmp_path / "tied", tmp_path / "untied", untie=["lm_head.weight"])
    assert verify(tmp_path / "untied", tmp_path / "tied").differences == ()
    config = json.loads((tmp_path / "tied" / "config.json").read_text())
    assert json.loads((tmp_path / "untied" / "config.json").read_text()) == {**config, "tie_word_embeddings": False}
    found, told = LlamaForCausalLM.from_pretrained(tmp_path / "untied", output_loading_info=True)
    assert not told["missing_keys"] and found.lm_head.weight is not found.model.embed_tokens.weight
    assert torch.equal(found.lm_head.weight, model.lm_head.weight)
    assert torch.equal(found.model.embed_tokens.weight, model.lm_head.weight)
    with pytest.raises(paramtool.UsageError, match=r"has no tensor 'lm_head.weight'"):
        LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "apart")
        (tmp_path / "apart" / "model.safetensors").write_bytes((tmp_path / "tied" / "model.safetensors").read_bytes())
        convert(tmp_path / "apart", tmp_path / "none", untie=["lm_head.weight"])


def test_the_state_of_a_tie_in_the_config_follows(tmp_path: Path) -> None:
    """The untied head has the moments of the embedding, at its place in the class of the untied model."""
    run = trainer(model_of(LlamaForCausalLM, lambda **more: LlamaConfig(**TIED)), tmp_path / "run")
    run.train()
    folder = tmp_path / "run" / f"checkpoint-{STEPS}"
    with pytest.raises(PlanError, match="cannot follow"):
        convert(folder, tmp_path / "none", untie=["lm_head.weight"])
    LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "config")
    convert(
        folder, tmp_path / "untied", untie=["lm_head.weight"], optimizer_state=["copy"],
        new_config=tmp_path / "config" / "config.json",
    )  # fmt: skip
    old = trainer(model_of(LlamaForCausalLM, lambda **more: LlamaConfig(**TIED)), tmp_path / "old")
    new = trainer(model_of(LlamaForCausalLM, LlamaConfig), tmp_path / "new")
    for one, place in ((old, folder), (new, tmp_path / "untied")):
        one.create_optimizer()
        one.optimizer.load_state_dict(torch.load(place / "optimizer.pt", weights_only=True))  # type: ignore[union-attr]
    before, after = state_by_name(old, old.model), state_by_name(new, new.model)
    assert after.keys() - before.keys() == {"lm_head.weight"}
    for name, found in after.items():
        expected = before[name if name in before else "model.embed_tokens.weight"]
        assert torch.equal(found["exp_avg"], expected["exp_avg"]), name


@pytest.mark.parametrize("target", ["vllm", "meta"])
def test_programs_without_a_trainer_get_no_state(target: str, llama: tuple[Path, Recording], tmp_path: Path) -> None:
    """Nothing would go on from it there."""
    with pytest.raises(PlanError, match="has no trainer that goes on from it") as raised:
        convert(llama[0], tmp_path / "out", target=target)
    assert "--optimizer-state drop" in raised.value.hint and not (tmp_path / "out").exists()
    convert(llama[0], tmp_path / "out", target=target, optimizer_state=["drop"])
    assert not (tmp_path / "out" / "optimizer.pt").exists()
