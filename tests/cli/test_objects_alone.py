"""Files of a training run without a model in them, and folders of torch.distributed.checkpoint."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from tests.cli.test_documents import validate
from tests.hostile.command import quick, refused


def sgd() -> Any:
    """An optimizer that has no state."""
    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


def adam() -> Any:
    """One that has."""
    net = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.25)
    net(torch.ones(2)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


FILES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "SGD": (
        lambda: sgd().state_dict(),
        ("state  dict, empty", "param_groups.0.lr  0.1", "param_groups.0.params  [0, 1]"),
    ),
    "AdamW": (adam, ("param_groups.0.lr  0.25", "param_groups.0.betas  (0.9, 0.999)")),
    "scheduler": (lambda: torch.optim.lr_scheduler.StepLR(sgd(), 7).state_dict(), ("step_size  7", "base_lrs  [0.1]")),
    "random states": (
        lambda: {"python": random.getstate(), "cpu": torch.random.get_rng_state()},
        ("python.0  3", "python.1  tuple of 625 values", "python.2  None"),
    ),
    "NumPy's": (lambda: {"numpy": np.random.RandomState(0).get_state()}, ("numpy.0  'MT19937'",)),
    "a number": (lambda: 3, ("(the value)  3",)),
    "a text": (lambda: {"": "x" * 1000}, (f"''  'x{'x' * 78}...",)),
    "bytes": (lambda: {"k": b"x" * 9, "n": 1 << 5000}, ("k  9 bytes", "n  an integer of 5001 bits")),
    "odd keys": (lambda: {0: {1.5: None, (1, 2): True}}, ("0.1.5  None", "0.(1, 2)  True")),
    "many": (lambda: {str(k): k for k in range(99)}, ("0  0", "39  39", "and more  --verbose and --json list them")),
}  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("key", FILES)
def test_what_is_in_it_is_listed(key: str, zipped: bool, tmp_path: Path) -> None:
    """Exit 0, the plain values with their paths, and nothing of comparing tensors that are not there."""
    make, expected = FILES[key]
    torch.save(value := make(), tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    ran = quick("inspect", "m.pt", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, ""), ran
    lines = ran.out.splitlines()
    assert all(any(line.startswith(f"object  {text}") for line in lines) for text in expected), ran.out
    holds_tensors = key in ("AdamW", "random states") or "numpy" in str(value)[:8]
    if not holds_tensors:
        assert not any(line.startswith(("not done", "next")) for line in lines)
    listed = validate("inspect", quick("inspect", "m.pt", "--json", cwd=tmp_path).out)["objects"]
    assert all(f"object  {one['path']}  {one['value']}" in lines for one in listed[:40])


@pytest.mark.parametrize("key", ["SGD", "scheduler", "a number"])
def test_dedup_says_that_there_is_no_tensor(key: str, tmp_path: Path) -> None:
    """Nothing to write is an error, and nothing is written."""
    torch.save(FILES[key][0](), tmp_path / "m.pt")
    for output in ("o.safetensors", "o.pt"):
        refused(quick, "dedup", "m.pt", "-o", output, cwd=tmp_path, code=6, says=("m.pt", "holds no tensor"))


def test_an_optimizer_alone_is_no_model(tmp_path: Path) -> None:
    """Its state is of a training, section by section."""
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    found = json.loads(quick("inspect", "optimizer.pt", "--json", cwd=tmp_path).out)
    assert [(one["name"], one["role"]) for one in found["sections"]] == [("state", "optimizer")]
    assert found["parameters"] == 0


def test_models_are_listed_without_their_objects(tmp_path: Path) -> None:
    """Where a tensor is a model's, the row of the file and the sections say what it is."""
    torch.save({"model": nn.Linear(2, 2).state_dict(), "epoch": 3}, tmp_path / "m.pt")
    assert "object  " not in quick("inspect", "m.pt", cwd=tmp_path).out
    assert "objects" not in validate("inspect", quick("inspect", "m.pt", "--json", cwd=tmp_path).out)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "state", [{"a": torch.ones(3)}, {"model": {"a": torch.ones(3), "b": torch.ones(4)}, "epoch": 3}]
)
def test_a_distributed_checkpoint(state: dict[str, Any], tmp_path: Path) -> None:
    """The folder is read, also if its `.metadata` is named; a file of a rank alone is not, and the error names it."""
    dcp.save(state, checkpoint_id=tmp_path / "my ck", no_dist=True)
    for path in ("my ck", "my ck/.metadata"):
        ran = quick("inspect", path, "--tensors", cwd=tmp_path)
        assert ran.code == 0 and ran.out.count("[3] float32") == 1, ran
    refused(quick, "inspect", "my ck/__0_0.distcp", cwd=tmp_path, code=3, says=("one rank", "'my ck'"))
    refused(quick, "inspect", "__0_0.distcp", cwd=tmp_path / "my ck", code=3, says=(".metadata", " .\n"))
