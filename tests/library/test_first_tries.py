"""What people type first in Python, before they read anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramtool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a tie."""
    weight = torch.ones(3, 2)
    torch.save({"emb.weight": weight, "head.weight": weight}, tmp_path / "a.pt")
    return tmp_path / "a.pt"


def test_a_checkpoint_is_a_mapping_of_its_names(path: Path) -> None:
    """By name, by `in`, by iteration and by length; a name that is not there has its neighbours."""
    found = paramtool.read(path)
    assert found["emb.weight"].shape == (3, 2) and found["emb.weight"] == found["head.weight"]  # type: ignore[union-attr]
    assert [*found] == [*found.keys()] == ["emb.weight", "head.weight"]
    assert len(found) == 2 and "emb.weight" in found and "wte" not in found
    with pytest.raises(KeyError, match=r"did you mean 'emb\.weight'"):
        found["emb.weigth"]


def test_an_empty_checkpoint_is_there(tmp_path: Path) -> None:
    torch.save({"epoch": 1}, tmp_path / "a.pt")
    assert len(paramtool.read(tmp_path / "a.pt")) == 0 and paramtool.read(tmp_path / "a.pt")


def test_an_alias_graph_takes_a_path(path: Path) -> None:
    assert paramtool.alias_graph(path) == paramtool.alias_graph(paramtool.read(path))


@pytest.mark.parametrize(
    ("name", "leads"),
    [("load", "load_file"), ("load_model", "paramtool.torch"), ("open", "read"), ("save", "save_file")],
)
def test_what_is_called_otherwise_leads_on(name: str, leads: str) -> None:
    with pytest.raises(AttributeError, match=leads):
        getattr(paramtool, name)
