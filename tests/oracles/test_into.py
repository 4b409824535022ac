"""Weights put into models of tf_keras, MXNet 1 and 2 and flax, which compute what PyTorch computes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import paramtool

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "frameworks" / "into_models.py"
BATCH = torch.arange(28).reshape(4, 7) % 20


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.enc = nn.Embedding(20, 6), nn.LSTM(6, 5, batch_first=True)
        self.bi, self.fc = nn.GRU(5, 4, batch_first=True, bidirectional=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, last = self.bi(self.enc(self.emb(x))[0])
        return self.fc(torch.cat([last[0], last[1]], -1))


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.enc, self.fc = nn.Embedding(20, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.enc(self.emb(x))[0][:, -1])


def saved(model: nn.Module, folder: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The output of a model whose weights were saved."""
    torch.save(model.state_dict(), folder / "m.pt")
    return model(BATCH).detach().numpy()


def run(environment: str, framework: str, does: str, folder: Path) -> None:
    """The script in the interpreter of a framework; skipped where that is not installed."""
    python = ROOT / ".venv-oracles" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there")
    more = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    more["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([python, SCRIPT, framework, does, folder], capture_output=True, text=True, env=more)
    assert done.returncode == 0, done.stderr[-3000:]


def test_tf_keras(tmp_path: Path) -> None:
    """A whole model and a file of weights of Keras 2."""
    expected = saved(Whole(), tmp_path)
    run("tf", "tf_keras", "make", tmp_path)
    for name in ("model.h5", "plain.h5"):
        maps = paramtool.convert(tmp_path / "m.pt", tmp_path / f"out.{name}", into=tmp_path / name, strict=True)
        assert maps.into is not None and not maps.into.unused
    run("tf", "tf_keras", "run", tmp_path)
    for name in ("out.npy", "weights.npy"):
        np.testing.assert_allclose(np.load(tmp_path / name), expected, atol=1e-6)


@pytest.mark.parametrize("environment", ["mxnet1", "mxnet2"])
def test_gluon(environment: str, tmp_path: Path) -> None:
    expected = saved(Whole(), tmp_path)
    run(environment, "mxnet", "run", tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)


def test_flax(tmp_path: Path) -> None:
    expected = saved(Half(), tmp_path)
    run("jax", "flax", "run", tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)
