"""Recurrent models of Flax, Haiku and Equinox: converted and run by torch or ONNX Runtime, or refused by name.

tests/oracles/frameworks/make_jax_models.py makes them, and writes down what they compute; it needs the environment of
`make oracles`, and so do these tests.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError, ParamtoolError
from tests.oracles.running import below, close, run_onnx, run_torch
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-oracles" / "jax" / "bin" / "python"
SCRIPT = Path(__file__).parent / "frameworks" / "make_jax_models.py"

RIGHT = {
    "linen.lstm": ("flax.linen", "lstm"),
    "linen.optimized": ("flax.linen", "lstm"),
    "linen.gru": ("flax.linen", "gru"),
    "linen.simple": ("flax.linen", "rnn"),
    "nnx.lstm": ("flax.nnx", "lstm"),
    "nnx.optimized": ("flax.nnx.optimized", "lstm"),
    "nnx.gru": ("flax.nnx", "gru"),
    "nnx.simple": ("flax.nnx", "rnn"),
    "haiku.lstm": ("haiku", "lstm"),
    "haiku.gru": ("haiku", "gru"),
    "haiku.rnn": ("haiku", "rnn"),
    "equinox.lstm": ("equinox", "lstm"),
    "equinox.gru": ("equinox", "gru"),
}
"""{model: its layout and kind}."""
WRONG = {
    "linen.normed": ("flax.linen", "params/enc/ln/scale"),
    "nnx.normed": ("flax.nnx", "enc.ln.scale"),
    "haiku.normed": ("haiku", "enc/ln/scale"),
    "equinox.normed": ("equinox", "enc.scale"),
    "equinox.own": ("equinox", "enc.gain"),
}
"""{model of a cell of one's own: the layout that it looks like, and the tensor that shows that it is another}."""
LAYOUTS = ("torch", "torch.cell", "equinox", "flax.linen", "flax.nnx", "flax.nnx.optimized", "haiku", "keras", "mxnet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models."""
    if not PYTHON.exists():
        pytest.skip("make oracles runs it, in its environment with JAX")
    folder = tmp_path_factory.mktemp("jax")
    ran = subprocess.run([PYTHON, SCRIPT, folder], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return folder


def compare(made: Path, name: str, folder: Path, kind: str, source: str | None, spec: str = "") -> None:
    """What is converted computes what the model's library wrote down; LayoutError where it is refused."""
    with np.load(made / f"{name}.io.npz") as known:
        x, y = known["x"], known["y"]
    state = np.zeros((1, x.shape[1], y.shape[2]), np.float32)
    target = "onnx" if name == "haiku.gru" else "torch"  # torch has no reset gate before the product
    relayout_command.convert(
        made / f"{name}.npz", folder / "o.safetensors", source=source, target=target, spec=spec, at=("*enc",)
    )
    found = paramtool.load_file(folder / "o.safetensors")
    at = next(word for word in found if "enc." in word).partition("enc.")[0] + "enc"
    if target == "onnx":
        close(run_onnx(kind, below(found, at), x, state), y)
        return
    states = (state, state) if kind == "lstm" else (state,)
    weights = {own: value for own, value in below(found, at).items() if own.endswith("_l0")}
    if "activation=relu" in spec:
        h = state[0]
        for step, expected in zip(x, y, strict=True):
            h = np.maximum(weights_of(weights, step, h), 0)
            close(h, expected)
        return
    close(run_torch(kind, weights, x, *states)[0], y)


def weights_of(weights: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """W x + bW + R h + bR of torch's tensors."""
    biases = weights["bias_ih_l0"] + weights["bias_hh_l0"]
    return x @ weights["weight_ih_l0"].T + h @ weights["weight_hh_l0"].T + biases


@pytest.mark.parametrize("name", RIGHT)
def test_the_library_s_own_cells(made: Path, name: str, tmp_path: Path) -> None:
    """As the layout that they are of."""
    layout, kind = RIGHT[name]
    spec = "rnn activation=relu" if name == "haiku.rnn" else "rnn activation=tanh" if kind == "rnn" else ""
    compare(made, name, tmp_path, kind, layout, spec)


@pytest.mark.parametrize("source", [None, *LAYOUTS])
@pytest.mark.parametrize("name", RIGHT)
def test_another_layout_is_refused_or_right(made: Path, name: str, source: str | None, tmp_path: Path) -> None:
    """Whatever layout is said, or none: no other output comes of it."""
    if RIGHT[name][0] == source:
        return
    try:
        compare(made, name, tmp_path, RIGHT[name][1], source)
    except ParamtoolError:
        assert not (tmp_path / "o.safetensors").exists()


@pytest.mark.parametrize("name", WRONG)
def test_cells_of_one_s_own(made: Path, name: str, tmp_path: Path) -> None:
    """Refused with the name of the tensor, as whatever layout they are read."""
    layout, tensor = WRONG[name]
    with pytest.raises(LayoutError, match=tensor):
        relayout_command.convert(
            made / f"{name}.npz", tmp_path / "o.safetensors", source=layout, target="torch", at=("*enc",)
        )
    for source in (None, *LAYOUTS):
        with pytest.raises(ParamtoolError):
            relayout_command.convert(
                made / f"{name}.npz", tmp_path / "o.safetensors", source=source, target="torch", at=("*enc",)
            )
    assert not (tmp_path / "o.safetensors").exists()
