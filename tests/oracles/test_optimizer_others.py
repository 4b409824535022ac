"""L-BFGS of torch and the averages of diffusers, trained on in a module with other parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paramtool.commands.relayout import unfuse
from paramtool.errors import PlanError
from tests.oracles.test_optimizer_training import CASES, Gpt, Recurrent

QKV: dict[str, Any] = {"layout": "qkv-conv1d", "spec": "qkv heads=2 kv_heads=2"}


def steps(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """Three steps of L-BFGS on one batch, each with several evaluations."""
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(4, 2, 3, dtype=torch.float64, generator=random)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        found = module(inputs)
        loss: torch.Tensor = found.square().mean() + found[..., 0].sin().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)  # type: ignore[arg-type]


def lbfgs(module: nn.Module) -> torch.optim.Optimizer:
    """With a step that is small enough to stay stable."""
    return torch.optim.LBFGS(module.parameters(), lr=0.05, max_iter=3, history_size=4)


def saved(path: Path, module: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module and its optimizer after three steps, and a file of them."""
    module = module.double()
    optimizer = lbfgs(module)
    steps(module, optimizer, 1)
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return module, optimizer


def test_lbfgs_goes_on_where_every_parameter_moves(tmp_path: Path) -> None:
    """c_attn is transposed on the way: each of its vectors over all parameters gets another order."""
    torch.manual_seed(0)
    first, optimizer = saved(tmp_path / "a.pt", Gpt(True))
    unfuse(tmp_path / "a.pt", tmp_path / "b.pt", **QKV)
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    old, new = optimizer.state_dict()["state"][0], found["optimizer"]["state"][0]
    assert not torch.equal(old["d"], new["d"]) and torch.equal(old["d"].sort().values, new["d"].sort().values)

    def resumed(*, has_state: bool) -> nn.Module:
        module = Gpt(False).double()
        module.load_state_dict(found["model"])
        its = lbfgs(module)
        if has_state:
            its.load_state_dict(found["optimizer"])
        steps(module, its, 2)
        return module

    steps(first, optimizer, 2)
    expected = first.state_dict()["h.1.attn.c_proj.weight"]
    same, other = (resumed(has_state=k).state_dict()["h.1.attn.c_proj.weight"] for k in (True, False))
    torch.testing.assert_close(same, expected, rtol=1e-9, atol=1e-12)
    assert (other - expected).abs().max() > 1e-6


def test_lbfgs_there_and_back_is_the_same_state(tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved(tmp_path / "a.pt", Gpt(True))
    case = CASES["c_attn as q, k and v"]
    case.there(tmp_path / "a.pt", tmp_path / "b.pt")
    case.back(tmp_path / "b.pt", tmp_path / "c.pt")
    before, after = (torch.load(tmp_path / name, weights_only=True) for name in ("a.pt", "c.pt"))
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_lbfgs_with_summed_biases_is_refused(tmp_path: Path) -> None:
    from paramtool.commands.relayout import convert

    torch.manual_seed(0)
    saved(tmp_path / "a.pt", Recurrent())
    with pytest.raises(PlanError, match="products of vectors over all parameters"):
        convert(tmp_path / "a.pt", tmp_path / "b.pt", target="keras")


def test_the_averages_of_diffusers_are_loaded_by_diffusers(tmp_path: Path) -> None:
    training = pytest.importorskip("diffusers.training_utils")
    torch.manual_seed(0)
    module = Gpt(True).double()
    optimizer = torch.optim.AdamW(module.parameters())
    average = training.EMAModel(module.parameters(), decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(2, 2, 3, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        average.step(module.parameters())
    states = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "ema": average.state_dict()}
    torch.save(states, tmp_path / "a.pt")
    unfuse(tmp_path / "a.pt", tmp_path / "b.pt", **QKV)
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    other = Gpt(False).double()
    resumed = training.EMAModel(other.parameters())
    resumed.load_state_dict(found["ema"])
    resumed.copy_to(other.parameters())
    average.copy_to(module.parameters())
    inputs = torch.randn(2, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(other(inputs), module(inputs), rtol=1e-12, atol=1e-12)
    assert resumed.optimization_step == 3 and not torch.equal(found["model"]["wte.weight"], other.wte.weight)
