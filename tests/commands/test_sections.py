"""`passes/select.py`: one section of a checkpoint, or the part that holds the names that are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramtool
from paramtool.errors import UsageError
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Mapping, TensorRef, walk
from paramtool.passes.select import section, section_for


@pytest.fixture
def trained(tmp_path: Path) -> Checkpoint:
    """A model, its EMA, and optimizer state."""
    model = {"w": torch.ones(2), "b": torch.ones(3)}
    state = {0: {"exp_avg": torch.ones(2)}}
    saved = {"model": model, "ema": {"w": torch.ones(2)}, "optimizer": {"state": state, "param_groups": []}, "epoch": 1}
    torch.save(saved, tmp_path / "m.pt")
    return paramtool.read(tmp_path / "m.pt")


def test_a_section_has_its_names_without_the_prefix(trained: Checkpoint) -> None:
    """Names, storages and objects are those of the section alone."""
    found = section(trained, "model")
    assert list(found.entries) == ["w", "b"]
    assert found.objects == Mapping("dict", (("w", TensorRef("w")), ("b", TensorRef("b"))))
    assert found.storages.keys() == {view.storage for _, view in found.windows()}
    assert len(found.storages) == 2


def test_roles_go_along(trained: Checkpoint) -> None:
    """What was optimizer state stays optimizer state."""
    assert {entry.role for entry in section(trained, "optimizer").entries.values()} == {"optimizer"}
    assert {entry.role for entry in section(trained, "ema").entries.values()} == {"ema"}


def test_every_tensor_of_the_objects_is_a_name(trained: Checkpoint) -> None:
    """The tree of a section points at the section's names."""
    for part in trained.sections:
        found = section(trained, part.name)
        assert [n.name for n in walk(found.objects) if isinstance(n, TensorRef)] == list(found.entries)


def test_an_unknown_section_is_an_error_that_lists_them(trained: Checkpoint) -> None:
    """The message has the sections there are."""
    with pytest.raises(UsageError, match="'model', 'ema', 'optimizer'"):
        section(trained, "net")


def test_the_section_with_most_of_the_names_is_taken(trained: Checkpoint) -> None:
    """A model that wants w and b is served from `model`, without being told."""
    assert section_for(trained, ["w", "b"]) == "model"
    assert section_for(trained, ["model.w", "ema.w"]) is None


def test_a_draw_is_an_error(trained: Checkpoint) -> None:
    """Where two sections hold what is wanted, the choice is the user's."""
    with pytest.raises(UsageError, match="'model', 'ema'"):
        section_for(trained, ["w"])


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_what_a_section_refers_to_outside_is_told(tmp_path: Path, suffix: str) -> None:
    """An object around the section is not in the output, and the report says so."""
    model: dict[str, object] = {"w": torch.ones(2)}
    saved: dict[str, object] = {"model": model, "epoch": 1}
    model["around"] = saved
    torch.save(saved, tmp_path / "m.pt")
    found = paramtool.dedup(tmp_path / "m.pt", tmp_path / f"out.{suffix}", only="model")
    assert any("a reference to 'the top'" in text for text in found.left_out)
    again = paramtool.dedup(tmp_path / f"out.{suffix}", tmp_path / "again.safetensors")
    assert any("a reference to" in text for text in again.left_out) == (suffix == "safetensors")
    assert not any("does not hold" in text for text in (*found.warnings, *again.warnings))
