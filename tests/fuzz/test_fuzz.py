"""What the fuzzer found once, run again; a few hundred cases, always the same; and proof that it finds defects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fuzz import minimise
from tests.patience import PATIENCE

CORPUS = sorted(path.parent for path in minimise.CORPUS.rglob("case.json"))
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys
from pathlib import Path
from tests.fuzz import replay
print(json.dumps(replay.%s(*map(json.loads, sys.argv[1:]))))
"""


def run(name: str, *arguments: object) -> dict[str, list[str]]:
    """A function of `replay` in a warm process of its own: {case: what was found}."""
    words = [sys.executable, "-c", SCRIPT % name, *map(json.dumps, arguments)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_corpus() -> None:
    """No finding of the past is one today."""
    found = run("corpus")
    assert len(found) == len(CORPUS) > 10
    assert {name: keys for name, keys in found.items() if keys} == {}


def test_a_short_run() -> None:
    """The same few hundred cases each time, of every format."""
    found = run("short", 300)
    assert {name: keys for name, keys in found.items() if keys} == {}


PLANTED = {
    "wrong bytes": "unequal", "a traceback": "exception", "a file left": "left behind", "a file elsewhere": "seen",
    "a call": "seen", "an endless loop": "died", "much memory": "memory", "a crash": "died", "a warning": "warning",
}  # fmt: skip
"""{defect: the kind of finding that it has to be}"""


def test_a_defect_is_found() -> None:
    """With a defect planted in paramtool, the judge of its kind says so; without one, none does."""
    found = run("planted")
    assert found.pop("nothing") == []
    assert {name: {key.split(": ")[0] for key in keys} for name, keys in found.items()} == {
        name: {kind} for name, kind in PLANTED.items()
    }
