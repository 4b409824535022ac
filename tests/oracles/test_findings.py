"""What check writes for GitHub, by packages of npm that `make oracles` fetches: the schema of SARIF, @actions/core."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paramtool.findings import github, sarif
from paramtool.findings.report import CheckReport, kind, one_line
from paramtool.model.finding import ERROR, NOTE, WARNING, FileLine, Finding
from tests.findings.samples import HOSTILE
from tests.oracles.test_ci import reports

ROOT = Path(__file__).parents[2]
SCHEMA = "sarif-2.1.0-rtm.5.json"
FETCHED = ROOT / "build" / "sarif" / "package" / "lib" / "schemas" / SCHEMA
MULTITOOL = ROOT / "build" / "multitool" / "package" / "Sarif.Multitool"
CORE = ROOT / "build" / "actions" / "package" / "lib" / "command.js"
NODE = shutil.which("node") or ""
ISSUED = """
const {issueCommand} = require(process.argv[1]);
for (const [name, values, message] of JSON.parse(require("fs").readFileSync(0, "utf8")))
  issueCommand(name, values, message);
"""


@pytest.mark.skipif(not FETCHED.exists(), reason="make oracles fetches the schema of SARIF")
def test_the_schema_is_that_of_the_package() -> None:
    """The copy by which tests/findings/test_sarif.py validates every document is byte for byte the package's."""
    assert FETCHED.read_bytes() == (ROOT / "tests" / "findings" / SCHEMA).read_bytes()


@pytest.mark.skipif(not MULTITOOL.exists(), reason="make oracles fetches Microsoft's validator of SARIF")
def test_microsoft_s_validator_finds_no_error(tmp_path: Path) -> None:
    """In the document of each sample; and it finds what is wrong in one without rules."""
    MULTITOOL.chmod(0o755)
    for number, report in enumerate(reports()):
        (tmp_path / f"{number}.sarif").write_text(sarif.text(report, "1.0.0"), encoding="ascii")
    broken = json.loads((tmp_path / "0.sarif").read_text())
    broken["runs"][0]["results"] = [{"message": {"text": "no rule"}}]
    (tmp_path / "broken.sarif").write_text(json.dumps(broken))
    made = subprocess.run(
        [MULTITOOL, "validate", *sorted(tmp_path.glob("*.sarif"))],
        capture_output=True, text=True, check=True, env={**os.environ, "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"},
    )  # fmt: skip
    assert "Analysis completed successfully" in made.stdout, made
    errors = re.findall(r"/([^/]*\.sarif)\([\d,]*\): error (\w+)", made.stdout)
    assert errors == [("broken.sarif", "SARIF1010")], errors


def issued(findings: list[Finding]) -> list[bytes]:
    """The lines that @actions/core writes for the same words."""
    names = {ERROR: "error", WARNING: "warning", NOTE: "notice"}
    asked = []
    for one in findings:
        place = one.place or FileLine(one.path, 0, 0)
        message = f"{one.path}: {one.message}" if one.place and one.path else one.message
        values = {"file": one_line(place.path), "line": place.line, "col": place.column, "title": kind(one)}
        asked.append([names[one.severity], values, one_line(message, github.MAX_MESSAGE)])
    done = subprocess.run(
        [NODE, "-e", ISSUED, str(CORE)], input=json.dumps(asked).encode(), capture_output=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(not (CORE.exists() and NODE), reason="make oracles fetches @actions/core; node runs it")
def test_commands_are_those_of_github_s_own_package() -> None:
    """Byte for byte, for each hostile text as path, rule and message, with a line and without."""
    found = [
        Finding(f"missing:{text}", text, (text,), id="PT202", severity=severity, path=text[:900], place=place)
        for text in HOSTILE
        for severity, place in ((ERROR, None), (WARNING, FileLine(text[:900], 7)), (NOTE, FileLine("p.lock", 7, 3)))
    ]
    assert [github.annotation(one).encode() for one in found] == issued(found)


@pytest.mark.skipif(not (CORE.exists() and NODE), reason="make oracles fetches @actions/core; node runs it")
def test_the_errors_of_a_run_are_commands_too() -> None:
    """With a line, and without a file."""
    for path, place in (("p,1.toml", FileLine("p,1.toml", 2, 5)), ("", FileLine("", 0, 0))):
        line = next(github.lines(CheckReport([], [], {path: "100%: no"}, {path: place})))
        values = {"file": place.path, "line": place.line, "col": place.column, "title": "not checked"}
        asked = json.dumps([["error", values, "100%: no"]]).encode()
        done = subprocess.run([NODE, "-e", ISSUED, str(CORE)], input=asked, capture_output=True, check=True)
        assert done.stdout == f"{line}\n".encode()
