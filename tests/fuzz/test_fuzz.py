"""What the fuzzer found once, run again; some cases, always the same; and proof that it finds defects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.examples import IS_HARD
from tests.fuzz import judges, minimise
from tests.patience import PATIENCE

CORPUS = sorted(path.parent for path in minimise.CORPUS.rglob("case.json"))
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys
from tests.fuzz import replay
print(json.dumps(replay.everything(int(sys.argv[1]))))
"""
SHORT = 300 if IS_HARD else 100
Found = dict[str, list[str]]


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    """{run: {case: what was found}}, by a warm process of its own."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(SHORT)], cwd=ROOT, capture_output=True, text=True,
                          timeout=PATIENCE, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    runs: dict[str, Found] = json.loads(done.stdout.splitlines()[-1])
    return runs


def test_the_corpus(found: dict[str, Found]) -> None:
    """No finding of the past is one today."""
    assert len(found["corpus"]) == len(CORPUS) > 10
    assert {name: keys for name, keys in found["corpus"].items() if keys} == {}


def test_a_short_run(found: dict[str, Found]) -> None:
    """The same cases each time, of every format."""
    assert len(found["short"]) == SHORT
    assert {name: keys for name, keys in found["short"].items() if keys} == {}


PLANTED = {
    "wrong bytes": "unequal", "a traceback": "exception", "a file left": "left behind", "a file elsewhere": "seen",
    "a call": "seen", "an endless loop": "died", "much memory": "memory", "a crash": "died", "a warning": "warning",
}  # fmt: skip
"""{defect: the kind of finding that it has to be}"""


def test_a_defect_is_found(found: dict[str, Found]) -> None:
    """With a defect planted in paramtool, the judge of its kind says so; without one, none does."""
    kinds = {name: {key.split(": ")[0] for key in keys} for name, keys in found["planted"].items()}
    assert kinds == {"nothing": set(), **{name: {kind} for name, kind in PLANTED.items()}}


def test_types_stay_what_they_are(tmp_path: Path) -> None:
    """A judge that unpickles a file changes no type of NumPy's that the cases after it use."""
    kind = np.dtype(ml_dtypes.bfloat16)
    (tmp_path / "x.pkl").write_bytes(b"cnumpy\ndtype\n(cml_dtypes\nbfloat16\nI00\nI01\ntR(I3\nV<\nNNNI24\nI4\nI63\ntb.")
    judges.JUDGES["pickle"](tmp_path / "x.pkl")
    assert (kind.itemsize, kind.flags) == (2, 64)
