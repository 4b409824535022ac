"""`check --format`, `-o`, and what changes on GitHub: from a checkpoint on disk to what a job's log shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import save_file

from paramtool.cli.check import FORMS
from tests.examples import IS_HARD
from tests.findings.samples import HOSTILE
from tests.findings.test_github import obeyed
from tests.findings.test_markdown import OURS, Page
from tests.findings.test_sarif import validator
from tests.hostile.command import Ran, quick

RULES = 'has = ["lost"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint that lacks a tensor, which its configuration asks for."""
    save_file({"w": torch.ones(3)}, tmp_path / "m.safetensors")
    (tmp_path / "paramtool.toml").write_text(RULES)
    return tmp_path


@pytest.fixture
def github(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in the folder `models` of a repository, in a job on GitHub."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder.parent))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary"))
    return folder


def judge(form: str, text: str) -> None:
    """Somebody else's reader takes it, and finds the tensor."""
    if form == "sarif":
        validator().validate(document := json.loads(text))
        assert [one["ruleId"] for one in document["runs"][0]["results"]] == ["PT202"]
    elif form == "junit":
        assert ElementTree.fromstring(text).get("failures") == "1"
    elif form == "json":
        assert json.loads(text)["counts"]["error"] == 1
    elif form == "markdown":
        assert any("lost" in code for code in Page(text).codes)
    elif form == "github":
        assert obeyed(text.splitlines()[0])[0] == "error"  # type: ignore[index]
    else:
        assert "PT202 missing" in text


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_printed_or_written(form: str, folder: Path) -> None:
    """The same text on standard output and in a file, whose existing version stays without --force."""
    printed = quick("check", "m.safetensors", "--format", form, cwd=folder)
    assert printed.code == 1 and printed.err == ""
    judge(form, printed.out)
    ran = quick("check", "m.safetensors", "--format", form, "-o", "out", cwd=folder)
    assert ran.code == 1 and "PT202 missing" in ran.out
    assert (folder / "out").read_text() == printed.out
    (folder / "out").write_text(printed.out.replace("missing", "mine"))
    again = quick("check", "m.safetensors", "--format", form, "-o", "out", cwd=folder)
    assert again.code == 7 and "--force" in again.err and "mine" in (folder / "out").read_text()
    assert quick("check", "m.safetensors", "--format", form, "-o", "out", "--force", cwd=folder).code == 1
    assert (folder / "out").read_text() == printed.out


@pytest.mark.parametrize(
    ("suffix", "form"), [("sarif", "sarif"), ("xml", "junit"), ("md", "markdown"), ("JSON", "json")]
)
def test_the_suffix_names_the_form(suffix: str, form: str, folder: Path) -> None:
    assert quick("check", "m.safetensors", "-o", f"r.{suffix}", cwd=folder).code == 1
    judge(form, (folder / f"r.{suffix}").read_text())


def test_a_suffix_that_names_no_form_is_refused_before_anything_is_read(folder: Path) -> None:
    ran = quick("check", "nowhere.pt", "-o", "r.html", cwd=folder)
    assert (ran.code, ran.out) == (2, "") and "r.html" in ran.err and ".sarif" in ran.err


def test_the_output_is_no_input(folder: Path) -> None:
    before = (folder / "m.safetensors").read_bytes()
    ran = quick("check", "m.safetensors", "--format", "json", "-o", "m.safetensors", "--force", cwd=folder)
    assert ran.code in (2, 7) and (folder / "m.safetensors").read_bytes() == before


def test_on_github_annotations_and_a_summary(github: Path) -> None:
    """By default, with paths relative to the repository; an earlier summary stays."""
    (github / "summary").write_text("before\n")
    ran = quick("check", "m.safetensors", cwd=github)
    assert ran.code == 1
    found = obeyed(ran.out.splitlines()[0])
    assert found is not None and found[1]["file"] == f"{github.name}/paramtool.toml" and found[1]["line"] == "1"
    summary = (github / "summary").read_text()
    assert summary.startswith("before\n### paramtool check\n") and f"{github.name}/m.safetensors" in unescape(summary)


def test_on_github_with_an_output(github: Path) -> None:
    """One run gives annotations, summary and SARIF."""
    ran = quick("check", "m.safetensors", "-o", "r.sarif", cwd=github)
    assert ran.out.startswith("::error ") and "paramtool check" in (github / "summary").read_text()
    result = json.loads((github / "r.sarif").read_text())["runs"][0]["results"][0]
    assert result["analysisTarget"]["uri"] == f"{github.name}/m.safetensors"


def test_on_github_text_has_no_summary(github: Path) -> None:
    assert "PT202 missing" in quick("check", "m.safetensors", "--format", "text", cwd=github).out
    assert not (github / "summary").exists()


def test_elsewhere_nothing_is_appended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is left in the environment names nothing of ours."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary"))
    assert "PT202 missing" in quick("check", "m.safetensors", cwd=folder).out
    assert not (folder / "summary").exists()


@pytest.mark.parametrize("place", ["", "nowhere/summary", ".", "pipe", "a\0b"])
def test_a_summary_that_cannot_be_written_is_a_warning(
    place: str, github: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder, a pipe without a reader, a place that does not exist: the check is what it was."""
    os.mkfifo(github / "pipe")
    if "\0" in place:
        monkeypatch.setattr(os, "environ", {**os.environ, "GITHUB_STEP_SUMMARY": place})
    else:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", place and str(github / place))
    before = sorted(os.listdir(github))
    ran = quick("check", "m.safetensors", cwd=github)
    assert ran.code == 1 and ran.out.startswith("::error ")
    assert ran.err.startswith("warning: ") == bool(place) and ran.err.count("\n") == bool(place)
    assert sorted(os.listdir(github)) == before


def test_a_full_summary_gets_no_more_than_fits(github: Path) -> None:
    """GitHub drops a summary that is over its limit."""
    (github / "summary").write_bytes(b"x" * 899_990)
    quick("check", "m.safetensors", cwd=github)
    assert (github / "summary").stat().st_size < 1 << 20
    assert "Not shown: 1 more." in (github / "summary").read_text()


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMS)
def test_ten_thousand_findings(form: str, github: Path) -> None:
    """Every form ends, and is what its readers take; only JSON, SARIF and the counts have all of them.

    `make test` has ten thousand for SARIF, whose limits are above five, and two for the others, above all of theirs.
    """
    count = 10_000 if IS_HARD or form == "sarif" else 2_000
    names = json.dumps([f"layer.{number}" for number in range(count)])
    (github / "paramtool.toml").write_text(f"has = {names}\n")
    ran = quick("check", "m.safetensors", "--format", form, cwd=github)
    assert ran.code == 1 and ran.err == ""
    bounded = {"github": 11, "text": 30, "markdown": 1100}
    assert len(ran.out.splitlines()) <= bounded.get(form, 10**7)
    if form == "json":
        assert len(json.loads(ran.out)["files"][0]["findings"]) == count
    elif form == "sarif":
        assert len(json.loads(ran.out)["runs"][0]["results"]) == count
    else:
        assert f"{count}" in ran.out or f"{count - 9} more" in ran.out


def hostile(folder: Path) -> Path:
    """A torch file whose names are hostile, one of which is not in its lock."""
    state = {name: torch.full((2,), float(k)) for k, name in enumerate(HOSTILE) if "\ud800" not in name}
    torch.save(state, folder / "m.pt")
    assert quick("lock", "m.pt", cwd=folder).code == 0
    torch.save({name: tensor + 1 for name, tensor in state.items()}, folder / "m.pt")
    (folder / "paramtool.toml").write_text('severity = {file-changed = "off"}\n')
    return folder


def printed_lines(ran: Ran) -> list[str]:
    return [*ran.out.splitlines(), *ran.err.splitlines()]


@pytest.mark.parametrize("form", [*FORMS, ""])
def test_hostile_names_are_obeyed_nowhere(form: str, github: Path) -> None:
    """In no form, not even in the report for people, which a log on GitHub reads line by line, too."""
    hostile(github)
    ran = quick("check", "m.pt", *(["--format", form] if form else []), cwd=github)
    assert ran.code == 1, ran
    commands = {found[0] for line in printed_lines(ran) if (found := obeyed(line))}
    assert commands <= ({"error", "warning"} if form in ("", "github") else set())
    assert all(line.isprintable() for line in printed_lines(ran))
    if form == "":
        page = Page((github / "summary").read_text())
        assert {tag for tag, _ in page.tags} <= OURS and "script" in "".join(page.codes)


@pytest.mark.parametrize(
    "words", [("inspect", "m.pt"), ("inspect", "m.pt", "--json"), ("check", "##[add-mask]x", "::a", "--format=text")]
)
def test_no_command_prints_what_github_obeys(words: tuple[str, ...], github: Path) -> None:
    """Names in listings, in documents and in errors."""
    hostile(github)
    ran = quick(*words, cwd=github)
    assert printed_lines(ran) and not [line for line in printed_lines(ran) if obeyed(line)]


def test_json_is_the_same_document(github: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is escaped in a document is the same string."""
    hostile(github)
    names = [name for name in HOSTILE if "\ud800" not in name]
    ran = quick("check", "m.pt", "--json", cwd=github)
    found = {name for one in json.loads(ran.out)["files"][0]["findings"] for name in one["names"]}
    assert found == set(names) and any("##[" in name for name in names)


# --- errors that end a run ----------------------------------------------------------------------------------------


def wrong_key(folder: Path) -> tuple[str, int, int, int]:
    """A configuration with an unknown key; its file, line and column, and the exit code."""
    (folder / "paramtool.toml").write_text(RULES + "[severity]\nlost = 1\n")
    return "paramtool.toml", 3, 1, 2


def no_toml(folder: Path) -> tuple[str, int, int, int]:
    (folder / "paramtool.toml").write_text(RULES + "no-nan = treu\n")
    return "paramtool.toml", 2, 10, 2


def edited_lock(folder: Path) -> tuple[str, int, int, int]:
    """A lock with a line that cannot be parsed."""
    assert quick("lock", "m.safetensors", cwd=folder).code == 0
    lines = (folder / "paramtool.lock").read_text().split("\n")
    number = next(number for number, line in enumerate(lines) if line.startswith("tensor "))
    lines[number] = "tonsor w"
    (folder / "paramtool.lock").write_text("\n".join(lines))
    return "paramtool.lock", number + 1, 1, 3


def no_lock(folder: Path) -> tuple[str, int, int, int]:
    (folder / "paramtool.toml").write_text('lock = "gone.lock"\n')
    return "gone.lock", 0, 0, 2


BROKEN = [wrong_key, no_toml, edited_lock, no_lock]


@pytest.mark.parametrize("broken", BROKEN)
def test_an_error_that_ends_a_run_on_github(broken: Callable[[Path], tuple[str, int, int, int]], github: Path) -> None:
    """An annotation at its line, a summary, SARIF to upload, and the message on standard error."""
    name, line, column, code = broken(github)
    ran = quick("check", "m.safetensors", "-o", "r.sarif", cwd=github)
    assert ran.code == code and f"error: {name}" in ran.err and ran.err.count("error: ") == 1, ran
    command, said, message = obeyed(ran.out.splitlines()[0])  # type: ignore[misc]
    assert command == "error" and said["file"] == f"{github.name}/{name}"
    assert said.get("line") == (str(line) if line else None) and message in ran.err
    assert "col" not in said or said["col"] == str(column)
    where = f"{github.name}/{name}" + (f":{line}" if line else "")
    assert where in Page((github / "summary").read_text()).codes
    validator().validate(document := json.loads((github / "r.sarif").read_text()))
    (run,) = document["runs"]
    (told,) = run["invocations"][0]["toolExecutionNotifications"]
    place = told["locations"][0]["physicalLocation"]
    assert run["results"] == [] and run["invocations"][0]["executionSuccessful"] is False
    assert place["artifactLocation"]["uri"] == f"{github.name}/{name}" and message.startswith(told["message"]["text"])
    assert (place["region"]["startLine"], place["region"]["startColumn"]) == (max(1, line), max(1, column))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("broken", BROKEN)
def test_an_error_that_ends_a_run_in_each_form(
    form: str, broken: Callable[[Path], tuple[str, int, int, int]], folder: Path
) -> None:
    """The same on standard output and in a file, but text, which standard error has already."""
    name, _, _, code = broken(folder)
    printed = quick("check", "m.safetensors", "--format", form, cwd=folder)
    ran = quick("check", "m.safetensors", "--format", form, "-o", "out", cwd=folder)
    assert printed.code == ran.code == code and ran.out == "" and printed.err == ran.err
    text = (folder / "out").read_text()
    assert printed.out == ("" if form == "text" else text)
    if form == "json":
        assert json.loads(text)["exit_code"] == code and json.loads(text)["message"] in ran.err
    elif form == "junit":
        suites = ElementTree.fromstring(text)
        (error,) = suites.iter("error")
        assert suites.get("errors") == "1" and error.get("message") in ran.err  # type: ignore[operator]
    elif form != "sarif":
        assert name in text and "nothing checked" in text


def test_an_error_without_a_file_is_an_annotation_too(github: Path) -> None:
    """Where nothing says what is checked, there is no file to name."""
    (github / "paramtool.toml").unlink()
    ran = quick("check", "-o", "r.sarif", cwd=github)
    command, said, message = obeyed(ran.out.splitlines()[0])  # type: ignore[misc]
    assert ran.code == 2 and command == "error" and "file" not in said and "no path is given" in message
    document = json.loads((github / "r.sarif").read_text())
    validator().validate(document)
    assert "locations" not in document["runs"][0]["invocations"][0]["toolExecutionNotifications"][0]


@pytest.mark.parametrize("output", ["paramtool.toml", "m.safetensors", "my.lock"])
def test_an_error_replaces_no_input(output: str, folder: Path) -> None:
    """Nor is the first error lost with the second."""
    wrong_key(folder)
    (folder / "my.lock").write_text("mine")
    before = (folder / output).read_bytes()
    words = ("--lock", "my.lock", "--format", "sarif", "-o", output, "--force")
    ran = quick("check", "m.safetensors", *words, cwd=folder)
    assert ran.code in (2, 7) and "unknown" not in ran.out and "paramtool.toml:3:1: " in ran.err, ran
    assert ran.err.count("error: ") == 2 and (folder / output).read_bytes() == before
