"""Folders that accelerate writes with FSDP: the model and its optimizer are in folders inside.

tests/oracles/test_fsdp_folders.py has those functions themselves, on two ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

import paramtool
from paramtool.commands.optimizers import bound_files
from tests.hostile.command import Ran, quick
from tests.versions import needs

MODEL, STATE = "pytorch_model_fsdp_0", "optimizer_0"
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning", "ignore:.*ShardedTensor:FutureWarning"),
    needs("torch", "2.2", "torch.distributed.checkpoint.save"),
]


def run(*words: object, cwd: Path) -> Ran:
    """One command that succeeds."""
    ran = quick(*words, cwd=cwd)
    assert ran.code == 0, ran
    return ran


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An LSTM and its optimizer, whose state is called after its parameters."""
    torch.manual_seed(1)
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 4), "head": nn.Linear(4, 2)})
    made = torch.optim.AdamW(model.parameters(), lr=0.01)
    model["head"](model["lstm"](torch.randn(4, 2, 5))[0]).square().mean().backward()
    made.step()
    held, names = made.state_dict(), [name for name, _ in model.named_parameters()]
    state = {name: held["state"][k] for k, name in enumerate(names)}
    groups = [{**held["param_groups"][0], "params": names}]
    dcp.save({"model": model.state_dict()}, checkpoint_id=str(tmp_path / "in" / MODEL), no_dist=True)
    optimizer = {"optimizer": {"state": state, "param_groups": groups}}
    dcp.save(optimizer, checkpoint_id=str(tmp_path / "in" / STATE), no_dist=True)
    torch.save({"step": 3}, tmp_path / "in" / "random_states_0.pkl")
    torch.save({"last_epoch": 3}, tmp_path / "in" / "scheduler.bin")
    return tmp_path / "in"


def files(folder: Path) -> set[str]:
    """Every file of a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_opens_as_one_checkpoint(folder: Path) -> None:
    found = paramtool.read(folder)
    assert found.format == "dcp" and [section.name for section in found.sections] == ["model"]
    (state,) = bound_files(folder, found)
    assert state.file == STATE and state.bindings[0].is_unique and state.bindings[0].how == "names"


def test_dedup_keeps_the_folders(folder: Path) -> None:
    run("dedup", folder, "-o", "out", cwd=folder.parent)
    assert files(folder.parent / "out") == files(folder)
    run("verify", "out", "--against", folder, cwd=folder.parent)
    for name in files(folder):
        if not name.startswith(MODEL):
            assert (folder.parent / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_the_state_follows_into_its_folder(folder: Path) -> None:
    """torch loads both; a second run replaces its own output."""
    words = ("fuse", folder, "--layout", "cudnn", "-o", "out")
    ran = run(*words, cwd=folder.parent)
    assert "optimizer_0:optimizer (AdamW): 4 entries became 1; bound by names" in ran.out
    run(*words, "--force", cwd=folder.parent)
    run("verify", "out", "--against", folder, cwd=folder.parent)
    old = paramtool.load_file(folder / STATE)
    new = paramtool.load_file(folder.parent / "out" / STATE)
    names = [f"lstm.{kind}_{part}_l0" for kind in ("weight", "bias") for part in ("ih", "hh")]
    flat = torch.cat([torch.as_tensor(old[f"optimizer.state.{name}.exp_avg"]).flatten() for name in names])
    assert torch.equal(torch.as_tensor(new["optimizer.state.lstm.flat_weights.exp_avg"]), flat)
    loaded = {"optimizer": {"state": {"lstm.flat_weights": {"exp_avg": torch.zeros_like(flat)}}}}
    dcp.load(loaded, checkpoint_id=str(folder.parent / "out" / STATE), no_dist=True)
    assert torch.equal(loaded["optimizer"]["state"]["lstm.flat_weights"]["exp_avg"], flat)


def test_state_that_was_changed_is_found(folder: Path) -> None:
    run("fuse", folder, "--layout", "cudnn", "-o", "out", cwd=folder.parent)
    shard = folder.parent / "out" / STATE / "__0_0.distcp"
    new = paramtool.load_file(folder.parent / "out" / STATE)
    data, held = bytearray(shard.read_bytes()), torch.as_tensor(new["optimizer.state.lstm.flat_weights.exp_avg"])
    data[data.find(held.numpy().tobytes()) + 4] ^= 1
    shard.write_bytes(data)
    ran = quick("verify", "out", "--against", folder, cwd=folder.parent)
    said = ("optimizer_0/__0_0.distcp", "'optimizer.state.lstm.flat_weights.exp_avg'", "the file is damaged")
    assert ran.code == 3 and all(one in ran.err for one in said), ran


def test_without_its_optimizer(folder: Path) -> None:
    run("fuse", folder, "--layout", "cudnn", "--optimizer-state", "drop", "-o", "out", cwd=folder.parent)
    assert not any(name.startswith(STATE) for name in files(folder.parent / "out"))


def test_a_rank_that_is_missing(folder: Path) -> None:
    """Of the weights, and of the state: nothing is written."""
    words = ("fuse", folder, "--layout", "cudnn", "-o", "out")
    (folder / STATE / "__0_0.distcp").unlink()
    ran = quick(*words, cwd=folder.parent)
    assert ran.code == 3 and STATE in ran.err and "is missing" in ran.err, ran
    (folder / MODEL / "__0_0.distcp").unlink()
    ran = quick(*words, cwd=folder.parent)
    assert ran.code == 3 and MODEL in ran.err and "is missing" in ran.err, ran
    assert not (folder.parent / "out").exists()


def test_weights_of_another_program_beside_it(folder: Path) -> None:
    """The user chooses; what is chosen is written without the other."""
    save_file({"lstm.weight_ih_l0": torch.ones(16, 5)}, folder / "model.safetensors")
    ran = quick("dedup", folder, "-o", "out", cwd=folder.parent)
    assert ran.code == 2 and f"{MODEL}/.metadata" in ran.err and "--weights" in ran.err, ran
    run("dedup", folder, "--weights", f"{MODEL}/.metadata", "-o", "out", cwd=folder.parent)
    assert files(folder.parent / "out") == files(folder) - {"model.safetensors"}
    run("dedup", folder, "--weights", "model.safetensors", "-o", "other", cwd=folder.parent)
    assert not any(name.startswith(MODEL) for name in files(folder.parent / "other"))


def test_several_models_are_named(folder: Path) -> None:
    (folder / MODEL).rename(folder / "pytorch_model_fsdp_1")
    dcp.save({"model": {"a": torch.ones(3)}}, checkpoint_id=str(folder / MODEL), no_dist=True)
    for more in ((), ("--each",)):
        ran = quick("dedup", folder, *more, "-o", "out", cwd=folder.parent)
        assert ran.code == 2 and "holds 2 models" in ran.err and f"{MODEL}/" in ran.err, ran
    run("dedup", folder / MODEL, "-o", "out", cwd=folder.parent)


def test_state_of_two_programs_is_refused(folder: Path) -> None:
    torch.save({"state": {}, "param_groups": [{"params": []}]}, folder / "optimizer.bin")
    ran = quick("fuse", folder, "--layout", "cudnn", "-o", "out", cwd=folder.parent)
    assert ran.code == 6 and "of two programs" in ran.err, ran
