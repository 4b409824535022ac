"""What becomes of an optimizer beside weights where the output is a file, or has other names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.hostile.command import Ran, quick


def run(*words: object) -> Ran:
    """One command."""
    return quick(*words, cwd=Path.cwd())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Weights and the optimizer that trained them, as a folder of a training."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    found = tmp_path / "run"
    found.mkdir()
    save_file(model.state_dict(), found / "model.safetensors")
    torch.save(optimizer.state_dict(), found / "optimizer.pt")
    torch.save({"last_epoch": 1}, found / "scheduler.pt")
    return found


@pytest.mark.parametrize("words", [("dedup",), ("convert",), ("export", "--all-names")])
def test_a_file_says_which_state_stays(words: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """The report of one file names the optimizer that the folder has."""
    ran = run(words[0], folder, *words[1:], "-o", tmp_path / "out.safetensors")
    assert ran.code == 0 and "'optimizer.pt'" in ran.out and "'scheduler.pt'" in ran.out, ran


@pytest.mark.parametrize("words", [("--names", "one"), ("--all-names", "--rename", "0.*=7.*")])
def test_an_export_of_other_names_leaves_the_optimizer(words: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """Some names, or new ones, get no optimizer of all the old ones."""
    (tmp_path / "one").write_text("0.weight\n")
    given = [tmp_path / "one" if word == "one" else word for word in words]
    ran = run("export", folder, *given, "-o", tmp_path / "out")
    assert ran.code == 0 and "'optimizer.pt'" in ran.out, ran
    assert not (tmp_path / "out/optimizer.pt").exists() and not (tmp_path / "out/scheduler.pt").exists()


def test_an_export_of_all_names_keeps_the_optimizer(folder: Path, tmp_path: Path) -> None:
    """The same names are the same parameters."""
    assert run("export", folder, "--all-names", "-o", tmp_path / "out").code == 0
    assert (tmp_path / "out/optimizer.pt").read_bytes() == (folder / "optimizer.pt").read_bytes()
