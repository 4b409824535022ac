"""Conversions run by frameworks: those at hand here, with fewer networks; all of them in `make oracles`.

tests/oracles/frameworks/prove.py has the functions and says what is compared with what.
"""

from __future__ import annotations

import doctest
import re
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from paramtool import layouts
from paramtool.layouts import evidence
from paramtool.layouts.spec import Spec

HERE = Path(__file__).parent / "frameworks"
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE))  # its scripts are run by other Pythons, and so are no package

import _neutral  # noqa: E402 - found through the path above
import _neutral_layouts  # noqa: E402
import _proofs_page  # noqa: E402
import cases  # noqa: E402
import prove  # noqa: E402

pytest.importorskip("onnxruntime")
PAGE = (ROOT / "docs/proofs.md").read_text(encoding="utf-8")
KERAS = next(replace(one, layouts=one.layouts[:1]) for one in prove.RUNNERS if one.environment == "keras")
AT_HAND = [one for one in prove.RUNNERS if one.environment == prove.MAIN] + [KERAS] * (find_spec("keras") is not None)


@pytest.mark.sample(1)
@pytest.mark.parametrize("runner", AT_HAND, ids=lambda runner: runner.script)
def test_conversions_are_run(runner: prove.Runner) -> None:
    """Right conversions compute what torch or the equations do, both ways; wrong ones do not."""
    for one in prove.run(runner, sys.executable, few=True):
        told = one.told()
        assert not told["failures"]
        assert told["to"]["cases"] == told["from"]["cases"] >= len(told["kinds"]) > 0
        assert told["controls"]


# --- what judges ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> cases.Made:
    """One case."""
    return cases.to_layout("onnx", "gru, after", Spec("gru", 3, 4, reset="after"))


@pytest.mark.parametrize(("way", "error"), [("to", 2e-5), ("from", float("inf")), ("b_hn dropped", 0.04)])
def test_what_fails(made: cases.Made, way: str, error: float) -> None:
    """A right conversion that is off, and a wrong one that is not, are failures."""
    wanted = replace(made, way=way)
    assert "the error is" in prove.Outcome(wanted, error).failure
    assert prove.Outcome(wanted, broken="Traceback ...\nValueError: no").failure.endswith("ValueError: no")


@pytest.mark.parametrize("name", ["y", "hn"])
def test_a_wrong_number_is_an_error(made: cases.Made, name: str) -> None:
    """One output that is NaN, of another shape or missing is infinitely wrong."""
    array = made.expected[name]
    nan, flat = ({**made.expected, name: wrong} for wrong in (np.full_like(array, np.nan), array.reshape(-1)))
    less = {key: value for key, value in made.expected.items() if key != name}
    assert [_neutral.error(found, made.expected) for found in (made.expected, nan, flat, less)] == [0.0, *[np.inf] * 3]


def test_a_gru_with_an_inner_bias_is_refused() -> None:
    """Where a layout has no place for b_hn, paramtool says so and writes nothing."""
    refused = cases.prove_layout("flax.nnx", few=True).refused
    assert refused[cases.INNER] == cases.INNER_BIAS
    assert cases.NO_INNER_BIAS not in refused


@pytest.mark.parametrize("module", [_neutral_layouts, _proofs_page])
def test_examples(module: ModuleType) -> None:
    """The examples in docstrings hold; pytest itself does not look into these modules."""
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


# --- what is written down ---------------------------------------------------------------------------------------------


def rows(section: str) -> set[str]:
    """The layouts that have a row in a section of the page."""
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, section
    return {name.partition(":")[0] for name in re.findall(r"^\| `([^`]+)` \|", found[1], re.MULTILINE)}


@pytest.mark.parametrize("name", sorted(layouts.built_in()))
def test_every_layout_is_on_the_page(name: str) -> None:
    """A layout that names an oracle has a framework that ran it; one that has none is listed as not run."""
    proofs = evidence.evidence(layouts.find(name))
    if any(proof.startswith("oracle:") for proof in proofs):
        assert name in rows("Frameworks that ran")
    if any(not proof.startswith("oracle:") for proof in proofs):
        assert name in rows("Not run")


def test_the_page_has_the_records_as_they_are() -> None:
    """`prove.py --records -o docs/proofs.md` writes its section on GPUs anew."""
    assert _proofs_page.with_records(PAGE) == PAGE
    assert _proofs_page.with_records(PAGE.replace("| `cudnn` | 9", "| `cudnn` | 8")) == PAGE


def test_every_script_is_run() -> None:
    """Each script beside prove.py has a row there, each environment its requirements and its target in the Makefile."""
    assert {path.name for path in HERE.glob("run_*.py")} == {runner.script for runner in prove.RUNNERS}
    environments = set(prove.ENVIRONMENTS) - {prove.MAIN} | {"oldest", "lightning"}  # of tests/oracles/test_*.py
    assert {path.stem.removeprefix("requirements-") for path in HERE.glob("requirements-*.txt")} == environments
    made = re.search(r"^ORACLES = (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert made
    assert set(made[1].split()) == environments
