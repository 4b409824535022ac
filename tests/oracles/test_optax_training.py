"""Training with optax that goes on from what paramtool wrote: 20 steps, a conversion and back, 20 more, against 40.

Flax reads the file by its own `from_bytes`, and optax itself says whose each array of its state is.  It needs the
environment of `make oracles` with JAX.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import paramtool
from paramtool.commands.optimizers import bindings
from paramtool.commands.relayout import convert
from paramtool.errors import PlanError
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-oracles" / "jax" / "bin" / "python"
SCRIPT = Path(__file__).parent / "frameworks" / "train_optax.py"
THERE_AND_BACK = ("adam", "chain", "amsgrad", "inject", "momentum", "rmsprop", "accumulated")
AS_IT_IS = ("masked", "multi")
"""What is kept for a bias is not what is kept for a weight, so that they cannot become one vector of torch's order."""
FAR = 1e-4


def _run(folder: Path, stage: str) -> None:
    ran = subprocess.run([PYTHON, SCRIPT, folder, stage], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of 20 steps."""
    if not PYTHON.exists():
        pytest.skip("make oracles runs it, in its environment with JAX")
    folder = tmp_path_factory.mktemp("optax")
    _run(folder, "make")
    return folder


@pytest.fixture(scope="module")
def found(made: Path) -> dict[str, dict[str, float]]:
    """How far each run is from one without a stop."""
    for case in THERE_AND_BACK:
        convert(made / f"{case}.msgpack", made / f"{case}.safetensors", source="flax.linen", target="torch")
        convert(made / f"{case}.safetensors", made / f"{case}.moved.msgpack", target="flax.linen")
    for case in AS_IT_IS:
        paramtool.dedup(made / f"{case}.msgpack", made / f"{case}.safetensors")
        convert(made / f"{case}.safetensors", made / f"{case}.moved.msgpack")
    _run(made, "resume")
    result: dict[str, dict[str, float]] = json.loads((made / "result.json").read_text())
    return result


@pytest.mark.parametrize("case", [*THERE_AND_BACK, *AS_IT_IS])
class TestOptax:
    """Each chain of transformations."""

    def test_every_array_is_of_the_parameter_that_optax_says(self, made: Path, case: str) -> None:
        path = made / f"{case}.msgpack"
        (binding,) = bindings(path, paramtool.read(path))
        assert binding.is_unique
        mine = {s.tensor: binding.names[e.key] for e in binding.optimizer.entries for s in e.slots}
        assert mine == json.loads((made / f"{case}.names.json").read_text())

    def test_training_goes_on(self, found: dict[str, dict[str, float]], case: str) -> None:
        assert (found[case]["moved"], found[case]["state"]) == (0, 0)

    def test_controls_end_elsewhere(self, found: dict[str, dict[str, float]], case: str) -> None:
        assert min(found[case]["without"], found[case]["exchanged"]) > FAR


@pytest.mark.parametrize("case", [*THERE_AND_BACK, *AS_IT_IS])
def test_a_file_that_is_written_again_has_the_same_bytes(made: Path, case: str, tmp_path: Path) -> None:
    """Flax's own writer and ours agree to the byte, with everything beside the arrays."""
    convert(made / f"{case}.msgpack", tmp_path / "again.msgpack")
    assert (tmp_path / "again.msgpack").read_bytes() == (made / f"{case}.msgpack").read_bytes()


@pytest.mark.parametrize("case", AS_IT_IS)
def test_a_state_that_differs_for_the_parts_is_refused(made: Path, case: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"source": "flax.linen", "target": "torch"}
    with pytest.raises(PlanError, match="become one, and it keeps") as caught:
        convert(made / f"{case}.msgpack", tmp_path / "no.safetensors", **asked)
    assert caught.value.hint == "--optimizer-state drop writes the model without it" and not list(tmp_path.iterdir())
    convert(made / f"{case}.msgpack", tmp_path / "without.msgpack", optimizer_state=["drop"], **asked)
    assert not [name for name in paramtool.read(tmp_path / "without.msgpack").entries if "opt_state" in name]
