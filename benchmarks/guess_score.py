"""How often `paramtool guess` is right: networks of known truth from many frameworks, as a table for docs/guess.md.

    python benchmarks/guess_score.py [-o docs/guess.md] [--samples FOLDER]

The files are those in fixtures/, which the frameworks made, and in a folder of checkpoints that other people wrote; if
that folder is absent, its rows are left unchanged.  Each network gets one of these verdicts:

    truth, with a line   the only candidate is the truth, and a command is printed
    truth first          the first candidate is the truth; the fact that would decide is printed, and no command
    truth listed         another candidate is the truth
    not found            no candidate is the truth, and no command is printed for it
    none                 the file has no network of a known layout, and no command is printed
    CONFIDENT AND WRONG  a printed command takes something else for a network: must be 0
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramtool.commands.guess import Guessed, guess
from paramtool.guessing.candidates import Guess

ROOT = Path(__file__).resolve().parents[1]
TRUTH = ROOT / "fixtures" / "guess" / "truth.json"
SAMPLES = ROOT / "benchmarks" / "guess_samples.json"
PAGE = ROOT / "docs" / "guess.md"
SURE, FIRST, LISTED, MISSED, NONE, WRONG = VERDICTS = (
    "truth, with a line", "truth first", "truth listed", "not found", "none", "CONFIDENT AND WRONG",
)  # fmt: skip
LIMIT = 10_000
"""How many candidates of a place are checked."""


@dataclass(frozen=True)
class Row:
    """A network, or a file without networks."""

    file: str
    what: str
    framework: str
    truth: str
    verdict: str

    def __str__(self) -> str:
        return f"| {self.what} (`{self.file}`) | {self.framework} | {self.truth} | {self.verdict} |"


def fits(one: Guess, truth: dict[str, str]) -> bool:
    """Whether a candidate is the network in a file, by its layout or by a layout that reads the same network."""
    return one.spec == truth["spec"] and truth["layout"] in (one.layout, *one.alike)


def asks(one: Guess, truth: dict[str, str]) -> bool:
    """Whether a candidate is the truth except for an option of the layout that it asks for: `forget_bias=0`."""
    layout, _, option = truth["layout"].partition(":")
    asked = option and any(question.startswith(option.partition("=")[0]) for question in one.unshown)
    return bool(asked) and one.spec == truth["spec"] and layout == one.layout


def rows(name: str, path: Path, said: dict[str, Any]) -> Iterator[Row]:
    """The verdict on each network of a file."""
    found = guess(path, limit=LIMIT)
    places = list(found.places())
    decided = [ones[0] for place, ones in places if ones and not place.decide]
    truths = list(said["networks"])
    wrong = bool(found.commands) and not all(any(fits(one, truth) for truth in truths) for one in decided)
    for truth in truths:
        text = f"`{truth['layout']}`: {truth['spec']}"
        yield Row(name, said["what"], said["framework"], text, WRONG if wrong else verdict(found, truth))
    if not truths:
        yield Row(name, said["what"], said["framework"], "none", WRONG if found.commands else NONE)


def verdict(found: Guessed, truth: dict[str, str]) -> str:
    """The verdict, by the place of the truth among the candidates."""
    ranks = [
        (k + asks(one, truth), not place.decide)
        for place, ones in found.places()
        for k, one in enumerate(ones)
        if fits(one, truth) or asks(one, truth)
    ]
    if not ranks:
        return MISSED
    first, decided = min(ranks, key=lambda rank: (not rank[1], rank[0]))
    return SURE if decided and found.commands else LISTED if first else FIRST


def score(samples: Path | None) -> tuple[list[Row], list[Row]]:
    """The rows of the fixtures, and the rows of the samples, which are empty without their folder."""
    made = [
        row for name, said in json.loads(TRUTH.read_text()).items()
        for row in rows(name, TRUTH.parent / said.get("file", name), said)
    ]  # fmt: skip
    others: list[Row] = []
    for name, said in json.loads(SAMPLES.read_text()).items() if samples and samples.is_dir() else ():
        others += rows(name, samples / name, said)
    return made, others


BEGIN, MIDDLE, END = "<!-- score -->", "<!-- samples -->", "<!-- end -->"
HEAD = ["| network | framework | truth | verdict |", "|---|---|---|---|"]


def page(text: str, made: Sequence[Row], others: Sequence[Row]) -> str:
    """The page with new tables; without samples their old table is kept."""
    before, rest = text.split(BEGIN)
    _, rest = rest.split(MIDDLE)
    old, after = rest.split(END)
    second = "\n".join(["", *HEAD, *map(str, others), ""]) if others else old
    whole = [*map(str, made), *second.strip().splitlines()[2:]]
    frameworks = {re.split(r"[ ,]", line.split("|")[2].strip())[0] for line in whole}
    counts = {name: sum(line.endswith(f"| {name} |") for line in whole) for name in VERDICTS}
    known = len(whole) - counts[NONE]
    listed = ", ".join(f"{name} {count}" for name, count in counts.items() if name != NONE)
    summary = (
        f"{known} networks from {len(frameworks)} frameworks ({', '.join(sorted(frameworks))}): {listed}.  "
        f"And {counts[NONE]} files without a network of a known layout, for which no line was printed."
    )
    lines = ["", summary, "", *HEAD, *map(str, made), ""]
    return f"{before}{BEGIN}" + "\n".join(lines) + f"\n{MIDDLE}{second}{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows, and write the page with -o; exit status 1 if a verdict is confident and wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="the page that has the tables")
    parser.add_argument("--samples", type=Path, help="a folder of checkpoints that other people wrote")
    said = parser.parse_args(arguments)
    made, others = score(said.samples)
    print("\n".join(map(str, [*made, *others])))
    if said.output:
        said.output.write_text(page(said.output.read_text(encoding="utf-8"), made, others), encoding="utf-8")
    return int(any(row.verdict == WRONG for row in [*made, *others]))


if __name__ == "__main__":
    raise SystemExit(main())
