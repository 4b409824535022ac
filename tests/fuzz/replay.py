"""What `test_fuzz.py` runs in a process of its own: the corpus, a short run, and runs with a planted defect."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.fuzz import cases, minimise, runner, seeds, watch
from tests.fuzz.cases import Case

Found = dict[str, list[str]]


def _grave(result: runner.Result) -> list[str]:
    return [finding.key for finding in result.findings if finding.grave]


def everything(count: int) -> dict[str, Found]:
    """All three, in one warm process; what is planted comes last, and is planted in nothing else."""
    runner.warm()
    return {"corpus": corpus(), "short": short(count), "planted": planted()}


def corpus() -> Found:
    """{case: what is found, and how it ends where that is not how it should}"""
    folders = sorted(path.parent for path in minimise.CORPUS.rglob("case.json"))
    made = [minimise.kept(folder) for folder in folders]
    found: Found = {}
    every = runner.REFUSED_AGAIN  # all commands are run in cases whose numbers are multiples of it
    for result in runner.batch([every * k for k in range(len(made))], lambda number: made[number // every]):
        folder = folders[result.number // every]
        said = json.loads((folder / "case.json").read_text())
        wrong = [key for key in _grave(result) if key not in said.get("open", [])]
        if "open" not in said and result.codes != said["codes"]:
            wrong.append(f"ends with {result.codes}")
        found[str(folder.relative_to(minimise.CORPUS))] = wrong
    return found


def short(count: int) -> Found:
    """The first cases of the run `short`."""
    make = partial(cases.make, seeds.every(), start="short")
    return {f"{r.number} {r.name}": _grave(r) for r in runner.batch(list(range(count)), make)}


def _traceback(*args: object) -> None:
    raise KeyError("planted")


def _left(*args: object) -> None:
    Path("../left").write_text("left")


def _elsewhere(*args: object) -> None:
    Path("/tmp/paramtool-fuzz-planted").write_text("x")
    os.remove("/tmp/paramtool-fuzz-planted")


def _call(*args: object) -> None:
    os.system("true")


def _endless(*args: object) -> None:
    while True:
        time.process_time()


def _memory(*args: object) -> None:
    bytearray(300 << 20)


def _crash(*args: object) -> None:
    os.abort()


def _warning(*args: object) -> None:
    warnings.warn("planted", RuntimeWarning, stacklevel=1)


PLANTED: dict[str, Callable[..., None]] = {
    "a traceback": _traceback, "a file left": _left, "a file elsewhere": _elsewhere, "a call": _call,
    "an endless loop": _endless, "much memory": _memory, "a crash": _crash, "a warning": _warning,
}  # fmt: skip


def _wrong(path: str) -> None:
    """The last byte of a file becomes another, behind the back of whoever wrote it."""
    held = Path(path).read_bytes()
    Path(path).write_bytes(held[:-1] + bytes([held[-1] ^ 0xFF]))


def planted() -> Found:
    """{defect: what is found} of an honest file, deduplicated by a paramtool with each of the defects."""
    from paramtool import formats
    from paramtool.engine.write import staging

    (seed,) = (seed for seed in seeds.contracts() if seed.name == "contract whole")
    watch.CPU_SECONDS = 1
    command = ("dedup", seed.main, "-o", "../out/x.safetensors", "--no-verify")
    case = Case(seed.format, seed.name, seed.main, seed.files, (command,), {})
    honest, commit = formats.read_file, staging.Staged.commit
    found: Found = {}

    def lying(path: str) -> object:
        PLANTED[defect](path)
        return honest(path)

    def wrong(staged: staging.Staged, *args: object, **named: object) -> None:
        commit(staged, *args, **named)
        _wrong("../out/x.safetensors")

    for defect in [*PLANTED, "wrong bytes", "nothing"]:
        formats.read_file = lying if defect in PLANTED else honest  # type: ignore[assignment]
        staging.Staged.commit = wrong if defect == "wrong bytes" else commit  # type: ignore[method-assign]
        found[defect] = [finding.key for r in runner.batch([0], lambda number: case) for finding in r.findings]
    return found
