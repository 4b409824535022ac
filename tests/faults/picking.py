"""Which of all the faults a run of the tests tries: every one where PARAMTOOL_HARD is set, else a sample."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.examples import IS_HARD
from tests.faults.judging import places
from tests.faults.serving import Call, Case, Desk, Ended

REPORT = os.environ.get("PARAMTOOL_FAULTS_REPORT", "")
"""A file that gets a line for everything that is wrong, and for each test how many cases it ran."""
MAX_TOLD = 25
RARE = {"spool", "old", "pwrite", "rmdir", "link"}
"""Places and names of calls that only one or two commands have."""

Rule = tuple[int, int, int]
Judge = Callable[[Ended, Path], Iterable[str]]
Try = tuple[str, Sequence[Rule], dict[str, Any], Judge]
"""What a fault is called, how it is made, and who says what is wrong after it."""


def sample(case: Case, calls: Iterable[Call], seed: str, many: int = 1, most: int = 0) -> list[Call]:
    """All calls, or `many` of each kind: by name, and by whose file it is; `most` of all, if it is not 0."""
    if IS_HARD:
        return list(calls)
    kinds: dict[tuple[str, frozenset[str]], list[Call]] = defaultdict(list)
    for call in calls:
        kinds[call.name, places(case, call)].append(call)
    picked: list[Call] = []
    for kind, found in kinds.items():
        lot = random.Random(f"{seed} {case.command.name} {kind[0]} {sorted(kind[1])}")
        picked += lot.sample(found, min(many, len(found)))
    lot = random.Random(f"{seed} {case.command.name}")
    return lot.sample(picked, most) if most and len(picked) > most else picked


def complaints(desk: Desk, case: Case, tries: Iterable[Try]) -> Iterator[str]:
    """Run a case once for each fault; a line for everything that is wrong, with the way to see it again."""
    count = 0
    for what, rules, more, judge in tries:
        ended, folder = desk.run(case, *rules, **more)
        count += 1
        for wrong in judge(ended, folder):
            said = " / ".join(ended.err.split("\n"))[:200]
            line = f"{case.command.name}: {what}: {wrong} [exit {ended.code}; {said}]"
            report(line)
            yield line
        shutil.rmtree(folder, ignore_errors=True)
    report(f"cases: {count} {os.environ.get('PYTEST_CURRENT_TEST', '')}")


def report(line: str) -> None:
    """Write a line to the file of PARAMTOOL_FAULTS_REPORT."""
    if REPORT:
        with open(REPORT, "a") as file:
            file.write(f"{line}\n")


def nothing_wrong(found: Iterable[str]) -> None:
    """AssertionError with the first of what was found."""
    told = list(found)
    assert not told, "\n".join([f"{len(told)} are wrong:", *told[:MAX_TOLD]])


def named(call: Call, fault: str) -> str:
    """A fault, as a person would repeat it."""
    return f"{fault} at call {call.at}, {call.name} {' '.join(call.paths)}"


def turn(case: Case, calls: Iterable[Call], which: int, many: int) -> list[Call]:
    """Every call, or those whose turn it is: of `many` errors each kind of call meets one.

    Which one differs from command to command, so that a kind that several commands have meets them all; kinds that
    few commands have meet them all everywhere.
    """
    if IS_HARD:
        return list(calls)
    kinds: dict[tuple[str, ...], list[Call]] = defaultdict(list)
    for call in calls:
        kinds[(call.name, *sorted(places(case, call)))].append(call)
    shift = sum(case.command.name.encode())
    return [
        call
        for k, kind in enumerate(sorted(kinds))
        if (k + shift) % many == which or not RARE.isdisjoint(kind)
        for call in kinds[kind]
    ]


ERRORS = {name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EACCES")}
