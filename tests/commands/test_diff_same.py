"""What is the same weights: ties that one side does not store, and what a report may be asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import paramtool
from paramtool.commands.diff import tables
from paramtool.commands.diff.diff import Diffed, diff
from paramtool.passes.rnn import find as finding


def both(a: Path, b: Path) -> tuple[Diffed, Diffed]:
    return diff(a, b), diff(b, a)


def test_a_name_that_one_side_does_not_store(findings: Path) -> None:
    """The head of a tied model in a `.pt`, and not in the safetensors file beside it."""
    at = findings / "field" / "diff-tied-name"
    for found in both(at / "tied.pt", at / "tied.safetensors"):
        assert found.is_same and not found.judge(strict=True)
        assert found.verdict == "same weights, tied otherwise" and not found.ties


BIG = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
TIED: dict[str, tuple[dict[str, torch.Tensor], str, bool]] = {
    "the whole": ({"x": BIG, "y": BIG}, "y", True),
    "a transpose": ({"x": BIG, "y": BIG.T}, "y", True),
    "rows": ({"x": BIG, "y": BIG[8:16]}, "y", True),
    "what holds them": ({"x": BIG[:20], "z": BIG[20:], "y": BIG}, "y", True),
    "more than they hold": ({"x": BIG[:20], "y": BIG}, "y", False),
    "other memory": ({"x": BIG, "y": BIG.clone()}, "y", False),
}


@pytest.mark.parametrize("case", TIED)
def test_what_a_tie_leaves_out(case: str, tmp_path: Path) -> None:
    """All elements of the name that one side lacks have to be in its memory, under a name that both have."""
    state, name, is_same = TIED[case]
    torch.save(state, tmp_path / "a.pt")
    torch.save({key: value.clone() for key, value in state.items() if key != name}, tmp_path / "b.pt")
    for found in both(tmp_path / "a.pt", tmp_path / "b.pt"):
        assert found.is_same is is_same, found.tensors
        assert (found.verdict == "same weights, tied otherwise") is is_same


def test_a_tie_of_a_tensor_that_changed(tmp_path: Path) -> None:
    """The tie is not lost with it, and the weights are others all the same."""
    torch.save({"x": BIG, "y": BIG}, tmp_path / "a.pt")
    save_file({"x": BIG + 1}, tmp_path / "b.safetensors")
    for found in both(tmp_path / "a.pt", tmp_path / "b.safetensors"):
        assert not found.is_same and found.verdict == "different weights"


def test_names_that_only_one_side_shares(tmp_path: Path) -> None:
    """Both store both names: a training goes on with two tensors in place of one."""
    torch.save({"x": BIG, "y": BIG}, tmp_path / "a.pt")
    save_file({"x": BIG, "y": BIG.clone()}, tmp_path / "b.safetensors")
    for found in both(tmp_path / "a.pt", tmp_path / "b.safetensors"):
        assert not found.is_same and found.verdict == "same weights, tied otherwise" and found.ties


def test_equal_tensors_that_a_record_stores_once(findings: Path, tmp_path: Path) -> None:
    """The record says that they are equal and separate on load, so that nothing is tied otherwise."""
    at = findings / "field" / "diff-own-outputs"
    paramtool.dedup(at / "two_equal.safetensors", tmp_path / "d.safetensors")
    for path in (at / "d.safetensors", tmp_path / "d.safetensors"):
        for found in both(at / "two_equal.safetensors", path):
            assert found.judge(strict=True) and found.verdict == "same weights"


@pytest.mark.parametrize("layers", [1, 6])
def test_networks_are_looked_for_once(layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of tensors, the whole of a file is searched a few times."""
    model = nn.ModuleList([nn.GRU(4, 8) for _ in range(layers)])
    optimizer = torch.optim.Adam(model.parameters())
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    path = tmp_path / "a.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    paramtool.convert(path, tmp_path / "b.pt", target="cudnn")
    whole, real = [], finding.find

    def counted(checkpoint: paramtool.Checkpoint, wanted: finding.NetworkRequest) -> list[finding.Found]:
        whole.append(len(checkpoint.entries) > 4)
        return real(checkpoint, wanted)

    for module in (finding, tables):
        monkeypatch.setattr(module, "find", counted)
    both(path, tmp_path / "b.pt")
    assert 0 < sum(whole) <= 8
