"""JUnit's XML is parsed by Python's expat; texts come back, and each case has one outcome."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given

from paramtool.findings import junit
from paramtool.findings.report import CheckReport, kind, one_line
from tests.findings.samples import many, reports


def parsed(report: CheckReport) -> ElementTree.Element:
    text = "\n".join(junit.lines(report))
    assert "##[" not in text
    return ElementTree.fromstring(text.encode())


@given(reports())
def test_every_text_comes_back(report: CheckReport) -> None:
    """Paths, rules and messages, with what XML lacks as escapes; every attribute that counts is right."""
    root = parsed(report)
    suites = {suite.get("name"): suite for suite in root}
    for path in (*report.paths, *report.errors):
        assert one_line(path or junit.GENERAL, junit.MAX_LINE) in suites
    texts = [
        text for case in root.iter("testcase") for text in (*case.itertext(), *(x.get("message", "") for x in case))
    ]
    names = {case.get("name") for case in root.iter("testcase")}
    for finding in report.findings:
        assert one_line(kind(finding), junit.MAX_LINE) in names
        if not finding.allowed and len(finding.message) + len(str(finding.place)) < 300:
            assert any(one_line(finding.message) in text for text in texts)
    for path, error in report.errors.items():
        found = suites[one_line(path or junit.GENERAL, junit.MAX_LINE)].iter("error")
        assert one_line(error, junit.MAX_LINE) in [one.get("message") for one in found]


@given(reports())
def test_the_counts_are_those_of_the_elements(report: CheckReport) -> None:
    for part in (root := parsed(report), *root):
        assert int(part.get("tests", "")) == len([*part.iter("testcase")])
        for word, tag in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items():
            assert int(part.get(word, "")) == len([*part.iter(tag)])
    failing = {(one.path, kind(one)) for one in report.findings if one.fails}
    assert int(root.get("failures", "")) == len(failing)
    assert int(root.get("errors", "")) == len(report.errors)


def test_a_path_without_findings_is_a_case_that_passes() -> None:
    (suite,) = parsed(CheckReport([], ["m.pt"]))
    (case,) = suite
    assert (suite.get("name"), case.get("name"), len(case)) == ("m.pt", "check", 0)


def test_ten_thousand_are_listed_in_part() -> None:
    """One case, whose text says how many more there are."""
    root = parsed(many(10_000))
    (failure,) = root.iter("failure")
    assert failure.get("message") == "10000 findings"
    lines = (failure.text or "").splitlines()
    assert len(lines) == junit.MAX_LINES + 1 and lines[-1] == "and 9000 more"
