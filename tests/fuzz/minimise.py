"""A finding made small: fewer bytes, while the same is found.

`python -m tests.fuzz.minimise build/fuzz/KEY/case-N NAME` writes `corpus/FORMAT/NAME/`, which `test_fuzz.py` replays:
the files, and `case.json` with what was wrong, the commands, and how they end.  What is still found stands there as
`open`, and may be found; once it is mended, that line goes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.fuzz import runner
from tests.fuzz.cases import Case

CORPUS = Path(__file__).parent / "corpus"
MAX_RUNS = 400


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def load(folder: Path) -> tuple[Case, str]:
    """A kept case, and the key of what was found."""
    said = json.loads((folder / "finding.json").read_text())
    files = _files(folder / "in")
    commands = tuple(tuple(command) for command in said["commands"])
    return Case(said["format"], said["seed"], said["main"], files, commands, said.get("original", {})), said["key"]


def kept(folder: Path) -> Case:
    """A case of the corpus."""
    said = json.loads((folder / "case.json").read_text())
    files = _files(folder / "in")
    return Case(said["format"], folder.name, said["main"], files, tuple(map(tuple, said["commands"])), {})


def keys(case: Case) -> set[str]:
    """What is found in a case, in a child of its own."""
    (result,) = runner.batch([0], lambda number: case)
    return {finding.key for finding in result.findings}


def smaller(case: Case, is_same: Callable[[Case], bool]) -> Case:
    """Fewer commands, then fewer files, then fewer bytes of each: halves, quarters and so on."""
    for command in case.commands:
        one = replace(case, commands=(command,))
        if is_same(one):
            case = one
            break
    runs = 0
    for name in sorted(case.files, key=lambda name: -len(case.files[name])):
        without = replace(case, files={other: data for other, data in case.files.items() if other != name})
        if without.files and is_same(without):
            case = without
            continue
        data = case.files[name]
        step = len(data) // 2
        while step and runs < MAX_RUNS:
            at = 0
            while at < len(data) and runs < MAX_RUNS:
                runs += 1
                tried = data[:at] + data[at + step :]
                if is_same(replace(case, files=case.files | {name: tried})):
                    data = tried
                else:
                    at += step
            step //= 2
        case = replace(case, files=case.files | {name: data})
    return case


def write(case: Case, folder: Path, what: str) -> None:
    """A case of the corpus: its files, and `case.json` with how each command ends."""
    for name, data in case.files.items():
        path = folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (result,) = runner.batch([0], lambda number: case)
    said = {"what": what, "format": case.format, "main": case.main, "commands": case.commands, "codes": result.codes}
    still = sorted({finding.key for finding in result.findings if finding.grave})
    (folder / "case.json").write_text(json.dumps(said | ({"open": still} if still else {}), indent=1) + "\n")


def main() -> None:
    """Minimise one finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.minimise", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--what", default="", help="what was wrong; default: the key of the finding")
    parser.add_argument("--as-is", action="store_true", help="keep every byte")
    asked = parser.parse_args()
    runner.warm()
    case, key = load(asked.folder)
    is_found = key in keys(case)
    made = smaller(case, lambda one: key in keys(one)) if is_found and not asked.as_is else case
    sizes = [sum(map(len, one.files.values())) for one in (case, made)]
    print(f"{key}: {'found' if is_found else 'not found any more'}; {sizes[0]} -> {sizes[1]} bytes")
    write(made, CORPUS / made.format / asked.name, asked.what or key)


if __name__ == "__main__":
    main()
