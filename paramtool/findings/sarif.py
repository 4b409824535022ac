"""SARIF 2.1.0, within the limits of GitHub's code scanning.

Source of the fields: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", section 3; of the
limits: docs.github.com, "SARIF results exceed one or more limits".  A result is at its line of the lock or
configuration, and otherwise at line 1 of its checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from paramtool.errors import plural
from paramtool.findings.report import CheckReport, one_line
from paramtool.model.finding import RULE_IDS, FileLine, Finding, RuleId

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MAX_RESULTS, MAX_SHOWN = 25_000, 5_000
"""Results that code scanning takes from a run, and that it shows."""
MAX_MESSAGE, MAX_NAMES, MAX_NAME = 1000, 20, 200
"""Characters of a message, names of a result, and characters of each."""
MAX_ERRORS = 1000
_LINK = re.compile(r"\[(?=[^\]]*\]\()")
"""What would begin a link in a message (section 3.11.6)."""
FINGERPRINTS = ("primaryLocationLineHash", "paramtool/v1")
"""The first is the one that code scanning reads: two results of one line are two alerts only if it differs."""


def text(report: CheckReport, version: str) -> str:
    """The document as ASCII; `##[`, which a log on GitHub obeys, is not in it."""
    return json.dumps(_SarifMaker(report, version).made(), indent=1).replace("##[", "#\\u0023[")


class _SarifMaker:
    """Makes one document."""

    def __init__(self, report: CheckReport, version: str) -> None:
        self.report, self.version = report, version
        self.ids = {one.id: number for number, one in enumerate(RULE_IDS)}
        self.seen: Counter[str] = Counter()

    def made(self) -> dict[str, Any]:
        """The whole."""
        kept = self.report.failing_first[:MAX_RESULTS]
        run = {
            "tool": {
                "driver": {
                    "name": "paramtool",
                    "semanticVersion": self.version,
                    "rules": [_rule(one) for one in RULE_IDS],
                }
            },
            "invocations": [
                {
                    "executionSuccessful": not self.report.errors,
                    "toolExecutionNotifications": [*self.left_out(), *self.errors()],
                }
            ],
            "automationDetails": {"id": "paramtool check/"},
            "columnKind": "unicodeCodePoints",
            "results": [self.result(one) for one in kept],
        }
        return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}

    def left_out(self) -> Iterator[dict[str, Any]]:
        """What is not there, and what will not be shown."""
        count = len(self.report.findings)
        if count > MAX_RESULTS:
            more = f"{plural(count - MAX_RESULTS, 'finding')} of {count} left out: code scanning takes {MAX_RESULTS}"
            yield _notification("warning", more)
        if count > MAX_SHOWN:
            yield _notification("note", f"code scanning shows {MAX_SHOWN} of {min(count, MAX_RESULTS)} results")

    def errors(self) -> Iterator[dict[str, Any]]:
        """What could not be checked, and why."""
        for path, error in [*self.report.errors.items()][:MAX_ERRORS]:
            where = {"locations": [self.location(self.report.place(path))]} if path else {}
            yield {**_notification("error", error), **where}
        if len(self.report.errors) > MAX_ERRORS:
            more = plural(len(self.report.errors) - MAX_ERRORS, "more file")
            yield _notification("error", f"{more} could not be checked")

    def result(self, finding: Finding) -> dict[str, Any]:
        """One finding."""
        message = finding.message
        if finding.place is not None and finding.path:
            message = f"{finding.path}: {message}"
        place = finding.place or FileLine(finding.path or next(iter(self.report.paths), "."), 1)
        # What stays the same from run to run: rule, checkpoint and tensors, without lines and numbers
        about = [finding.id, finding.rule, finding.path, *(finding.names or ("", finding.message))]
        digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
        self.seen[digest] += 1
        made: dict[str, Any] = {
            "ruleId": one_line(finding.id or finding.rule, MAX_NAME),
            "level": finding.severity,
            "message": {"text": _LINK.sub(r"\\[", one_line(message, MAX_MESSAGE)) or "-"},
            "locations": [self.location(place)],
            "partialFingerprints": dict.fromkeys(FINGERPRINTS, f"{digest}:{self.seen[digest]}"),
            "properties": self.properties(finding),
        }
        if finding.id in self.ids:
            made["ruleIndex"] = self.ids[finding.id]
        if finding.place is not None and finding.path:
            made["analysisTarget"] = {"uri": _uri(finding.path)}
        if finding.allowed:
            made["suppressions"] = [{"kind": "external", "justification": one_line(finding.allowed, MAX_MESSAGE)}]
        return made

    def properties(self, finding: Finding) -> dict[str, Any]:
        """The rule as it was written, and the first tensors; how many there are, if that is not all."""
        names = [one_line(name, MAX_NAME) for name in finding.names[:MAX_NAMES]]
        more = {"tensorCount": len(finding.names)} if len(finding.names) > MAX_NAMES else {}
        return {"rule": one_line(finding.rule, MAX_NAME), "tensors": names, **more}

    def location(self, place: FileLine) -> dict[str, Any]:
        """A line of a file."""
        region = {"startLine": max(1, place.line), "startColumn": max(1, place.column)}
        return {"physicalLocation": {"artifactLocation": {"uri": _uri(place.path)}, "region": region}}


def _uri(path: str) -> str:
    """A path as a reference: relative ones as they are, absolute ones as file URIs; any byte is escaped."""
    path = posixpath.normpath(path)
    # Whether a path has surrogates that no file system's name becomes in Python.
    data = path.encode(
        "utf-8",
        "surrogatepass"
        if any("\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" for c in path)
        else "surrogateescape",
    )
    return ("file://" if path.startswith("/") else "") + quote(data)


def _rule(one: RuleId) -> dict[str, Any]:
    words = f"{one.words[0].upper()}{one.words[1:]}."
    return {
        "id": one.id,
        "name": one.name,
        "shortDescription": {"text": words},
        "fullDescription": {"text": words},
        "help": {"text": f"{words}  See docs/ci.md and docs/check.md of paramtool: {one.id} {one.name}."},
        "defaultConfiguration": {"level": one.severity},
    }


def _notification(level: str, words: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": one_line(words, MAX_MESSAGE)}}
