"""Recurrent models of Flax, Haiku and Equinox: converted and run by torch or ONNX Runtime, or refused by name.

tests/oracles/frameworks/make_jax_models.py makes them, and writes down what they compute; it needs the environment of
`make oracles`, and so do these tests.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.commands.diff.diff import Diffed, diff
from paramtool.errors import LayoutError, ParamtoolError
from paramtool.model.diff import CHANGED, LAYOUT
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


def in_torch(cell: dict[str, np.ndarray], order: list[int], forget_bias: float = 0.0) -> dict[str, np.ndarray]:
    """An LSTM of torch, of a cell's `wide`, `deep` and `bias` with gates in some order; the bias is `bias_hh_l0`."""
    found = {key: np.split(one, 4, axis=-1) for key, one in cell.items()}
    wide, deep, bias = (np.concatenate([found[key][k].T for k in order]) for key in ("wide", "deep", "bias"))
    bias[len(bias) // 4 : len(bias) // 2] += np.float32(forget_bias)
    return {"weight_ih_l0": wide, "weight_hh_l0": deep, "bias_ih_l0": np.zeros_like(bias), "bias_hh_l0": bias}


def told(found: Diffed) -> list[tuple[str, tuple[str, ...], tuple[str, ...], str]]:
    return [(one.kind, one.a, one.b, one.how) for one in found.tensors]


@pytest.mark.parametrize("name", ["linen.lstm", "linen.optimized", "nnx.lstm", "nnx.optimized"])
def test_diff_of_flax_and_torch_with_the_bias_on_the_recurrent_side(made: Path, name: str, tmp_path: Path) -> None:
    """Both have it there.  NumPy makes torch's file, which computes the same; in both directions nothing is left."""
    with np.load(made / f"{name}.npz") as file:
        arrays = {key: one for key, one in file.items() if "enc" in key}
    own = {key.partition("enc")[2][1:].replace(".", "/").replace("if_", "if"): one for key, one in arrays.items()}
    if name == "nnx.optimized":
        cell = {"wide": own["dense_i/kernel"], "deep": own["dense_h/kernel"], "bias": own["dense_h/bias"]}
    else:
        ends = {"wide": ("i", "kernel"), "deep": ("h", "kernel"), "bias": ("h", "bias")}
        cell = {
            key: np.concatenate([own[f"{side}{gate}/{word}"] for gate in "ifgo"], axis=-1)
            for key, (side, word) in ends.items()
        }
    state = in_torch(cell, [0, 1, 2, 3])
    with np.load(made / f"{name}.io.npz") as known:
        zeros = np.zeros((1, known["x"].shape[1], known["y"].shape[2]), np.float32)
        close(run_torch("lstm", state, known["x"], zeros, zeros)[0], known["y"])
    a, b = tmp_path / "flax.npz", tmp_path / "torch.npz"
    np.savez(a, **arrays)
    np.savez(b, **{f"lstm.{key}": one for key, one in state.items()})
    assert diff(a, b).is_same, told(diff(a, b))
    assert diff(b, a).is_same, told(diff(b, a))
    state["bias_ih_l0"][5] = 1
    np.savez(b, **{f"lstm.{key}": one for key, one in state.items()})
    assert not diff(a, b).is_same and not diff(b, a).is_same


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("is_second", [False, True])
def test_diff_of_haiku_and_torch(made: Path, order: Literal["C", "F"], is_second: bool, tmp_path: Path) -> None:
    """The matrix is the same in both directions, the bias is changed for a reason, zeros beside it are left out.

    Haiku gives the module the name `lstm` unless it has another; its matrix may be stored column by column.
    """
    with np.load(made / "haiku.lstm.npz") as file:
        w, b = file["enc/linear/w"], file["enc/linear/b"]
    hidden = b.size // 4
    cell = {"wide": w[:-hidden], "deep": w[-hidden:], "bias": b}
    state = in_torch(cell, [0, 2, 1, 3], forget_bias=1.0)
    if not is_second:
        state["bias_ih_l0"], state["bias_hh_l0"] = state["bias_hh_l0"], state["bias_ih_l0"]
    with np.load(made / "haiku.lstm.io.npz") as known:
        zeros = np.zeros((1, known["x"].shape[1], hidden), np.float32)
        close(run_torch("lstm", state, known["x"], zeros, zeros)[0], known["y"])
    np.savez(tmp_path / "a.npz", **{"lstm/linear/w": np.asarray(w, order=order), "lstm/linear/b": b})
    np.savez(tmp_path / "b.npz", **state)
    bias, zero = ("bias_hh_l0", "bias_ih_l0")[:: 1 if is_second else -1]
    for one, other in (("a", "b"), ("b", "a")):
        found = diff(tmp_path / f"{one}.npz", tmp_path / f"{other}.npz")
        (changed,) = (row for row in found.tensors if row.kind != LAYOUT)
        assert changed.kind == CHANGED and changed.how.startswith("explained by a number that is added"), told(found)
        assert {*changed.a, *changed.b} - {zero} == {"lstm/linear/b", bias}, told(found)
