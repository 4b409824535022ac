"""Findings as JUnit's XML, which GitLab, Jenkins and others show: a suite for each path, a case for each kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from paramtool.findings.words import printable, title
from paramtool.model.finding import Finding

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write (section 2.2)."""


def text(findings: Sequence[Finding], paths: Sequence[str]) -> str:
    """The document.  Errors are failures, what is allowed is skipped, and warnings and notes are output."""
    root = Xml.Element("testsuites", name="paramtool check")
    by_path: dict[str, list[Finding]] = {path: [] for path in paths}
    for one in findings:
        by_path.setdefault(one.path, []).append(one)
    for path, found in by_path.items():
        root.append(_suite(path, found))
    for count in ("tests", "failures", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def _suite(path: str, findings: Sequence[Finding]) -> Xml.Element:
    suite = Xml.Element("testsuite", name=clean(path))
    by_title: dict[str, list[Finding]] = {}
    for one in findings:
        by_title.setdefault(title(one), []).append(one)
    for name, own in by_title.items():
        suite.append(_case(path, name, own))
    if not by_title:
        suite.append(Xml.Element("testcase", classname=clean(path), name="check"))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", "0")
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return suite


def _case(path: str, name: str, findings: Sequence[Finding]) -> Xml.Element:
    case = Xml.Element("testcase", classname=clean(path), name=clean(name))
    failing = [one for one in findings if one.fails]
    allowed = [one for one in findings if one.allowed]
    others = [one for one in findings if not one.fails and not one.allowed]
    if failing:
        part = Xml.SubElement(case, "failure", message=clean(_short(failing)), type=clean(failing[0].id or "finding"))
        part.text = clean("\n".join(_line(one) for one in failing))
    elif allowed and not others:
        Xml.SubElement(case, "skipped", message=clean(f"allowed: {allowed[0].allowed}"))
    said = [_line(one) for one in others] + [f"{_line(one)} (allowed: {printable(one.allowed)})" for one in allowed]
    if said:
        Xml.SubElement(case, "system-out").text = clean("\n".join(said))
    return case


def _short(findings: Sequence[Finding]) -> str:
    more = len(findings) - 1
    return findings[0].message + (f" (and {more} more)" if more else "")


def _line(one: Finding) -> str:
    where = f"{one.place.path}:{one.place.line}: " if one.place else ""
    return printable(f"{where}{one.severity}: {one.message}")


def clean(value: str) -> str:
    """A text that XML 1.0 can hold: escapes in place of other characters.

    >>> print(clean("a\\x1b[31m"))
    a\\x1b[31m
    """
    return _ILLEGAL.sub(lambda found: repr(found[0])[1:-1], value)
