"""`--optimizer-names`: a file as the documentation writes it, and the errors that name the flag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hostile.command import Ran, quick

DOCS = Path(__file__).parents[2] / "docs" / "optimizers.md"


class Projections(nn.Module):
    """Three layers of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("q_proj", "k_proj", "v_proj")})


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Projections, torch.optim.Optimizer]:
    """A module whose optimizer was given the last layer first."""
    monkeypatch.chdir(tmp_path)
    model = Projections()
    optimizer = torch.optim.Adam(list(model.parameters())[::-1])
    sum(one.square().sum() for one in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    return model, optimizer


def fused(model: nn.Module, state: Any, *words: str) -> Ran:
    """The command, of a file with both."""
    torch.save({"model": model.state_dict(), "optimizer": state}, "run.pt")
    return quick("fuse", "run.pt", "--layout", "qkv", "-o", "out.pt", *words, cwd=Path.cwd())


def test_the_file_of_the_documentation(trained: tuple[Projections, torch.optim.Optimizer]) -> None:
    """Its script writes what the flag reads, and the moments are those of the right layers."""
    model, optimizer = trained
    (script,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    exec(script, {"model": model, "optimizer": optimizer})
    ran = fused(model, optimizer.state_dict(), "--optimizer-names", "names.txt")
    assert ran.code == 0, ran
    state = torch.load("out.pt")["optimizer"]["state"]
    by_shape = {tuple(one["exp_avg"].shape): one["exp_avg"] for one in state.values()}
    layers = [model.attn[name] for name in ("q_proj", "k_proj", "v_proj")]
    for kind in ("weight", "bias"):
        expected = torch.cat([optimizer.state[getattr(layer, kind)]["exp_avg"] for layer in layers])
        assert torch.equal(by_shape[tuple(expected.shape)], expected)


def test_an_ambiguous_state_names_the_flag(trained: tuple[Projections, torch.optim.Optimizer]) -> None:
    model, _ = trained
    optimizer = torch.optim.Adam(list(model.parameters())[2:])
    optimizer.step()
    ran = fused(model, optimizer.state_dict())
    assert ran.code == 6 and "--optimizer-names FILE" in ran.err and "docs/optimizers.md has an example" in ran.err, ran


def test_contradicting_param_names_name_the_flag(trained: tuple[Projections, torch.optim.Optimizer]) -> None:
    model, optimizer = trained
    state = optimizer.state_dict()
    state["param_groups"][0]["param_names"] = [name for name, _ in model.named_parameters()]
    ran = fused(model, state)
    assert ran.code == 3 and "--optimizer-names FILE says other names" in ran.err, ran
