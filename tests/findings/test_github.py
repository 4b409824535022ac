"""Workflow commands: the runner's own rules, written down here again, read back what was said and obey nothing else."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from paramtool.findings import github
from paramtool.findings.report import CheckReport, one_line
from paramtool.model.finding import NOTE, WARNING, FileLine, Finding
from tests.findings.samples import HOSTILE, findings, many, reports

OURS = ("error", "warning", "notice")


def obeyed(line: str) -> tuple[str, dict[str, str], str] | None:
    """(command, properties, message) of a line, as the runner's ActionCommand parses it; None where it prints it."""
    text = line.lstrip()
    if text.startswith("::") and "::" in text[2:]:
        head, _, data = text[2:].partition("::")
        name, _, rest = head.partition(" ")
        pairs = (one.split("=", 1) for one in rest.strip().split(",") if one)
        return name, {key: unescaped(value, "\r\n:,%") for key, value in pairs if value}, unescaped(data, "\r\n%")
    if found := re.search(r"##\[([^\]]*)\](.*)", line):
        return found[1].partition(" ")[0], {}, found[2]
    return None


def unescaped(text: str, characters: str) -> str:
    for character in characters:
        text = text.replace(f"%{ord(character):02X}", character)
    return text


@given(reports())
def test_nothing_is_obeyed_but_ours(report: CheckReport) -> None:
    """Each line is one line for every reader, and is one of three commands, or the summary, which is our words."""
    lines = [*github.lines(report)]
    assert lines[-1] == report.summary and obeyed(lines[-1]) is None
    for line in lines[:-1]:
        assert line.splitlines() == [line] and line.isprintable()
        assert (found := obeyed(line)) is not None and found[0] in OURS
        assert set(found[1]) <= {"file", "line", "col", "title"}


@given(findings())
def test_the_runner_reads_what_was_said(finding: Finding) -> None:
    """File, line, column and message come back as they are on one line."""
    found = obeyed(github.annotation(finding))
    assert found is not None
    path, line, column = finding.place or (finding.path, "", "")
    said = {"file": one_line(path, github.MAX_PATH), "line": str(line), "col": str(column)}
    assert {key: found[1].get(key, "") for key in said} == said
    assert found[1]["title"].startswith(finding.id)
    before = f"{finding.path}: " if finding.place and finding.path else ""
    assert found[2] == one_line(before + finding.message, github.MAX_MESSAGE)


@given(st.integers(0, 25), st.integers(0, 25), st.integers(0, 25), st.integers(0, 12))
def test_no_more_than_github_shows(errors: int, warnings: int, notes: int, unread: int) -> None:
    """At most ten of a severity, and those that are not shown are counted."""
    counts = {"error": errors, WARNING: warnings, NOTE: notes}
    found = [Finding("size", "m", id="PT206", severity=key) for key, number in counts.items() for _ in range(number)]
    *lines, _ = github.lines(CheckReport(found, ["a"], {f"{n}.pt": "not a file" for n in range(unread)}))
    for command, count in zip(OURS, (errors + unread, warnings, notes), strict=True):
        mine = [line for line in lines if line.startswith(f"::{command} ")]
        assert len(mine) == min(10, count)
        more = [re.search(r"title=more::(\d+) more: ", line) for line in mine]
        assert sum(int(one[1]) - 1 for one in more if one) == count - len(mine)


@given(st.integers(0, 25), st.integers(0, 25), st.integers(0, 25))
def test_every_unsafe_file_is_said_first(broken: int, unsafe: int, others: int) -> None:
    """However many other files cannot be read, or have other findings; a file with several calls is said once."""
    found = [Finding("size", "m", id="PT206", path="a.pt")] * others
    for n in range(unsafe):
        names = (f"os.system is called by '{n}.pt'", f"os.remove is called by '{n}.pt'")
        found += [Finding("unsafe", text, id="PT301", path="folder") for text in names]
    *lines, _ = github.lines(CheckReport(found, ["a"], {f"{n}.st": "not a file" for n in range(broken)}))
    assert [f"os.system is called by '{n}.pt'" in line for n, line in enumerate(lines[:unsafe])] == [True] * unsafe
    assert len(lines) - unsafe == min(10, broken + others + unsafe)


def test_what_is_allowed_is_counted_only() -> None:
    finding = Finding("size", "too large", id="PT206", path="m.pt", allowed='"known"')
    assert [*github.lines(CheckReport([finding], ["m.pt"]))] == ["1 file, 0 findings, 1 allowed"]


def test_ten_thousand() -> None:
    """Ten lines and the summary."""
    lines = [*github.lines(many(10_000))]
    assert len(lines) == 11
    assert lines[9] == "::error title=more::9991 more: 9991 PT201 changed"


def test_the_samples_would_be_obeyed() -> None:
    """The parser above can find something: some of the hostile names are commands, if they are printed as they are."""
    assert {obeyed(line)[0] for name in HOSTILE for line in name.splitlines() if obeyed(line)} >= {  # type: ignore[index]
        "set-env", "stop-commands", "add-mask", "error"
    }  # fmt: skip


def test_the_form() -> None:
    finding = Finding(
        "tie-lost",
        "'a' shared memory with 'b': 100%",
        ("a", "b"),
        id="PT101",
        path="m.pt",
        place=FileLine("p.lock", 7, 2),
    )
    assert github.annotation(finding) == (
        "::error file=p.lock,line=7,col=2,title=PT101 tie-lost::m.pt: 'a' shared memory with 'b': 100%25"
    )
