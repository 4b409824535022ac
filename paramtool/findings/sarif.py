"""Findings as SARIF 2.1.0, within what GitHub's code scanning takes.

The form is the standard's (OASIS, SARIF 2.1.0).  The limits are GitHub's ("SARIF results exceed one or more limits"):
25,000 results of a run are taken, of which the 5,000 severest are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from paramtool.errors import plural
from paramtool.findings.words import printable, severest_first
from paramtool.model.finding import ERROR, NOTE, WARNING, Finding
from paramtool.model.rule_ids import RULE_IDS

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MAX_RESULTS = 25_000
SHOWN = 5_000
MAX_MESSAGE = 4_000
"""Characters of a message."""
HELP = "docs/check.md of paramtool explains"
LEVELS = {ERROR: "error", WARNING: "warning", NOTE: "note"}
_LINK = re.compile(r"\[(?=[^\]]*\]\()")
"""What would begin a link in a message (section 3.11.6)."""


def text(findings: Sequence[Finding], paths: Sequence[str], version: str) -> str:
    """The document: one run of this version of paramtool over the paths."""
    return json.dumps(document(findings, paths, version), indent=1) + "\n"


def document(findings: Sequence[Finding], paths: Sequence[str], version: str) -> dict[str, Any]:
    """The same as JSON data."""
    ordered = severest_first(findings)
    kept = ordered[:MAX_RESULTS]
    rules = _rules(kept)
    numbers = {one["id"]: k for k, one in enumerate(rules)}
    run = {
        "tool": {"driver": {"name": "paramtool", "semanticVersion": version, "rules": rules}},
        "automationDetails": {"id": "paramtool-check/"},
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": {"uri": uri(path)}} for path in dict.fromkeys(paths)],
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _notifications(len(ordered))}],
        "results": [_result(one, numbers) for one in kept],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rules(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The kinds that were found, by their ids; a finding without an id is a rule of its own words."""
    found = {_id(one): one for one in findings}
    known = {one.id: one for one in RULE_IDS}
    rules = []
    for key in sorted(found):
        row = known.get(key)
        words = row.words if row else found[key].rule
        rules.append(
            {
                "id": key,
                "name": row.name if row else key,
                "shortDescription": {"text": printable(words)},
                "help": {"text": f"{HELP} {row.name if row else 'rules'}"},
                "defaultConfiguration": {"level": LEVELS[row.severity if row else ERROR]},
            }
        )
    return rules


def _id(one: Finding) -> str:
    return one.id or printable(one.rule)


def _result(one: Finding, numbers: dict[str, int]) -> dict[str, Any]:
    message = printable(f"{one.path}: {one.message}" if one.path else one.message)
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}..."
    result: dict[str, Any] = {
        "ruleId": _id(one),
        "ruleIndex": numbers[_id(one)],
        "level": LEVELS[one.severity],
        "message": {"text": _LINK.sub(r"\\[", message)},
        "locations": [_location(one)],
        "partialFingerprints": {"paramtool/v1": _fingerprint(one)},
    }
    if one.allowed:
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": printable(one.allowed)}]
    return result


def _location(one: Finding) -> dict[str, Any]:
    path, line, column = one.place or (one.path or ".", 1, 1)
    found: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(path)},
            "region": {"startLine": line, "startColumn": column},
        }
    }
    if one.names:
        found["logicalLocations"] = [
            {"fullyQualifiedName": printable(name), "kind": "object"} for name in one.names[:100] if name
        ]
    return found


def _fingerprint(one: Finding) -> str:
    """The same in every run as long as the kind, the checkpoint and the tensors are: numbers in messages change."""
    import hashlib

    parts = (_id(one), one.path, *(one.names or (one.message,)))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _notifications(count: int) -> list[dict[str, Any]]:
    """What is not in the document, or will not be shown."""
    found = []
    if count > MAX_RESULTS:
        found.append(f"{plural(count - MAX_RESULTS, 'finding')} of {count} left out: a run has at most {MAX_RESULTS}")
    if count > SHOWN:
        found.append(f"GitHub shows {SHOWN} of {count} findings, the severest; --format json has all")
    return [{"level": "warning", "message": {"text": text}} for text in found]


def uri(path: str) -> str:
    """A path as a relative reference, or as a file URI where it is absolute.

    >>> uri("models/a b.pt"), uri("/x/%.pt")
    ('models/a%20b.pt', 'file:///x/%25.pt')
    """
    quoted = quote(path.replace("\\", "/").encode("utf-8", "surrogateescape"))
    return f"file://{quoted}" if quoted.startswith("/") else quoted.removeprefix("./")
