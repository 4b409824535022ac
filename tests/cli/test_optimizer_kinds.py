"""What libraries' optimizers keep, under a join: moved exactly, moved with a remark, or refused by name.

The files of fixtures/optimizers are those that the libraries wrote; torch's and transformers' are made here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hostile.command import Ran, quick

FIXTURES = Path(__file__).parents[2] / "fixtures" / "optimizers" / "run"
PARTS = ("q_proj", "k_proj", "v_proj")
Made = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def fused(path: Path, output: Path, *more: str) -> Ran:
    """q, k and v as one tensor."""
    return quick("fuse", path, "--layout", "qkv", "-o", output, "--json", *more, cwd=Path.cwd())


def moved(path: Path, output: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report on the optimizer, and the state of the joined parameter; `verify` agrees."""
    ran = fused(path, output)
    assert ran.code == 0, ran
    found: dict[str, Any] = json.loads(ran.out)["optimizer"]
    verified = quick("verify", output, "--against", path, cwd=Path.cwd())
    assert verified.code == 0, verified
    (entry,) = torch.load(output, weights_only=True)["optimizer"]["state"].values()
    return found, entry


def refusal(path: Path, output: Path) -> str:
    """Why the state cannot follow; nothing is written then, and the model alone can be."""
    ran = fused(path, output)
    assert ran.code == 6 and "--optimizer-state drop" in ran.err and not output.exists(), ran
    assert fused(path, output, "--optimizer-state", "drop").code == 0
    return ran.err


def trained(make: Made, path: Path) -> Path:
    """A training file of three projections."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"attn": nn.ModuleDict({name: nn.Linear(8, 8, bias=False) for name in PARTS})})
    optimizer = make(model.parameters())
    for _ in range(3):
        for one in model.parameters():
            one.grad = torch.randn_like(one)
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def test_muon_moves_with_a_remark(tmp_path: Path) -> None:
    path = trained(lambda p: torch.optim.Muon(p, lr=1e-3), tmp_path / "a.pt")
    found, entry = moved(path, tmp_path / "b.pt")
    old = torch.load(path, weights_only=True)["optimizer"]["state"]
    assert torch.equal(entry["momentum_buffer"], torch.cat([old[k]["momentum_buffer"] for k in range(3)]))
    assert found["training"] == [
        "optimizer: the training that continues is not the same: Muon orthogonalises the update of a whole matrix"
    ]


@pytest.mark.parametrize(("name", "slot", "words"), [
    ("run", "momentum_buffer", "LARS scales the update by the norms of a whole tensor"),
    ("lamb", "exp_avg", "LAMB scales the update by the norms of a whole tensor"),
])  # fmt: skip
def test_trust_ratios_move_with_a_remark(name: str, slot: str, words: str, tmp_path: Path) -> None:
    found, entry = moved(FIXTURES / f"{name}.pt", tmp_path / "b.pt")
    old = torch.load(FIXTURES / f"{name}.pt", weights_only=True)["optimizer"]["state"]
    assert torch.equal(entry[slot], torch.cat([old[k][slot] for k in range(3)]))
    assert any(words in line for line in found["training"])
    if name == "lamb":  # what each step calculates before it is read
        assert entry.keys() == {"exp_avg", "exp_avg_sq"} and any("trust_ratio" in line for line in found["training"])


def test_an_optimizer_that_nobody_knows_moves_with_a_remark(tmp_path: Path) -> None:
    path = trained(torch.optim.Adam, tmp_path / "a.pt")
    found = torch.load(path, weights_only=True)
    found["optimizer"]["param_groups"] = [{"lr": 0.1, "params": [0, 1, 2]}]
    torch.save(found, path)
    (line,) = moved(path, tmp_path / "b.pt")[0]["training"]
    assert "which optimizer it is, is not known" in line


@pytest.mark.parametrize("make", [torch.optim.Adafactor, lambda p: torch.optim.Adafactor(p, lr=1e-3)])
def test_the_factored_statistics_of_torch_are_refused(make: Made, tmp_path: Path) -> None:
    told = refusal(trained(make, tmp_path / "a.pt"), tmp_path / "b.pt")
    assert "'row_var' keeps statistics of rows and columns" in told


def test_the_factored_statistics_of_transformers_are_refused(tmp_path: Path) -> None:
    from transformers.optimization import Adafactor

    told = refusal(trained(Adafactor, tmp_path / "a.pt"), tmp_path / "b.pt")
    assert "'exp_avg_sq_row' keeps statistics of rows and columns" in told


@pytest.mark.parametrize(("name", "words"), [
    ("shampoo", "Shampoo keeps preconditioners"), ("soap", "SOAP keeps preconditioners"),
])  # fmt: skip
def test_preconditioners_are_refused(name: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(FIXTURES / f"{name}.pt", tmp_path / "b.pt")


def test_projections_are_refused(tmp_path: Path) -> None:
    """The class of GaLore's projector is refused before; with it allowed, the reason is the projection."""
    words = ("--allow-class", "galore_torch.galore_projector.GaLoreProjector")
    ran = fused(FIXTURES / "galore.pt", tmp_path / "b.pt", *words)
    assert ran.code == 6 and "GaLore keeps moments in a projection" in ran.err, ran


def test_quantised_blocks_that_are_not_cut_move_with_their_scales(tmp_path: Path) -> None:
    """As numbers: the codes times the scales of the blocks are those of the parts, one behind the other."""
    _, entry = moved(FIXTURES / "adam8bit.pt", tmp_path / "b.pt")
    old = torch.load(FIXTURES / "adam8bit.pt", weights_only=True)["optimizer"]["state"]

    def numbers(state: dict[str, torch.Tensor], which: int) -> torch.Tensor:
        codes = state[f"qmap{which}"][state[f"state{which}"].long().reshape(-1, 256)]
        return codes * state[f"absmax{which}"][:, None]

    key = "__bnb_optimizer_quant_state__"
    assert entry["step"] == 3 and entry[key]["state1"].shape == (192, 64) and entry[key]["state1"].dtype == torch.uint8
    for which in (1, 2):
        parts = torch.cat([numbers(old[k][key], which) for k in range(3)])
        assert torch.equal(numbers(entry[key], which), parts) and parts.abs().max() > 0


def test_quantised_blocks_that_would_be_cut_are_refused(tmp_path: Path) -> None:
    told = refusal(FIXTURES / "adam8bit_cut.pt", tmp_path / "b.pt")
    assert "blocks of 256 elements of 'model.attn.q_proj.weight' would be cut" in told


def test_the_moment_of_two_biases_that_are_summed_is_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(3, 4)})
    optimizer = torch.optim.Adam(model.parameters())
    model["lstm"](torch.randn(2, 1, 3))[0].sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    ran = quick("convert", tmp_path / "a.pt", "--to", "keras", "-o", tmp_path / "b.pt", "--json", cwd=Path.cwd())
    (line,) = json.loads(ran.out)["optimizer"]["training"]
    assert ran.code == 0 and "a learning rate of twice the group's continues as before" in line
