"""Recurrent models of MXNet 1.9.1's Gluon, in each of its files: converted and run by torch, or refused by name.

tests/oracles/frameworks/make_mxnet_models.py makes them, and writes down what they compute; it needs the environment of
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
from tests.oracles.running import close, run_torch
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-oracles" / "mxnet1" / "bin" / "python"
SCRIPT = Path(__file__).parent / "frameworks" / "make_mxnet_models.py"
LAYER, CELL = ("mxnet.unfused", "mxnet"), ("mxnet.cell", "")
RIGHT = {"lstm": LAYER, "two": LAYER, "gru": LAYER, "cell": CELL, "gru_cell": CELL}
"""{model: the layouts of `save_parameters` and of `collect_params().save`}; a cell has no prefixed layout."""
WRONG = {"scaled": (LAYER, "scale"), "scaled_cell": (CELL, "gain")}
LAYOUTS = (None, "torch", "torch.cell", "mxnet", "mxnet.unfused", "mxnet.cell", "mxnet.gates", "onnx", "equinox")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models."""
    if not PYTHON.exists():
        pytest.skip("make oracles runs it, in its environment with MXNet 1.9.1")
    folder = tmp_path_factory.mktemp("mxnet")
    ran = subprocess.run([PYTHON, SCRIPT, folder], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return folder


def compare(made: Path, name: str, form: str, source: str | None, folder: Path) -> None:
    """What is converted computes what MXNet wrote down; LayoutError where it is refused."""
    with np.load(made / f"{name}.npz") as known:
        x, y = known["x"], known["y"]
    report = relayout_command.convert(
        made / f"{name}.{form}.params", folder / "o.safetensors", source=source, target="torch"
    )
    if len(report.converted) > 1:  # cells read as networks of their own are right, one by one
        assert {one.source.layout.name for one in report.converted} == {"mxnet.cell"}
        return
    (one,) = report.converted
    found = paramtool.load_file(folder / "o.safetensors")
    weights = {own: np.asarray(found[tensor]) for own, tensor in one.tensors.items()}
    state = np.zeros((one.spec.layers * one.spec.directions, x.shape[1], one.spec.hidden), np.float32)
    close(run_torch(one.spec.kind, weights, x, *([state, state] if one.spec.kind == "lstm" else [state]))[0], y)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("form", ["save", "collect"])
def test_the_library_s_own(made: Path, name: str, form: str, tmp_path: Path) -> None:
    """As the layout that its file is of."""
    source = dict(zip(["save", "collect"], RIGHT[name], strict=True))[form]
    if source:
        compare(made, name, form, source, tmp_path)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("form", ["save", "collect"])
@pytest.mark.parametrize("source", LAYOUTS)
def test_another_layout_is_refused_or_right(
    made: Path, name: str, form: str, source: str | None, tmp_path: Path
) -> None:
    """Whatever layout is said, or none: no other output comes of it."""
    try:
        compare(made, name, form, source, tmp_path)
    except ParamtoolError:
        assert not (tmp_path / "o.safetensors").exists()


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("form", ["save", "collect"])
def test_with_a_weight_of_its_own(made: Path, name: str, form: str, tmp_path: Path) -> None:
    """Refused with the name of the tensor, as whatever layout it is read."""
    if (name, form) == ("scaled", "save"):
        pytest.skip("save_parameters of a layer fails on names that it does not know")
    layouts, tensor = WRONG[name]
    source = dict(zip(["save", "collect"], layouts, strict=True))[form]
    path = made / f"{name}.{form}.params"
    if source:
        with pytest.raises(LayoutError, match=tensor):
            relayout_command.convert(path, tmp_path / "o.safetensors", source=source, target="torch")
    for other in LAYOUTS:
        with pytest.raises(ParamtoolError):
            relayout_command.convert(path, tmp_path / "o.safetensors", source=other, target="torch")
    assert not (tmp_path / "o.safetensors").exists()
