"""One trial: the diff of a random pair in both directions, and of each side with itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from paramtool.commands.diff.diff import Diffed, diff
from tests.laws.diff_trials.files import written
from tests.laws.diff_trials.judge import judged
from tests.laws.diff_trials.pairs import Pair

TURNED, ITSELF, COMMAND = 3, 10, 100
"""Of how many trials one is also run from B to A, of A with itself, and as a command."""


class Outcome(NamedTuple):
    """What came of a trial."""

    faults: list[str]
    missed: list[str]
    """The kinds of modules whose map was not found."""
    verdicts: Counter[str]
    diffs: int


def outcome(pair: Pair, place: Path, number: int = 0) -> Outcome:
    """What came of a trial; its number says what else is run."""
    a, b = written(pair, place)
    found = diff(a, b)
    faults, missed = judged(pair, found)
    diffs = 1
    if number % TURNED == 0:
        back = diff(b, a)
        told = judged(pair.turned(), back)
        faults += [f"B to A: {text}" for text in told.false]
        is_sure = pair.keeps is not None and not (missed or told.missed or faults)
        if is_sure and back.is_same != found.is_same:
            faults.append(f"is_same is {found.is_same}, and {back.is_same} from B to A")
        diffs += 1
    if number % ITSELF == 0:
        faults += [f"A and itself: {text}" for text in _of_itself(diff(a, a))]
        diffs += 1
    if number % COMMAND == 0:
        faults += _of_command(found, a, b)
        diffs += 1
    return Outcome(faults, missed, Counter(one.kind for one in found.tensors), diffs)


def _of_itself(found: Diffed) -> list[str]:
    kinds = {one.kind for one in found.tensors}
    return [] if found.judge(strict=True) and kinds <= {"same"} else [f"{kinds}, {found.judge(strict=True)}"]


def _of_command(found: Diffed, a: Path, b: Path) -> list[str]:
    """The exit code, and the document against its schema."""
    import json

    from tests.cli.test_documents import validator
    from tests.hostile.command import quick

    ran = quick("diff", a, b, "--json", "--exit-code", cwd=a.parent)
    document = json.loads(ran.out)
    faults = [f"--json: {error.message}" for error in validator("diff").iter_errors(document)]
    if ran.code != (not found.is_same):
        faults.append(f"exit code {ran.code}, and is_same is {found.is_same}")
    if len(document["tensors"]) != len(found.tensors):
        faults.append("other verdicts in JSON")
    return faults
