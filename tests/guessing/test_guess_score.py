"""The score of `guess`: networks of known truth, the table in docs/guess.md, and every line that is printed, typed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.command import quick

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # a script, and no package

import guess_score  # noqa: E402 - found through the path above

pytest.importorskip("h5py")
TRUTH: dict[str, Any] = json.loads(guess_score.TRUTH.read_text())
SAID: dict[str, Any] = json.loads(guess_score.SAMPLES.read_text())
PAGE = guess_score.PAGE.read_text(encoding="utf-8")


def judged(name: str, path: Path, said: dict[str, Any]) -> None:
    """The rows of a file are those of the page, and none is confident and wrong."""
    for row in guess_score.rows(name, path, said):
        assert row.verdict != guess_score.WRONG, row
        assert str(row) in PAGE.splitlines(), f"{row}: benchmarks/guess_score.py -o docs/guess.md writes it anew"


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(SAID))
def test_the_score_of_other_peoples_files(name: str, samples: Path) -> None:
    """Each checkpoint whose authors' code says what is in it."""
    judged(name, samples / name, SAID[name])


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(TRUTH))
def test_the_score_of_what_frameworks_made(name: str, tmp_path: Path) -> None:
    """The row of each file is that of the page; each line runs beside a copy, and gives what it holds."""
    judged(name, guess_score.TRUTH.parent / name, TRUTH[name])
    shutil.copy(guess_score.TRUTH.parent / name, tmp_path / name)
    found = json.loads(quick("guess", name, "--json", cwd=tmp_path).out)
    truths = [one["spec"] for one in TRUTH[name]["networks"]]
    for line in found["commands"]:
        ran = quick(*shlex.split(line)[1:], "--force", "--json", cwd=tmp_path)
        assert ran.code == 0, (line, ran)
        for network in json.loads(ran.out)["networks"]:
            assert network["spec"] in truths, (line, network)
            truths.remove(network["spec"])


def test_the_page_has_no_other_rows() -> None:
    """Its tables are those of these files, and its sums those of its rows."""
    lines = [line for line in PAGE.partition("<!-- score -->")[2].splitlines() if line.startswith("| ")]
    rows = [line for line in lines if line not in guess_score.HEAD]
    names = {found[1] for line in rows if (found := re.search(r"\(`([^`]+)`\)", line))}
    assert names == TRUTH.keys() | SAID.keys()
    networks = [line for line in rows if not line.endswith("| none |")]
    assert len(networks) >= 40 and f"\n{len(networks)} networks from " in PAGE
    assert "CONFIDENT AND WRONG 0." in PAGE
    found = re.search(r"networks from (\d+) frameworks", PAGE)
    assert found and int(found[1]) >= 12
