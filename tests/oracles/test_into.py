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
from paramtool.errors import LayoutError

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


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras 3.15's own
@pytest.mark.parametrize("gamma", ["0", "1"], ids=["trained", "fixed"])
def test_the_symbol_of_mxnet(gamma: str, tmp_path: Path) -> None:
    """`fix_gamma` makes MXNet compute with 1, whatever the file holds; and it flattens channels first."""
    keras = pytest.importorskip("keras")
    from tests.oracles.into_cases import k, seq

    run("mxnet1", "symbol", gamma, tmp_path)
    model = seq((5, 5, 3), k.Conv2D(4, 3, name="conv"), k.BatchNormalization(name="bn", epsilon=1e-3), k.Flatten(),
                k.Dense(5, name="fc"))  # fmt: skip
    model.save(tmp_path / "m.keras")
    source, ran = tmp_path / "m-0000.params", np.load(tmp_path / "run.npz")
    with pytest.raises(LayoutError, match="an image of 4 channels is flattened there"):
        paramtool.convert(source, tmp_path / "out.keras", into=tmp_path / "m.keras")
    report = paramtool.convert(
        source, tmp_path / "out.keras", into=tmp_path / "m.keras", strict=True, flatten="channels-first"
    )
    assert any("is filled with 1" in text for text in report.warnings) == (gamma == "1")
    found = keras.saving.load_model(tmp_path / "out.keras").predict(np.moveaxis(ran["x"], 1, -1), verbose=0)
    np.testing.assert_allclose(found, ran["y"], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("gamma", ["0", "1"], ids=["trained", "fixed"])
def test_a_block_whose_gamma_is_fixed(gamma: str, tmp_path: Path) -> None:
    """It has a gamma, and does not use it."""
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    nn.init.uniform_(module[1].weight, 2, 3)
    torch.save(module.state_dict(), tmp_path / "m.pt")
    x = torch.rand(2, 4)
    np.save(tmp_path / "x.npy", x.numpy())
    run("mxnet1", "gluon", gamma, tmp_path)
    if gamma == "1":
        assert "'1.weight' of the source has no place" in (tmp_path / "refused.txt").read_text()
    else:
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), module(x).detach().numpy(), atol=1e-5)
