"""Files that training really leaves, written by the libraries themselves, are not unsafe: enums are values."""

from __future__ import annotations

import enum
import os
import pickle
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import torch

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.errors import FormatError, UnsafeError
from paramtool.formats import describe, scan
from paramtool.formats.pickle._enum_classes import VALUE_CLASSES
from paramtool.model.objects import Opaque, walk
from tests.hostile.command import quick
from tests.hostile.test_hostile_pickles import Call

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library looks for a hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def is_clean(path: Path) -> None:
    """Both ways of looking at a file find nothing that is called."""
    assert [one for one in describe(path).checkpoint.unknown if one.called or one.needed_by] == []
    assert [one for one in scan.scan(str(path)) if one.called] == []
    ran = quick("inspect", path, "--fail-on", "unsafe", cwd=path.parent)
    assert (ran.code, ran.err) == (0, ""), ran


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "loss", "optim": "adafactor",
         "lr_scheduler_type": "cosine_with_restarts", "hub_strategy": "checkpoint", "debug": "underflow_overflow",
         "logging_strategy": "epoch", "load_best_model_at_end": False},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 3}, "optim": "lomo"},
    ],
)  # fmt: skip
def test_training_args(options: dict[str, object], tmp_path: Path) -> None:
    """`training_args.bin`, as Trainer saves it."""
    transformers = pytest.importorskip("transformers")
    try:
        arguments = transformers.TrainingArguments(str(tmp_path / "out"), report_to="none", use_cpu=True, **options)
    except ImportError as error:
        pytest.skip(str(error))
    path = tmp_path / "training_args.bin"
    torch.save(arguments, path)
    is_clean(path)
    made = {node.path for node in walk(describe(path).checkpoint.objects) if isinstance(node, Opaque)}
    assert len(made & VALUE_CLASSES) >= 6, made


def test_a_checkpoint_of_the_trainer(tmp_path: Path) -> None:
    """A folder that Trainer wrote: every file of it, and the folder."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, save_steps=1, report_to="none", use_cpu=True, disable_tqdm=True
    )
    transformers.Trainer(model, arguments, train_dataset=data).train()
    folder = tmp_path / "checkpoint-1"
    pickles = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"}
    assert pickles <= {path.name for path in folder.iterdir()}
    for name in pickles:
        is_clean(folder / name)
    ran = quick("inspect", folder, "--fail-on", "unsafe", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, ""), ran


def test_a_state_of_accelerate(tmp_path: Path) -> None:
    """A folder that `Accelerator.save_state` wrote."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    accelerator.prepare(model, optimizer, scheduler)
    accelerator.save_state(str(tmp_path / "state"))
    names = {"optimizer.bin", "scheduler.bin", "random_states_0.pkl"}
    assert names <= {path.name for path in (tmp_path / "state").iterdir()}
    for name in names:
        is_clean(tmp_path / "state" / name)
    ran = quick("inspect", tmp_path / "state", "--fail-on", "unsafe", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, ""), ran


def test_a_checkpoint_of_lightning(tmp_path: Path) -> None:
    """Lightning's own Trainer wrote it, with a config of omegaconf and callbacks: nothing in it is a call."""
    path = ROOT / "fixtures" / "lightning" / "run" / "run.ckpt"
    is_clean(path)
    held = {unknown.path for unknown in paramtool.read(path).unknown}
    assert {"omegaconf.dictconfig.DictConfig", "omegaconf.nodes.AnyNode"} <= held
    dedup_command.dedup(path, tmp_path / "out.ckpt", plain=True)
    found = torch.load(tmp_path / "out.ckpt", weights_only=True)
    assert found["hyper_parameters"]["config"]["_content"]["words"]["_val"] == 5
    assert found["state_dict"]["head.weight"].data_ptr() == found["state_dict"]["emb.weight"].data_ptr()
    assert found["callbacks"]["Timer"]["time_elapsed"].keys() >= {"train", "validate"}


LIGHTNING = ROOT / ".venv-oracles" / "lightning" / "bin" / "python"
"""Made by `make oracles`."""
OF_LIGHTNING = ("lightning.", "pytorch_lightning.", "torchmetrics.", "omegaconf.")


@pytest.mark.skipif(not LIGHTNING.exists(), reason="make oracles makes the environment with Lightning and omegaconf")
def test_what_lightning_writes(tmp_path: Path) -> None:
    """Enums, also of metrics and configs; a checkpoint of its Trainer, and its module loaded from our output."""
    paths = sorted(path for path in VALUE_CLASSES if path.startswith(OF_LIGHTNING))
    script = ROOT / "tests" / "oracles" / "enums.py"
    ran = subprocess.run([LIGHTNING, script, tmp_path, *paths], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == paths
    files = sorted(tmp_path.glob("*.pt"))
    assert len(files) > len(paths)
    for file in files:
        is_clean(file)
    make = ROOT / "fixtures" / "lightning" / "run"
    subprocess.run([LIGHTNING, make / "make.py", tmp_path], capture_output=True, check=True)
    is_clean(tmp_path / "run.ckpt")
    dedup_command.dedup(tmp_path / "run.ckpt", tmp_path / "out.ckpt", plain=True)
    load = (
        "import make, sys; from omegaconf import OmegaConf\n"
        "found = make.Tied.load_from_checkpoint('out.ckpt', config=OmegaConf.create({'words': 5}))\n"
        "assert found.head.weight is found.emb.weight\n"
        "assert found.emb.weight.equal(make.pattern(found.emb.weight.shape, 0))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(make)}
    subprocess.run([LIGHTNING, "-c", load], cwd=tmp_path, env=environment, capture_output=True, check=True)


def _found(path: str) -> type:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError):
        pytest.skip(f"{path} is not in what is installed")


@pytest.mark.sample(4)
@pytest.mark.parametrize("path", sorted(VALUE_CLASSES), ids=lambda path: path.replace(".", "-", 1))
def test_each_value_class(path: str, tmp_path: Path) -> None:
    """An enum whose members are strings or integers; each member is data, by either way of pickling it."""
    cls = _found(path)
    assert issubclass(cls, enum.Enum) and "__reduce__" not in vars(cls), cls
    assert f"{cls.__module__}.{cls.__qualname__}" in VALUE_CLASSES
    called = Call(cls, [next(iter(cls)).value])
    for member in cls:
        if type(member.value) not in (str, int):
            continue
        for how in (member, Call(cls, member.value), Call(getattr, cls, member.name)):
            torch.save({"w": torch.zeros(1), "x": how}, tmp_path / "model.pt")
            is_clean(tmp_path / "model.pt")
    for how in (called, Call(cls, "a", "b"), Call(cls), Call(getattr, cls, "__init__"), Call(getattr, cls, "a.b")):
        torch.save({"w": torch.zeros(1), "x": how}, tmp_path / "model.pt")
        with pytest.raises(UnsafeError):
            paramtool.read(tmp_path / "model.pt")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint(tmp_path: Path) -> None:
    """torch.distributed.checkpoint's own folder is not unsafe, and opens."""
    from torch.distributed import checkpoint

    checkpoint.save({"w": torch.zeros(3), "e": 3, "m": {"x": torch.ones(2)}}, checkpoint_id=str(tmp_path / "dcp"))
    for path in (tmp_path / "dcp").iterdir():
        assert [one for one in scan.scan(str(path)) if one.called] == [], path
    assert sorted(paramtool.load_file(tmp_path / "dcp")) == ["m.x", "w"]


@pytest.mark.parametrize("protocol", range(6))
def test_tensors_that_pickle_wrote(protocol: int, tmp_path: Path) -> None:
    """`pickle.dump` of a state dict holds pickles in pickles; they are looked through."""
    state = torch.nn.LSTM(2, 3).state_dict()
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(state, protocol))
    with pytest.raises(FormatError, match=r"a pickle of torch tensors that torch\.save did not write"):
        paramtool.read(tmp_path / "model.pkl")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps([state, Call(print, "x")], protocol))
    with pytest.raises(UnsafeError, match="print"):
        paramtool.read(tmp_path / "model.pkl")
