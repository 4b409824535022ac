"""JUnit's XML, as GitLab, Jenkins and others show it: a suite for each path, a case for each rule with findings.

A case fails where one of its findings fails, is skipped where all are allowed, and otherwise passes with its warnings
as its output.  Characters that XML 1.0 lacks are written as Python's escapes.
"""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.errors import plural
from paramtool.findings.report import CheckReport, kind, one_line
from paramtool.model.finding import Finding

MAX_LINES, MAX_LINE = 1000, 2000
"""Findings that a case lists, and characters of each."""
GENERAL = "configuration"
"""The suite of findings that are about no checkpoint."""


def lines(report: CheckReport) -> Iterator[str]:
    """The lines of the document."""
    of: dict[str, dict[str, list[Finding]]] = {}
    for finding in report.findings:  # those of a configuration come first
        if not finding.path:
            of.setdefault("", {})
    of |= {path: {} for path in (*report.paths, *report.errors)}
    for finding in report.findings:
        of.setdefault(finding.path, {}).setdefault(kind(finding), []).append(finding)
    suites = [_JunitSuite(path, rules, report.errors.get(path)) for path, rules in of.items()]
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<testsuites name="paramtool check"{_counts(suites)}>'
    for suite in suites:
        yield from suite.lines()
    yield "</testsuites>"


class _JunitSuite:
    """The cases of one path."""

    def __init__(self, path: str, rules: dict[str, list[Finding]], error: str | None) -> None:
        self.path, self.rules, self.error = path or GENERAL, rules, error
        found = rules.values()
        self.failures = sum(any(one.fails for one in group) for group in found)
        self.skipped = sum(all(one.allowed for one in group) for group in found)
        self.errors = int(error is not None)
        self.tests = len(rules) + self.errors or 1

    def lines(self) -> Iterator[str]:
        """Its element."""
        yield f" <testsuite name={quoted(self.path)}{_counts([self])}>"
        if self.error is not None:
            yield from self._case("readable", f"<error message={quoted(self.error)}/>")
        for rule, found in self.rules.items():
            yield from self._case(rule, _outcome(rule, found))
        if not self.rules and self.error is None:
            yield from self._case("check", "")
        yield " </testsuite>"

    def _case(self, name: str, inner: str) -> Iterator[str]:
        head = f"  <testcase classname={quoted(self.path)} name={quoted(name)}"
        if not inner:
            yield f"{head}/>"
            return
        yield from (f"{head}>", f"   {inner}", "  </testcase>")


def _counts(suites: list[_JunitSuite]) -> str:
    words = ("tests", "failures", "errors", "skipped")
    return "".join(f' {word}="{sum(getattr(suite, word) for suite in suites)}"' for word in words)


def _outcome(rule: str, found: list[Finding]) -> str:
    """What a case holds: a failure, that it was skipped, or its output."""
    if all(one.allowed for one in found):
        return f"<skipped message={quoted(f'allowed {found[0].allowed}')}/>"
    listed = "\n".join(map(_line, found[:MAX_LINES]))
    if len(found) > MAX_LINES:
        listed += f"\nand {len(found) - MAX_LINES} more"
    if failing := [one for one in found if one.fails]:
        first = failing[0].message if len(failing) == 1 else plural(failing, "finding")
        return f"<failure type={quoted(rule)} message={quoted(first)}>{escaped(listed)}</failure>"
    return f"<system-out>{escaped(listed)}</system-out>"


def _line(finding: Finding) -> str:
    place = f"{finding.place.path}:{finding.place.line}: " if finding.place is not None else ""
    return one_line(f"{finding.severity}: {place}{finding.sentence}", MAX_LINE)


def escaped(text: str) -> str:
    """Text of printable characters and line breaks between tags, without `##[`, which a log on GitHub obeys."""
    for character, name in {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "##[": "#&#35;["}.items():
        text = text.replace(character, name)
    return text


def quoted(text: str) -> str:
    """Any text as the value of an attribute."""
    return f'"{escaped(one_line(text, MAX_LINE))}"'
