"""Folders that a training resumes from: the real Trainer and the real accelerate go on from an output of `dedup`.

Each run is done once without a stop, and once in two parts with `dedup` between them.  The losses of the second part,
and the weights at the end, have to be the same to the last bit.  Dropout and shuffling are on, so that both differ
where the state of the optimizer, the schedule or the random numbers is lost; the controls show that they do.

The models are built from small configs; nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import TrainingArguments

from paramtool.commands import dedup as dedup_command
from paramtool.commands import dedup_many
from paramtool.errors import PlanError, UsageError
from tests.hostile.command import contents
from tests.laws.sharing import raw
from tests.oracles.test_pretrained import FAMILIES
from tests.oracles.trainers import Recording

pytestmark = pytest.mark.usefixtures("quiet_training")
STEPS = 6
HALF = 3
STATE = {
    "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "trainer_state.json", "config.json",
}  # fmt: skip
"""What a Trainer writes beside the weights, whatever the model is."""


class Dropped(torch.nn.Module):
    """A model of one's own, without a config, and with dropout."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 12)
        self.inner = torch.nn.Linear(12, 12)
        self.head = torch.nn.Linear(12, 64, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **_: Any) -> dict[str, torch.Tensor]:
        """The loss of guessing each word from itself."""
        logits = self.head(self.dropout(torch.tanh(self.inner(self.embedding(input_ids)))))
        found = {"logits": logits}
        if labels is not None:
            found["loss"] = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        return found


def pretrained(name: str) -> Callable[[int], Any]:
    """A small model of transformers, by its seed."""

    def make(seed: int) -> Any:
        family = FAMILIES[name]
        torch.manual_seed(seed)
        more = {"attention_dropout": 0.1} if name.startswith("llama") else {}
        return family.model(family.config(**family.sizes, **more, bos_token_id=1, eos_token_id=2, pad_token_id=0))

    return make


def own(tied: bool) -> Callable[[int], Any]:
    """The model of one's own, by its seed."""

    def make(seed: int) -> Any:
        torch.manual_seed(seed)
        return Dropped(tied)

    return make


MODELS: dict[str, Callable[[int], Any]] = {
    **{name: pretrained(name) for name in ("gpt2 tied", "gpt2 untied", "t5", "llama untied")},
    "own tied": own(True),
    "own untied": own(False),
}


def data() -> list[dict[str, torch.Tensor]]:
    """Sixteen sequences of eight words."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(3, 60, (16, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in words]


def trained(model: Any, folder: Path, resume: Path | None = None) -> Recording:
    """A run of the real Trainer, which saves its state half way."""
    args = TrainingArguments(
        str(folder), max_steps=STEPS, save_steps=HALF, per_device_train_batch_size=2, learning_rate=1e-2, seed=3,
        use_cpu=True, report_to=[], logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    trainer = Recording(model, args, train_dataset=data())
    trainer.losses = []
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


def state(model: Any) -> dict[str, bytes]:
    """Every weight of a model, as bytes."""
    return {name: raw(tensor) for name, tensor in model.state_dict().items()}


def beside(folder: Path) -> dict[str, bytes | str]:
    """Everything of a folder but its weights and their index."""
    return {name: what for name, what in contents(folder).items() if not name.startswith(("model", "pytorch_model"))}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "own tied"])  # which Trainer cannot save
def test_a_trainer_goes_on(name: str, tmp_path: Path) -> None:
    """From our folder to the losses and weights of the run that never stopped; every other file is as it was."""
    whole = trained(MODELS[name](0), tmp_path / "whole")
    checkpoint = tmp_path / "whole" / f"checkpoint-{HALF}"
    found = dedup_command.dedup(checkpoint, tmp_path / "ours")
    assert found.left_out == () and set(found.sidecars) >= STATE - ({"config.json"} if name == "own untied" else set())
    assert beside(tmp_path / "ours") == beside(checkpoint)
    resumed = trained(MODELS[name](1), tmp_path / "rest", tmp_path / "ours")
    assert resumed.losses == whole.losses[HALF:] and len(resumed.losses) == STEPS - HALF
    assert state(resumed.model) == state(whole.model)
    assert resumed.state.log_history[:HALF] == whole.state.log_history[:HALF]


@pytest.mark.parametrize("lost", ["optimizer.pt", "rng_state.pth"])
def test_a_trainer_without_its_state_goes_elsewhere(lost: str, tmp_path: Path) -> None:
    """The control: a Trainer that misses a file goes on all the same, with other losses."""
    whole = trained(MODELS["gpt2 tied"](0), tmp_path / "whole")
    dedup_command.dedup(tmp_path / "whole" / f"checkpoint-{HALF}", tmp_path / "ours")
    (tmp_path / "ours" / lost).unlink()
    resumed = trained(MODELS["gpt2 tied"](1), tmp_path / "rest", tmp_path / "ours")
    assert len(resumed.losses) == STEPS - HALF and resumed.losses != whole.losses[HALF:]


def test_a_trainer_goes_on_from_shards(tmp_path: Path) -> None:
    """An index and shards, which Trainer opens where there is no single file."""
    whole = trained(MODELS["gpt2 tied"](0), tmp_path / "whole")
    checkpoint = tmp_path / "whole" / f"checkpoint-{HALF}"
    dedup_command.dedup(checkpoint, tmp_path / "ours", max_shard_size=20_000)
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists()
    again = dedup_command.dedup(tmp_path / "ours", tmp_path / "again")
    assert again.left_out == () and beside(tmp_path / "again") == beside(checkpoint)
    resumed = trained(MODELS["gpt2 tied"](1), tmp_path / "rest", tmp_path / "again")
    assert resumed.losses == whole.losses[HALF:] and state(resumed.model) == state(whole.model)


def test_trainers_go_on_from_a_family(tmp_path: Path) -> None:
    """Two checkpoints of one run, deduplicated together: each resumes from its folder of the output."""
    whole = trained(MODELS["gpt2 tied"](0), tmp_path / "whole")
    folders = [tmp_path / "whole" / f"checkpoint-{step}" for step in (HALF, STEPS)]
    found = dedup_many.dedup_family(folders, tmp_path / "ours")
    assert [member.left_out for member in found.members] == [(), ()]
    for folder in folders:
        assert beside(tmp_path / "ours" / folder.name) == beside(folder)
    resumed = trained(MODELS["gpt2 tied"](1), tmp_path / "rest", tmp_path / "ours" / folders[0].name)
    assert resumed.losses == whole.losses[HALF:] and state(resumed.model) == state(whole.model)


def test_what_a_trainer_saves_at_the_end(tmp_path: Path) -> None:
    """`save_model` and `save_state` write into one folder, with the folders of the run's checkpoints inside."""
    trainer = trained(MODELS["gpt2 tied"](0), tmp_path / "run")
    trainer.save_model()
    trainer.save_state()
    found = dedup_command.dedup(tmp_path / "run", tmp_path / "ours")
    kept = {"config.json", "generation_config.json", "trainer_state.json", "training_args.bin"}
    assert set(found.sidecars) == kept
    assert found.left_out == tuple(f"folder 'checkpoint-{step}': a checkpoint of its own" for step in (HALF, STEPS))
    opened = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours")
    assert state(opened) == state(trainer.model)


class Counter:
    """Something of one's own that accelerate saves with the rest."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        """What is saved."""
        return {"steps": self.steps}

    def load_state_dict(self, found: dict[str, int]) -> None:
        """What was saved."""
        self.steps = found["steps"]


class Run:
    """A training by hand with accelerate: a model or two, each with its optimizer and schedule, and a counter."""

    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        self.accelerator = Accelerator(cpu=True)
        models = [MODELS[name](seed + k) for k, name in enumerate(names)]
        optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
        schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for optimizer in optimizers]
        loader = torch.utils.data.DataLoader(data()[:8], batch_size=2, shuffle=True)  # type: ignore[arg-type]
        self.loader, *rest = self.accelerator.prepare(loader, *models, *optimizers, *schedules)
        count = len(names)
        self.models, self.optimizers, self.schedules = rest[:count], rest[count : 2 * count], rest[2 * count :]
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)
        self.losses: list[float] = []

    def epoch(self) -> None:
        """Once through the data."""
        for batch in self.loader:
            for model, optimizer, schedule in zip(self.models, self.optimizers, self.schedules, strict=True):
                loss = model.train()(**batch)["loss"]
                self.accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                self.losses.append(float(loss.detach()))
            self.counter.steps += 1


def half_way(folder: Path, names: tuple[str, ...], **more: Any) -> Run:
    """A run of two epochs that saves its state between them."""
    run = Run(names, 0)
    torch.manual_seed(5)
    run.epoch()
    run.accelerator.save_state(str(folder), **more)
    run.losses.clear()
    run.epoch()
    return run


def resumed_run(folder: Path, names: tuple[str, ...]) -> Run:
    """The second epoch of another run, from what is in a folder."""
    run = Run(names, 7)
    run.accelerator.load_state(str(folder))
    assert run.counter.steps == 4
    run.epoch()
    return run


def the_same(run: Run, other: Run) -> bool:
    """Whether two runs had the same losses and came to the same weights."""
    models = zip(run.models, other.models, strict=True)
    return run.losses == other.losses and all(state(one) == state(two) for one, two in models)


@pytest.mark.sample(3)
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize(
    "names", [("gpt2 tied",), ("t5",), ("llama untied",), ("own tied",), ("own tied", "own untied")], ids="+".join
)
def test_accelerate_goes_on(names: tuple[str, ...], safe: bool, tmp_path: Path) -> None:
    """`load_state` of our folder, to the losses and weights of the run that never stopped.

    `pytorch_model.bin` becomes `model.safetensors`, which accelerate looks for first.  Several models have to be asked
    for: `--each` writes all of them.
    """
    whole = half_way(tmp_path / "state", names, safe_serialization=safe)
    if len(names) > 1:
        with pytest.raises(UsageError, match="2 sets of weights that differ"):
            dedup_command.dedup(tmp_path / "state", tmp_path / "ours")
        each = dedup_command.dedup_each(tmp_path / "state", tmp_path / "ours")
        assert each.left_out == () and {name for found in each.members for name in found.left_out} == set()
    else:
        assert dedup_command.dedup(tmp_path / "state", tmp_path / "ours").left_out == ()
    models = {"model.safetensors", "model_1.safetensors"} if len(names) > 1 else {"model.safetensors"}
    assert {path.name for path in (tmp_path / "ours").glob("*model*")} == models
    assert beside(tmp_path / "ours") == beside(tmp_path / "state")
    assert {"custom_checkpoint_0.pkl", "random_states_0.pkl"} <= beside(tmp_path / "ours").keys()
    assert the_same(resumed_run(tmp_path / "ours", names), whole)


@pytest.mark.parametrize("lost", ["random_states_0.pkl"])
def test_accelerate_without_its_state_goes_elsewhere(lost: str, tmp_path: Path) -> None:
    """The control: accelerate goes on without the random numbers, with other losses."""
    whole = half_way(tmp_path / "state", ("gpt2 tied",))
    dedup_command.dedup(tmp_path / "state", tmp_path / "ours")
    (tmp_path / "ours" / lost).unlink()
    assert not the_same(resumed_run(tmp_path / "ours", ("gpt2 tied",)), whole)


def test_what_accelerate_would_not_open_is_refused(tmp_path: Path) -> None:
    """It opens one file of weights, and of FSDP's whole state only `pytorch_model_fsdp.bin`.

    Both are its own words: it misses the file.
    """
    half_way(tmp_path / "a", ("own tied",))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    model = own(True)(0).state_dict()
    model["inner.bias"] += 1
    torch.save(model, tmp_path / "b" / "pytorch_model.bin")
    (tmp_path / "b" / "model.safetensors").unlink()
    before = contents(tmp_path)
    with pytest.raises(PlanError, match="load_state opens weights of one file, and no shards"):
        dedup_command.dedup(tmp_path / "a", tmp_path / "out", max_shard_size=1000)
    with pytest.raises(PlanError, match="load_state opens weights of one file, and no shards"):
        dedup_command.dedup_each(tmp_path / "a", tmp_path / "out", max_shard_size=1000)
    with pytest.raises(PlanError, match="load_state opens weights of one file, and no shards"):
        dedup_many.dedup_family([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert contents(tmp_path) == before
    dedup_command.dedup(tmp_path / "a" / "model.safetensors", tmp_path / "out", max_shard_size=1000)
    for name, file in before.items():
        if name.startswith("a/") and name != "a/model.safetensors":
            (tmp_path / "out" / name.removeprefix("a/")).write_bytes(bytes(file))  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin"):
        resumed_run(tmp_path / "out", ("own tied",))


def test_the_whole_state_of_fsdp_is_refused(tmp_path: Path) -> None:
    """accelerate's FULL_STATE_DICT: `load_fsdp_model` opens that one name."""
    from accelerate.utils.constants import FSDP_MODEL_NAME

    half_way(tmp_path / "state", ("own tied",), safe_serialization=False)
    weights = tmp_path / "state" / f"{FSDP_MODEL_NAME}.bin"
    (tmp_path / "state" / "pytorch_model.bin").rename(weights)
    with pytest.raises(PlanError, match="finds the weights of this FSDP run"):
        dedup_command.dedup_each(tmp_path / "state", tmp_path / "out")
    with pytest.raises(PlanError, match="finds the weights of this FSDP run") as error:
        dedup_command.dedup(tmp_path / "state", tmp_path / "out")
    assert str(weights) in error.value.hint and not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    dedup_command.dedup(weights, tmp_path / "out" / weights.name)
    written = torch.load(tmp_path / "out" / weights.name, weights_only=True)
    assert written["head.weight"].data_ptr() == written["embedding.weight"].data_ptr()


def test_folders_of_torch_distributed_checkpoint(tmp_path: Path) -> None:
    """An optimizer as FSDP saves it: without its hidden `.metadata` nothing of it could be read."""
    from torch.distributed import checkpoint as dcp

    half_way(tmp_path / "state", ("own tied",))
    moments = {"moments": torch.arange(6.0), "step": torch.tensor(4)}
    dcp.save(moments, checkpoint_id=tmp_path / "state" / "optimizer_0", no_dist=True)
    found = dedup_command.dedup(tmp_path / "state", tmp_path / "ours")
    assert found.left_out == () and "optimizer_0/.metadata" in found.sidecars
    read = {"moments": torch.zeros(6), "step": torch.tensor(0)}
    dcp.load(read, checkpoint_id=tmp_path / "ours" / "optimizer_0", no_dist=True)
    assert all(torch.equal(read[name], tensor) for name, tensor in moments.items())


@pytest.mark.parametrize("second", [(), ("german",)], ids=["one", "two"])
def test_a_trainer_of_adapters_goes_on(second: tuple[str, ...], tmp_path: Path) -> None:
    """PEFT: the adapter keeps its name, and others in folders inside come along."""
    peft = pytest.importorskip("peft")

    def adapted(seed: int) -> Any:
        base = MODELS["gpt2 tied"](0)
        torch.manual_seed(seed)
        options = {"task_type": "CAUSAL_LM", "target_modules": ["c_attn"], "init_lora_weights": False}
        model = peft.get_peft_model(base, peft.LoraConfig(r=2, lora_dropout=0.1, **options))
        for name in second:
            model.add_adapter(name, peft.LoraConfig(r=3, **options))
        return model

    whole = trained(adapted(0), tmp_path / "whole")
    found = dedup_command.dedup(tmp_path / "whole" / f"checkpoint-{HALF}", tmp_path / "ours")
    assert (tmp_path / "ours" / "adapter_model.safetensors").is_file() and found.left_out == ()
    resumed = trained(adapted(1), tmp_path / "rest", tmp_path / "ours")
    assert resumed.losses == whole.losses[HALF:] and state(resumed.model) == state(whole.model)


def test_the_table_of_names_is_that_of_the_libraries(tmp_path: Path) -> None:
    """Of all that a Trainer and accelerate write, nothing but the weights counts as weights."""
    from paramtool.formats.folder.training_files import is_training_state
    from paramtool.formats.table import SUFFIXES

    trained(MODELS["gpt2 tied"](0), tmp_path / "run")
    half_way(tmp_path / "run" / "state", ("own untied", "own tied"))
    names = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    weights = {name for name in names if name.endswith((*SUFFIXES, ".pkl")) and not is_training_state(name)}
    assert weights == {"model.safetensors", "model_1.safetensors"}
    assert load_file(tmp_path / "run" / "state" / "model_1.safetensors").keys() == {"embedding.weight", "inner.weight",
                                                                                    "inner.bias"}  # fmt: skip
    assert json.loads((tmp_path / "run" / f"checkpoint-{HALF}" / "trainer_state.json").read_text())["global_step"] == 3
