"""What loads, fills, compares and is read rightly: a list that a change may lengthen, and that it may not shorten.

    python -m tests.golden.works [WORD ...]            adds what is right today to the lists beside this file
    python -m tests.golden.works --anew [WORD ...]     ... and takes off what is not

Each line is one fact, `job: what was done = what came out`, and stands here only because somebody else's code agrees:
torch loads the same file into the same values, Keras or ONNX Runtime computes what torch computes, safetensors reads
the bytes that are digested here.  Where words are given, only the jobs are run in whose names one of them occurs.
A new refusal, an error or other values of what is listed is a fault of the change, not of the list.
"""

from __future__ import annotations

import gc
import importlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

Facts = Iterator[tuple[str, Callable[[], object]]]
"""(what is done, how): that it does not raise is the fact, and what it returns stands behind the `=`."""
Jobs = dict[str, Callable[[Path], Facts]]
SUBJECTS = ("loads", "fills", "compares", "files")
"""Modules here with JOBS of their own, each with its list: `loads.py` and `loads.txt`."""


class Found(NamedTuple):
    """What a job found: lines of the list, and {what is not right: why}."""

    lines: list[str]
    wrong: dict[str, str]


def jobs(subject: str) -> Jobs:
    """{name: job} of a subject."""
    found: Jobs = importlib.import_module(f"tests.golden.works.{subject}").JOBS
    return found


def run(name: str, job: Callable[[Path], Facts], folder: Path) -> Found:
    """Every fact of a job."""
    lines, wrong = [], {}
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        try:
            for what, how in job(folder):
                line = f"{name}: {what}"
                try:
                    result = how()
                except Exception as error:
                    wrong[line] = f"{type(error).__name__}: {error}"
                else:
                    lines.append(line if result is None else f"{line} = {result}")
        except Exception as error:  # what comes after it is not known
            wrong[f"{name}: the job"] = f"{type(error).__name__}: {error}"
    return Found(lines, wrong)


def listed(subject: str) -> dict[str, list[str]]:
    """{job: its lines} of a list."""
    found: dict[str, list[str]] = {}
    path = Path(__file__).with_name(f"{subject}.txt")
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        found.setdefault(line.partition(": ")[0], []).append(line)
    return found


def main() -> int:
    """Write the lists; what is not right is printed."""
    words = [word for word in sys.argv[1:] if word != "--anew"]
    for subject in SUBJECTS:
        for name, job in jobs(subject).items():
            if words and not any(word in f"{subject} {name}" for word in words):
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = run(name, job, Path(folder))
            before = {} if "--anew" in sys.argv else dict.fromkeys(listed(subject).get(name, ()))
            every = {**listed(subject), name: [*before | dict.fromkeys(found.lines)]}
            text = "".join(f"{line}\n" for line in sorted(line for lines in every.values() for line in lines))
            Path(__file__).with_name(f"{subject}.txt").write_text(text, encoding="utf-8")
            print(f"{subject}: {name}: {len(found.lines)}", flush=True)
            for line, why in found.wrong.items():
                print(f"    not {line.removeprefix(name)[2:]}: {why.strip()[:300]!r}", flush=True)
            gc.collect()
    return 0
