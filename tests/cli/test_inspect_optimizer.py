"""`inspect --optimizer`: the rows, the document, and the exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cli.test_documents import run
from tests.cli.test_reports import rows
from tests.hostile.command import quick


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two layers of one shape, one of which is frozen; an infinite learning rate, which JSON has no number for."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 3))
    saved: dict[str, Any] = {"model": model.state_dict()}
    for name, parameters in (("all", model.parameters()), ("some", [model[0].weight, *model[2].parameters()])):
        held = [*parameters]
        optimizer = torch.optim.SGD(
            [{"params": held[:-1], "lr": float("inf")}, {"params": held[-1:]}], lr=0.1, momentum=0.9
        )
        for parameter in held:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        saved[f"optim_{name}"] = optimizer.state_dict()
    torch.save(saved, tmp_path / "c.pt")
    return tmp_path


def test_rows(trained: Path) -> None:
    ran = quick("inspect", "c.pt", "--optimizer", cwd=trained)
    assert ran.code == 0, ran
    every, some = rows(ran, "optimizer")
    assert "bound by order of the model's 4 parameters" in every
    assert "optim_all" in every and "SGD" in every and "4 entries in 2 groups" in every
    assert "ambiguous: 2 neighbours of one shape, several places fit in the state dict's order" in some
    assert "0.weight, 1.weight" in rows(ran, "ambiguous")[0]
    assert "not bound" in "".join(rows(ran, "entry"))
    assert "lr inf" in rows(ran, "group")[0]


def test_the_document(trained: Path) -> None:
    """It is proved against its closed schema; without the flag the member is not there."""
    assert "optimizers" not in run("inspect", "c.pt", cwd=trained)
    every, some = run("inspect", "c.pt", "--optimizer", cwd=trained)["optimizers"]
    assert every["bound"]["how"] == "order" and every["groups"][0]["settings"]["lr"] == "inf"
    assert not some["bound"]["unique"] and some["ambiguous"] == [["0.weight", "1.weight"]]
    assert [one["name"] for one in some["parameters"]] == [None, "2.weight", "2.bias"]
    assert every["section"] == "model" and every["parameters"][0]["slots"] == ["momentum_buffer"]


def test_names_settle_it(trained: Path) -> None:
    (trained / "names.txt").write_text("[optim_some]\n0.weight\n2.weight\n2.bias\n")
    _, some = run("inspect", "c.pt", "--optimizer-names", "names.txt", cwd=trained)["optimizers"]
    assert some["bound"]["unique"] and some["unbound"] == ["1.weight"] and some["bound"]["how"] == "given"
    (trained / "names.txt").write_text("[optim_some]\n0.weight\n")
    ran = quick("inspect", "c.pt", "--optimizer-names", "names.txt", cwd=trained)
    assert ran.code == 2 and "has 1 name; optim_some has 3 entries" in ran.err, ran
    assert quick("inspect", "c.pt", "--optimizer-names", "gone.txt", cwd=trained).code == 2


def test_a_contradiction_is_listed_and_exits_with_3(trained: Path) -> None:
    saved = torch.load(trained / "c.pt")
    torch.save({"model": nn.Linear(5, 5).state_dict(), "optimizer": saved["optim_all"]}, trained / "other.pt")
    ran = quick("inspect", "other.pt", "--optimizer", cwd=trained)
    assert ran.code == 3 and "4 entries, more than the model's 2 parameters" in ran.err, ran
    assert "not bound" in rows(ran, "optimizer")[0]
    (found,) = run("inspect", "other.pt", "--optimizer", cwd=trained, code=3)["optimizers"]
    assert found["defects"] and not found["parameters"][0]["name"]


def test_a_damaged_optimizer(trained: Path) -> None:
    """All of its contradictions, and nothing is listed."""
    saved = {
        "model": {"w": torch.ones(2)},
        "optimizer": {"state": {7: {}}, "param_groups": [{"params": [0]}, {"params": [0]}]},
    }
    torch.save(saved, trained / "bad.pt")
    ran = quick("inspect", "bad.pt", "--optimizer", cwd=trained)
    assert ran.code == 3 and "2 defects" in ran.err and "entry 0 is in groups 0 and 1" in ran.err, ran


def test_a_file_without_one(trained: Path) -> None:
    torch.save({"w": torch.ones(2)}, trained / "w.pt")
    ran = quick("inspect", "w.pt", "--optimizer", cwd=trained)
    assert ran.code == 0 and "the file has no state of an optimizer" in rows(ran, "optimizer")[0]
    assert run("inspect", "w.pt", "--optimizer", cwd=trained)["optimizers"] == []
