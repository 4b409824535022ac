"""SARIF: valid by the schema of the standard, formats included, and within the limits of code scanning."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from jsonschema import Draft4Validator, FormatChecker

from paramtool.findings import sarif
from paramtool.findings.report import CheckReport, one_line
from paramtool.model.finding import FileLine, Finding
from tests.findings.samples import findings, many, reports

URI = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?[A-Za-z0-9._~!$&'()*+,;=@%/:?#-]*")
"""RFC 3986, as far as characters go."""


def formats() -> FormatChecker:
    """`uri` and `uri-reference`, for which the validator has no judge of its own."""
    checker = FormatChecker()

    @checker.checks("uri-reference", raises=ValueError)
    def _reference(value: object) -> bool:
        urlsplit(str(value))
        return bool(URI.fullmatch(str(value))) and not re.search(r"%(?![0-9A-Fa-f]{2})", str(value))

    @checker.checks("uri", raises=ValueError)
    def _absolute(value: object) -> bool:
        return _reference(value) and bool(urlsplit(str(value)).scheme)

    return checker


@cache
def validator() -> Draft4Validator:
    schema = json.loads((Path(__file__).parent / "sarif-2.1.0-rtm.5.json").read_text())
    return Draft4Validator(schema, format_checker=formats())


def made(report: CheckReport) -> Any:
    """The document, as a parser of UTF-8 reads it, valid."""
    text = sarif.text(report, "1.2.3")
    assert text.isascii() and "##[" not in text
    found = json.loads(text)
    json.dumps(found, ensure_ascii=False).encode()  # no lone surrogate
    validator().validate(found)
    return found["runs"][0]


@given(reports())
def test_any_report_is_valid(report: CheckReport) -> None:
    """With one result for each finding, whose rule, level, message and suppression are those of the finding."""
    run = made(report)
    rules = run["tool"]["driver"]["rules"]
    for finding, result in zip(report.failing_first, run["results"], strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.id
        assert result["level"] == finding.severity
        assert bool(result.get("suppressions")) == bool(finding.allowed)
        before = f"{finding.path}: " if finding.place and finding.path else ""
        shown = result["message"]["text"]
        assert not re.search(r"(?<!\\)\[[^\]]*\]\(", shown)
        expected = one_line(before + finding.message, sarif.MAX_MESSAGE) or "-"
        assert shown.replace("\\[", "[") == expected.replace("\\[", "[")
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [one["message"]["text"] for one in notes] == [one_line(x, 1000) for x in report.errors.values()]
    assert run["invocations"][0]["executionSuccessful"] == (not report.errors)


@given(findings())
def test_a_result_is_at_its_line(finding: Finding) -> None:
    """Of the lock or the configuration; otherwise at line 1 of the checkpoint, or of the first one."""
    (result,) = made(CheckReport([finding], ["first.pt"]))["results"]
    place = result["locations"][0]["physicalLocation"]
    expected = finding.place or FileLine(finding.path or "first.pt", 1)
    assert (place["region"]["startLine"], place["region"]["startColumn"]) == expected[1:]
    assert ("analysisTarget" in result) == bool(finding.place and finding.path)


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("models/a b.pt", "models/a%20b.pt"), ("./a.pt", "a.pt"), ("c:d.pt", "c%3Ad.pt"),
        ("/other/a.pt", "file:///other/a.pt"), ("é\udcff?#", "%C3%A9%FF%3F%23"), ("../a.pt", "../a.pt"),
        ("//host/a.pt", "file:////host/a.pt"),
    ],
)  # fmt: skip
def test_paths_are_references(path: str, uri: str) -> None:
    """No name becomes a scheme, a host or a query."""
    (result,) = made(CheckReport([Finding("size", "m", id="PT206", path=path)], [path]))["results"]
    found = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert found == uri
    assert not urlsplit(found).netloc and not urlsplit(found).query


def test_fingerprints_are_those_of_the_next_run() -> None:
    """Lines, numbers and the order of other findings do not change them, and no two results have the same."""
    names = [f"t{n}" for n in range(5)]

    def prints(first: int, share: str, names: list[str]) -> dict[str, str]:
        found = [
            Finding(
                "changed", f"{name!r}: {share} differ", (name,), id="PT201", path="m.pt", place=FileLine("l", first + k)
            )
            for k, name in enumerate(names)
        ]
        results = made(CheckReport(found, ["m.pt"]))["results"]
        assert all(len(set(one["partialFingerprints"].values())) == 1 for one in results)
        return {
            one["properties"]["tensors"][0]: one["partialFingerprints"]["primaryLocationLineHash"] for one in results
        }

    before = prints(1, "1%", names)
    assert before == prints(7, "2%", names[::-1]) and len(set(before.values())) == 5


@given(reports())
def test_no_two_results_have_one_fingerprint(report: CheckReport) -> None:
    results = made(report)["results"]
    assert len({one["partialFingerprints"]["paramtool/v1"] for one in results}) == len(results)


@pytest.mark.parametrize("count", [5_001, 26_000])
def test_limits_of_code_scanning(count: int) -> None:
    """What is left out and what is not shown is said, errors come first, and the upload is small enough."""
    report = many(count)
    warning = Finding("unused-bytes", "3 MB", id="PT204", severity="warning", path="m.pt")
    text = sarif.text(CheckReport([warning, *report.findings], ["m.pt"]), "1")
    (run,) = json.loads(text)["runs"]
    assert len(run["results"]) == min(count + 1, sarif.MAX_RESULTS)
    assert run["results"][0]["level"] == "error"
    notes = [one["message"]["text"] for one in run["invocations"][0]["toolExecutionNotifications"]]
    shown = f"code scanning shows 5000 of {len(run['results'])} results"
    left = f"{count + 1 - 25_000} findings of {count + 1} left out: code scanning takes 25000"
    assert notes == ([left] if count > 25_000 else []) + [shown]
    assert len(gzip.compress(text.encode())) < 10_000_000


def test_many_names_and_long_messages_are_bounded() -> None:
    finding = Finding("missing", "m" * 10**6, tuple(f"{'n' * 1000}{k}" for k in range(1000)), id="PT202", path="a")
    (result,) = made(CheckReport([finding], ["a"]))["results"]
    assert len(json.dumps(result)) < 8000
    assert (len(result["properties"]["tensors"]), result["properties"]["tensorCount"]) == (20, 1000)


def test_unquoted_uris_are_paths() -> None:
    """The judge of references in this file refuses what is none."""
    assert not formats().conforms("a b", "uri-reference") and not formats().conforms("a", "uri")
    assert unquote(sarif.SCHEMA) == sarif.SCHEMA
