"""What is written for MXNet 1.9.1, MXNet 2.0 and flax is opened by them, and computes what torch computes.

tests/oracles/frameworks/open_*.py run in the environments of `make oracles`; so these tests need them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import paramtool
from paramtool.commands import relayout as relayout_command
from tests.oracles.running import close
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "frameworks"
TOKENS, EMBEDDED, HIDDEN = 11, 6, 5


class Words(torch.nn.Module):
    """A language model: an embedding, an LSTM of two layers, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(TOKENS, EMBEDDED)
        self.encoder = torch.nn.LSTM(EMBEDDED, HIDDEN, 2)
        self.decoder = torch.nn.Linear(HIDDEN, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(T, N) tokens to (T, N, tokens)."""
        return self.decoder(self.encoder(self.embedding(x))[0])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with networks of torch, and what they compute."""
    torch.manual_seed(3)
    x, tokens = torch.randn(4, 3, EMBEDDED), torch.randint(TOKENS, (4, 3))
    known = {"x": x, "tokens": tokens}
    for kind in ("LSTM", "GRU", "RNN"):
        network = getattr(torch.nn, kind)(EMBEDDED, HIDDEN, 2, bidirectional=True)
        torch.save(network.state_dict(), tmp_path / f"{kind.lower()}.pt")
        known[kind.lower()] = network(x)[0].detach()
    one = torch.nn.LSTM(EMBEDDED, HIDDEN)
    torch.save({f"rnn.{name}": value for name, value in one.state_dict().items()}, tmp_path / "one.pt")
    known["one"] = one(x)[0].detach()
    words = Words()
    torch.save(words.state_dict(), tmp_path / "words.pt")
    known["words"] = words(tokens).detach()
    np.savez(tmp_path / "known.npz", **{name: value.numpy() for name, value in known.items()})
    return tmp_path


def opened(made: Path, environment: str, script: str) -> None:
    """What the framework computes from the files is what torch computes."""
    python = ROOT / ".venv-oracles" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"make oracles runs it, in its environment {environment}")
    ran = subprocess.run([python, SCRIPTS / script, made], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr[-3000:]
    with np.load(made / "known.npz") as known, np.load(made / "found.npz") as found:
        assert len(found.files) > 1
        for name in found.files:
            close(found[name], known[name.partition("-")[0]])


def test_mxnet_1(made: Path) -> None:
    """Block.load_parameters by both of its naming schemes, and load_checkpoint with `arg:`."""
    for kind in ("lstm", "gru", "rnn"):
        for layout in ("mxnet", "mxnet.unfused"):
            paramtool.convert(made / f"{kind}.pt", made / f"{kind}-{layout}.params", target=layout)
    paramtool.convert(made / "lstm.pt", made / "lstm-checkpoint-0000.params", target="mxnet", rename={"": "arg:enc"})
    paramtool.convert(made / "words.pt", made / "words-gluon.params", target="mxnet.unfused")
    types = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in TYPES}
    torch.save({**types, "none": torch.empty(0, 3), "long" * 100: torch.ones(1)}, made / "types.pt")
    paramtool.convert(made / "types.pt", made / "types.params")
    opened(made, "mxnet1", "open_mxnet1.py")


TYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "bfloat16")


def test_mxnet_2(made: Path) -> None:
    """load_parameters opens the .npz, also under the name .params."""
    for kind in ("lstm", "gru", "rnn"):
        paramtool.convert(made / f"{kind}.pt", made / f"{kind}-v2.npz", target="mxnet.v2")
    paramtool.convert(made / "words.pt", made / "words-v2.npz", target="mxnet.v2")
    (made / "words-v2.npz").rename(made / "words-v2.params")
    opened(made, "mxnet2", "open_mxnet2.py")


def test_flax(made: Path) -> None:
    """from_bytes into the variables of a module."""
    rename = {"rnn": "params/OptimizedLSTMCell_0"}
    paramtool.convert(made / "one.pt", made / "one.msgpack", target="flax.linen", rename=rename)
    state = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in (*TYPES, "complex64")}
    torch.save({**state, "a/b/scalar": torch.tensor(3.0), "a/none": torch.empty(0, 3)}, made / "types.pt")
    paramtool.convert(made / "types.pt", made / "types.msgpack")
    opened(made, "jax", "open_flax.py")


def test_what_mxnet_2_cannot_read_is_said(tmp_path: Path) -> None:
    """bfloat16 in an archive for it is a warning; an NDArray list for it is refused."""
    state = {**torch.nn.LSTM(3, 4).state_dict(prefix="rnn."), "half": torch.ones(2, dtype=torch.bfloat16)}
    torch.save(state, tmp_path / "m.pt")
    report = relayout_command.convert(tmp_path / "m.pt", tmp_path / "m.npz", target="mxnet.v2")
    assert any("MXNet 2 cannot read" in warning and "'half' (bfloat16)" in warning for warning in report.warnings)
    with pytest.raises(paramtool.errors.UsageError, match=r"it loads \.npz"):
        relayout_command.convert(tmp_path / "m.pt", tmp_path / "m.params", target="mxnet.v2")
