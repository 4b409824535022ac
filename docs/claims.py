"""The table of proofs: what README.md claims, what proves each claim, and when and with what that last ran.

    python docs/claims.py page                      write docs/claims.md from docs/claims.json
    python docs/claims.py record build/claims.json  take over what a run of the tests wrote there
    python docs/claims.py ran SCRIPT                a script that is a proof has just run without a finding
    python docs/claims.py stale                     `make claims`: which proofs ran with older libraries

docs/claims.json is the one source; `ran` in it is written by `record` and `ran` alone.  A claim counts as run when each
of its proofs ran, in one run or in several, and has the date of the oldest.

`stale` compares the version that a proof ran with and the newest release of that library in any environment of this
folder (.venv, .venv-oracles/*).  It runs nothing.  Exit status: 0, nothing is older; 1, a proof ran with an older
release, or has never run; 2, the command line is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "claims.json"
PAGE = ROOT / "docs" / "claims.md"
ENVIRONMENTS = (".venv", ".venv-oracles/*")
BEFORE_RELEASE = re.compile(r"\d(a|b|rc|\.dev)\d")
"""As in 2.0.0b1 (PEP 440): MXNet 2, which was never released, is tried beside MXNet 1.9.1."""


@dataclass
class Claim:
    """A sentence of README.md, and what proves it."""

    id: str
    says: str
    """Words of README.md; any white space there is one space here."""
    proofs: list[str]
    """Tests (`path` or `path::function`) and scripts."""
    libraries: dict[str, str]
    """The libraries whose versions matter, each with its environment in `.venv-oracles`; "" is that of the tests."""
    ran: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each proof that ran: `date`, and `versions` of those of the libraries that were there."""

    def last(self) -> tuple[str, dict[str, str]] | None:
        """The date of the oldest proof and the versions that the proofs ran with; None unless each ran."""
        if not all(proof in self.ran for proof in self.proofs):
            return None
        versions: dict[str, str] = {}
        for proof in self.proofs:
            for name, version in self.ran[proof]["versions"].items():
                versions[name] = min(version, versions.get(name, version), key=order)
        return min(self.ran[proof]["date"] for proof in self.proofs), versions


def order(version: str) -> tuple[int, ...]:
    """Releases in order; `+cpu` and the like do not count, and `2.0.0b1` is as 2.0.0.

    >>> order("2.13.0+cpu") > order("2.9")
    True
    """
    found = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def claims() -> list[Claim]:
    """Every claim, in the order of README.md."""
    return [Claim(**one) for one in json.loads(DATA.read_text(encoding="utf-8"))]


def save(every: Iterable[Claim]) -> None:
    """Write the claims and their page."""
    documents = [{name: value for name, value in vars(one).items() if value or name != "ran"} for one in every]
    DATA.write_text(json.dumps(documents, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(claims()), encoding="utf-8")


def page(every: Iterable[Claim]) -> str:
    """The page of the table."""
    lines = [
        "# Claims and their proofs", "",
        "Written by `docs/claims.py` from `docs/claims.json`.  Do not edit.", "",
        "What the README claims, the tests and scripts that prove it, and when they last ran, with which versions.",
        "A claim has the date of its oldest proof. Frameworks run in environments of their own (`make oracles`); tests",
        "whose libraries are missing are skipped and do not count as run. `make claims` prints the claims whose proofs",
        "ran with an older release than is installed, and runs nothing.", "",
        "| claim | proved by | last ran | with |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for one in every:
        date, versions = one.last() or ("not yet", {})
        proofs = "<br>".join(f"`{proof}`" for proof in one.proofs)
        says = one.says.replace("](docs/", "](").replace("|", "\\|")
        lines.append(f"| {says} | {proofs} | {date} | {', '.join(f'{k} {v}' for k, v in sorted(versions.items()))} |")
    return "\n".join([*lines, ""])


def distributions(place: Path) -> dict[str, str]:
    """The version of each distribution in an environment, by its normalised name."""
    folders = [str(folder) for folder in place.glob("lib/python3*/site-packages")]
    found = metadata.distributions(path=folders) if folders else ()
    return {normal(one.metadata["Name"]): one.version for one in found if one.metadata["Name"]}


def normal(name: str) -> str:
    """The name of a distribution as PEP 503 compares it, for the names here."""
    return name.lower().replace("_", "-")


def versions_for(claim: Claim, environments: Path | None = None) -> dict[str, str]:
    """The versions of a claim's libraries: those of this Python, and those of the environments of frameworks."""
    found = {}
    for library, environment in claim.libraries.items():
        if not environment:
            try:
                found[library] = metadata.version(library)
            except metadata.PackageNotFoundError:
                continue
        elif environments and (version := distributions(environments / environment).get(normal(library))):
            found[library] = version
    return found


def entry(claim: Claim, environments: Path | None) -> dict[str, Any]:
    """What is recorded of a proof that has just run."""
    return {"date": datetime.date.today().isoformat(), "versions": versions_for(claim, environments)}


def passed(results: dict[str, str], environments: Path | None = None) -> dict[str, dict[str, Any]]:
    """What a run of tests proves: for each claim and each of its proofs whose tests passed, date and versions.

    `results` has the worst outcome of each test function, by `path::function`: passed, skipped or failed.  A function
    is a proof if an instance of it passed and none was skipped or failed; a file is, if each function in it is.
    """
    found: dict[str, dict[str, Any]] = {}
    for claim in claims():
        for proof in claim.proofs:
            outcomes = {outcome for name, outcome in results.items() if name == proof or name.startswith(f"{proof}::")}
            if outcomes == {"passed"}:
                found.setdefault(claim.id, {})[proof] = entry(claim, environments)
    return found


def merge(found: dict[str, dict[str, Any]]) -> None:
    """Take over newly recorded proofs."""
    every = claims()
    for one in every:
        one.ran |= {proof: ran for proof, ran in found.get(one.id, {}).items() if proof in one.proofs}
    save(every)


def stale(every: Iterable[Claim], installed: dict[str, tuple[str, str]]) -> Iterator[str]:
    """A line for each library of which a newer release is installed than a claim's proofs ran with."""
    for one in every:
        last = one.last()
        if last is None:
            missing = [proof for proof in one.proofs if proof not in one.ran]
            yield f"{one.id}: never ran: {', '.join(missing)}"
            continue
        for library, version in sorted(last[1].items()):
            newest, place = installed.get(normal(library), ("", ""))
            if order(newest) > order(version):
                yield f"{one.id}: ran with {library} {version} on {last[0]}; {newest} is installed in {place}"


def newest_installed(root: Path) -> dict[str, tuple[str, str]]:
    """The newest release of each distribution in any environment, and that environment; a beta is no release."""
    found: dict[str, tuple[str, str]] = {}
    for pattern in ENVIRONMENTS:
        for place in sorted(root.glob(pattern)):
            for name, version in distributions(place).items():
                if BEFORE_RELEASE.search(version):
                    continue
                if name not in found or order(version) > order(found[name][0]):
                    found[name] = (version, str(place.relative_to(root)))
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["page", "record", "ran", "stale"])
    parser.add_argument("argument", nargs="?", default="")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-oracles")
    given = parser.parse_args()
    if (given.what in ("record", "ran")) != bool(given.argument):
        parser.error("record takes a file, ran takes a script, and the others take nothing")
    if given.what == "record":
        merge(json.loads(Path(given.argument).read_text(encoding="utf-8")))
    elif given.what == "ran":
        of = [one for one in claims() if given.argument in one.proofs]
        if not of:
            parser.error(f"{given.argument} proves no claim of docs/claims.json")
        merge({one.id: {given.argument: entry(one, given.environments)} for one in of})
    elif given.what == "page":
        save(claims())
    else:
        lines = list(stale(claims(), newest_installed(ROOT)))
        print("\n".join(lines) or "Every proof ran with the newest releases that are installed.")
        return int(bool(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
