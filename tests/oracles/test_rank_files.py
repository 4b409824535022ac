"""FSDP2, FSDP1 and tensor parallelism in several processes: what paramtool joins is the model before it was split."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import paramtool.torch
from tests.hostile.command import quick
from tests.patience import PATIENCE

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
SAVED = {"fsdp2": (2, 3), "fsdp1": (2, 3), "hybrid": (4,), "tensor parallel": (4,)}


@pytest.mark.parametrize(("kind", "world"), [(kind, world) for kind, worlds in SAVED.items() for world in worlds])
def test_ranks_are_joined(kind: str, world: int, tmp_path: Path) -> None:
    """Sizes that do not divide, ties, buffers, a mesh of two axes; `dedup` of the folder is verified."""
    pytest.importorskip("torch.distributed.fsdp", reason="needs FSDP")
    (tmp_path / "ranks").mkdir()
    script = Path(__file__).with_name("run_ranks.py")
    words = [sys.executable, str(script), str(tmp_path), kind, str(world)]
    started = [subprocess.Popen([*words, str(rank)]) for rank in range(world)]
    assert [one.wait(timeout=PATIENCE) for one in started] == [0] * world
    truth = torch.load(tmp_path / "truth.pt")
    found = paramtool.torch.load_file(tmp_path / "ranks")
    assert found.keys() == truth.keys()
    assert all(torch.equal(found[name], truth[name]) for name in truth)
    if kind != "fsdp1":  # which gives each name tensors of its own
        assert found["head.weight"].data_ptr() == found["emb.weight"].data_ptr()
        state = paramtool.read(tmp_path / "ranks", f"optim_world_size_{world}_rank_0.pt")
        assert state.views()["state.0.exp_avg"].shape == truth["emb.weight"].shape
    assert quick("dedup", "ranks", "-o", "out", cwd=tmp_path).code == 0
    assert quick("verify", "out", "--against", "ranks", cwd=tmp_path).code == 0
