"""What a folder of a training has beside weights: `diff` and `lock` are of the weights, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramtool.commands.diff.diff import diff
from paramtool.commands.lock import lock

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")


def saved(folder: Path, rate: float) -> Path:
    """A folder as accelerate's `save_state` writes it, of the same weights whatever the rate."""
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(3, 3)
    accelerator.prepare(model, torch.optim.Adam(model.parameters(), rate))
    accelerator.save_state(str(folder))
    accelerator.free_memory()
    return folder


def test_diff_says_what_is_not_compared(tmp_path: Path) -> None:
    """Of both sides in one sentence; of a file nothing is said."""
    a, b = saved(tmp_path / "a", 0.1), saved(tmp_path / "b", 0.2)
    said = [text for text in diff(a, b).notes if "not compared" in text]
    assert len(said) == 1 and said[0].startswith("A and B: not compared: 'optimizer.bin', 'random_states_0.pkl'"), said
    alone = diff(a, b / "model.safetensors").notes
    assert any(text.startswith("A: not compared: 'optimizer.bin'") for text in alone), alone
    assert not any("not compared" in text for text in diff(*[one / "model.safetensors" for one in (a, b)]).notes)


def test_lock_says_what_is_not_locked(tmp_path: Path) -> None:
    found = lock([saved(tmp_path / "a", 0.1)], tmp_path / "my.lock")
    assert any("not locked: 'optimizer.bin'" in text for text in found.warnings), found.warnings
    assert "optimizer" not in found.text
