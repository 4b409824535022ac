"""`python -m tests.fuzz`: run for so many minutes, or so many cases; keep and print what was found."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from functools import partial
from pathlib import Path

from tests.fuzz import cases, runner, seeds
from tests.fuzz.runner import Result, Total

OUT = Path(__file__).resolve().parents[2] / "build" / "fuzz"


def slug(key: str) -> str:
    """A name of a folder."""
    return re.sub(r"[^A-Za-z0-9]+", "-", key)[:90].strip("-").lower()


def keep(result: Result, made: cases.Case, out: Path, start: str) -> None:
    """The files of a finding, the commands, and what was said."""
    for finding in result.findings:
        if finding.kind == "deliberate":
            continue
        folder = out / slug(finding.key)
        if len(list(folder.glob("case-*"))) >= 3:
            continue
        place = folder / f"case-{result.number}"
        for name, data in made.files.items():
            path = place / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        said = {
            "key": finding.key, "detail": finding.detail, "commands": made.commands, "main": made.main,
            "format": made.format, "seed": made.name, "start": start, "case": result.number, "codes": result.codes,
        }  # fmt: skip
        place.mkdir(parents=True, exist_ok=True)
        (place / "finding.json").write_text(json.dumps(said, indent=1))


def lane(k: int, lanes: int, asked: argparse.Namespace, out: Path) -> Total:
    """Every `lanes`-th case, from the k-th."""
    total = Total()
    every = seeds.every()
    if asked.format:
        every = [seed for seed in every if seed.format in asked.format]
        cases.WEIGHTS = {name: weight for name, weight in cases.WEIGHTS.items() if name in asked.format}
    make = partial(cases.make, every, start=asked.start)
    began = time.monotonic()
    stop = began + asked.minutes * 60
    spoken = [began]

    def on_result(result: Result) -> bool:
        total.add(result)
        total.seconds = time.monotonic() - began
        if result.case:
            keep(result, result.case, out, asked.start)
        if time.monotonic() - spoken[0] > 60:
            spoken[0] = time.monotonic()
            write(total, out / f"total-{asked.start}-{k}.json")
            many = sum(total.cases.values())
            print(f"{many} cases, {many / total.seconds:.0f} a second, {len(total.found)} findings", flush=True)
        return time.monotonic() < stop

    last = asked.first + (asked.cases or 1 << 60)
    runner.run(range(asked.first + k, last, lanes), make, on_result)
    write(total, out / f"total-{asked.start}-{k}.json")
    return total


def write(total: Total, path: Path) -> None:
    """The counts, for whoever adds several runs."""
    found = {
        key: [many, number, finding.detail[:500], finding.grave] for key, (many, finding, number) in total.found.items()
    }
    path.write_text(
        json.dumps({"seconds": total.seconds, "cases": total.cases, "codes": total.codes, "found": found}, indent=1)
    )


def report(total: Total) -> None:
    """What a run came to, as text."""
    many = sum(total.cases.values())
    print(f"{many} cases in {total.seconds:.0f} s: {many / max(total.seconds, 0.001):.1f} a second")
    for name, count in sorted(total.cases.items()):
        codes = {
            code.removeprefix(f"{name} "): n for code, n in sorted(total.codes.items()) if code.startswith(f"{name} ")
        }
        print(f"  {name}: {count}  ({', '.join(f'{code}: {n}' for code, n in codes.items())})")
    heads = {
        "findings": lambda finding: finding.grave,
        "accepted here and refused by another library, for a reason": lambda finding: finding.kind == "deliberate",
        "accepted here and refused by another library": lambda f: not f.grave and f.kind != "deliberate",
    }
    for head, is_one in heads.items():
        print(f"{head}:")
        for key, (times, finding, number) in sorted(total.found.items()):
            if is_one(finding):
                print(f"  {times:5d}x {key}  (case {number})")


def added(totals: list[Total]) -> Total:
    """Several lanes as one."""
    whole = Total()
    for total in totals:
        whole.cases.update(total.cases)
        whole.codes.update(total.codes)
        whole.seconds = max(whole.seconds, total.seconds)
        for key, (many, finding, number) in total.found.items():
            before = whole.found.get(key, (0, finding, number))
            whole.found[key] = (before[0] + many, *before[1:])
    return whole


def main() -> int:
    """Run; exit status 1 where there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--cases", type=int, default=0, help="end after so many, too")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--start", default="0", help="another text gives other cases")
    parser.add_argument("--format", action="append", help="only this one; again for more")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    runner.warm()
    if asked.processes == 1:
        total = lane(0, 1, asked, asked.out)
    else:
        total = _lanes(asked)
    print(f"cases of --start {asked.start!r}; those with findings are in {asked.out}")
    report(total)
    return int(any(finding.grave for _, finding, _ in total.found.values()))


def _lanes(asked: argparse.Namespace) -> Total:
    """Several processes, each with its own cases, from one that is warm."""
    import pickle

    pipes = []
    for k in range(asked.processes):
        hear, say = os.pipe()
        if os.fork() == 0:
            os.close(hear)
            with os.fdopen(say, "wb") as file:
                pickle.dump(lane(k, asked.processes, asked, asked.out), file)
            os._exit(0)
        os.close(say)
        pipes.append(hear)
    totals = []
    for hear in pipes:
        with os.fdopen(hear, "rb") as file:
            totals.append(pickle.load(file))
    return added(totals)


if __name__ == "__main__":
    sys.exit(main())
