"""The line that a report prints for loading its output works when it is pasted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import paramtool
import paramtool.torch
from tests.hostile.command import quick


class Net(nn.Module):
    """A head tied to an embedding, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.emb.weight


def averaged(net: nn.Module) -> Any:
    """The state of an average over models, with its own buffer beside them."""
    return AveragedModel(net, use_buffers=True).state_dict()


STATES: dict[str, Callable[[nn.Module], Any]] = {
    "alone": lambda net: net.state_dict(),
    "DataParallel": lambda net: nn.DataParallel(net).state_dict(),
    "compiled": lambda net: torch.compile(net).state_dict(),
    "compiled in DataParallel": lambda net: nn.DataParallel(torch.compile(net)).state_dict(),
    "DataParallel, compiled": lambda net: torch.compile(nn.DataParallel(net)).state_dict(),
    "averaged": averaged,
    "in a training checkpoint": lambda net: {"state_dict": nn.DataParallel(net).state_dict(), "epoch": 3},
    "under the key module": lambda net: {"module": net.state_dict(), "epoch": 3},
    "beside an optimizer": lambda net: {
        "model": nn.DataParallel(net).state_dict(),
        "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []},
    },
}  # fmt: skip


def run_line(out: str, folder: Path) -> nn.Module:
    """A new model, filled by the printed line in a folder."""
    (line,) = (line for line in out.splitlines() if line.startswith("load it  "))
    model = Net()
    code = line.removeprefix("load it  ").split("  ")[0]
    here = os.getcwd()
    try:
        os.chdir(folder)
        loaded = eval(code, {"paramtool": paramtool, "torch": torch, "model": model})
    finally:
        os.chdir(here)
    if isinstance(loaded, dict):
        model.load_state_dict(loaded)
    return model


def is_equal(model: nn.Module, expected: nn.Module) -> bool:
    """Whether all values are equal, and the tie is there."""
    same = all(torch.equal(value, expected.state_dict()[name]) for name, value in model.state_dict().items())
    return same and model.head.weight is model.emb.weight


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile's own imports
@pytest.mark.parametrize("key", STATES)
def test_the_line_of_dedup(key: str, tmp_path: Path) -> None:
    """With the section and the prefix that it needs."""
    net = Net()
    torch.save(STATES[key](net), tmp_path / "a model.pt")
    ran = quick("dedup", "a model.pt", cwd=tmp_path)
    assert ran.code == 0 and is_equal(run_line(ran.out, tmp_path), net), ran


def test_the_line_for_torch(tmp_path: Path) -> None:
    """torch's own files are loaded by torch."""
    net = Net()
    torch.save(net.state_dict(), tmp_path / "m.pt")
    ran = quick("dedup", "m.pt", "-o", "x.pt", cwd=tmp_path)
    assert ran.code == 0 and is_equal(run_line(ran.out, tmp_path), net), ran


@pytest.mark.parametrize("key", ["alone", "DataParallel", "averaged"])
def test_the_line_of_a_family(key: str, tmp_path: Path) -> None:
    """Of the first folder."""
    nets = [Net(), Net()]
    for name, net in zip("ab", nets, strict=True):
        torch.save(STATES[key](net), tmp_path / f"{name}.pt")
    ran = quick("dedup", "a.pt", "b.pt", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and is_equal(run_line(ran.out, tmp_path), nets[0]), ran


def test_one_section(tmp_path: Path) -> None:
    """Its names have lost the section's prefix, not the wrapper's."""
    net = Net()
    torch.save(STATES["beside an optimizer"](net), tmp_path / "m.pt")
    ran = quick("dedup", "m.pt", "--only", "model", cwd=tmp_path)
    assert ran.code == 0 and is_equal(run_line(ran.out, tmp_path), net), ran


def test_the_line_of_variants(tmp_path: Path) -> None:
    """The variant that it speaks of is filled by it."""
    net = Net()
    torch.save(net.state_dict(), tmp_path / "m.pt")
    assert quick("dedup", "m.pt", cwd=tmp_path).code == 0
    ran = quick("variants", "m.dedup.safetensors", "--against", "m.pt", cwd=tmp_path)
    assert ran.code == 0 and is_equal(run_line(ran.out, tmp_path), net), ran
