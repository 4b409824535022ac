"""Training in Gluon that goes on with the states that paramtool read: 20 steps, 20 more, against 40 without a stop.

The states are set again by the names that the binding gives them, and the trainer says whose each of them was.  It
needs the environment of `make oracles` with MXNet 1.9.1.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import paramtool
from paramtool.commands.optimizers import bindings
from paramtool.commands.relayout import convert
from paramtool.errors import PlanError
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-oracles" / "mxnet1" / "bin" / "python"
SCRIPT = Path(__file__).parent / "frameworks" / "train_gluon.py"
CASES = ("adam", "momentum", "rmsprop")
MIXED = {"mixed-adam": 0, "mixed-sgd": 1, "mixed-adagrad": 0}
"""{case in float16: the place of its float32 copies}"""
FAR = 1e-4


def _run(folder: Path, stage: str) -> None:
    ran = subprocess.run([PYTHON, SCRIPT, folder, stage], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr[-2000:]


def _found(folder: Path) -> dict[str, np.ndarray]:
    """{name of the parameter and place: array}, as the binding says, float32 copies at the end."""
    states = folder / "t.states"
    (binding,) = bindings(states, paramtool.read(states))
    assert binding.is_unique, binding.words
    arrays = paramtool.load_file(states)
    masters = binding.optimizer.masters
    kept = {e.key: [s.tensor for s in e.slots] for e in binding.optimizer.entries}
    first = MIXED.get(folder.name)
    assert bool(masters) == (first is not None) and masters.keys() <= kept.keys()  # a normalisation stays float32
    for key, master in masters.items():
        assert first is not None
        kept[key].insert(first * len(kept[key]), master)
    return {f"{binding.names[key]} {n}": arrays[name] for key, names in kept.items() for n, name in enumerate(names)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of 20 steps."""
    if not PYTHON.exists():
        pytest.skip("make oracles runs it, in its environment with MXNet")
    folder = tmp_path_factory.mktemp("gluon")
    _run(folder, "make")
    return folder


@pytest.mark.parametrize("case", [*CASES, *MIXED])
def test_every_array_is_of_the_parameter_that_the_trainer_says(made: Path, case: str) -> None:
    """The trainer's own names and places, and the same bytes."""
    mine, theirs = _found(made / case), np.load(made / f"{case}.kept.npz")
    assert mine.keys() == set(theirs.files)
    assert all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)


def test_training_goes_on_and_controls_end_elsewhere(made: Path) -> None:
    for case in CASES:
        np.savez(made / f"{case}.found.npz", **_found(made / case))
    _run(made, "resume")
    for case, found in json.loads((made / "result.json").read_text()).items():
        assert found["found"] == 0, case
        assert min(found["without"], found["exchanged"]) > FAR, case


def test_a_state_beside_other_parameters_is_refused(made: Path, tmp_path: Path) -> None:
    """The folder of a model and its trainer: no file of MXNet's is written that the trainer could load."""
    with pytest.raises(
        PlanError, match=r"t\.states: the optimizer's state cannot follow: it is in the form gluon"
    ) as caught:
        convert(made / "adam", tmp_path / "out", source="mxnet", target="torch")
    assert "--optimizer-state drop" in (caught.value.hint or "") and not (tmp_path / "out").exists()
    convert(made / "adam", tmp_path / "out", source="mxnet", target="torch", optimizer_state=["drop"])
    assert not list((tmp_path / "out").glob("*.states"))
