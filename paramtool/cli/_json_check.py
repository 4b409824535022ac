"""`paramtool.check/1` of docs/json.md."""

from __future__ import annotations

from typing import Any

from paramtool.cli._failures import failure
from paramtool.cli._json_text import members
from paramtool.commands.check.report import Checked, CheckedFile
from paramtool.model.finding import Finding
from paramtool.model.rule_ids import BY_ID


def checked(found: Checked) -> dict[str, Any]:
    """The document of a check, with every finding."""
    return {
        "schema": "paramtool.check/1",
        "exit_code": found.exit_code,
        "lock": found.lock or None,
        "config": found.config or None,
        "counts": found.counts(),
        "notes": found.notes,
        "general": [one_finding(one) for one in found.general],
        "files": (_file(file) for file in found.files),
    }


def _file(file: CheckedFile) -> dict[str, Any]:
    failed = failure(file.error) if file.error is not None else None
    return {
        **members(file, "path", "exit_code"),
        "locked": file.locked or None,
        "findings": (one_finding(one) for one in file.findings),
        "notes": file.notes,
        "error": failed and failed.document(),
    }


def one_finding(finding: Finding) -> dict[str, Any]:
    """One finding."""
    place = finding.place
    return {
        "id": finding.id,
        "name": BY_ID[finding.id].name,
        **members(finding, "severity", "rule", "message", "names"),
        "place": place and members(place, "path", "line", "column"),
        "allowed": finding.allowed or None,
    }
