"""A table in Markdown, for the summary of a job on GitHub.

Strangers' words are in `<code>`, and every character of them that means something to Markdown, HTML or GitHub is a
character reference: so no parser sees structure in them, and GitHub's mentions and links skip code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramtool.findings.report import CheckReport, kind, one_line
from paramtool.model.finding import Finding

MAX_BYTES = 900_000
"""GitHub takes 1 MiB from a step (docs.github.com, "Workflow commands"); other lines of it need room, too."""
MAX_ROWS = 1000
MAX_CELL = 500
"""Characters of a cell, before they are escaped."""


def lines(report: CheckReport, most: int = MAX_BYTES) -> Iterator[str]:
    """The lines of the summary: a heading, how many of what, and a table, bounded in rows and to about `most` bytes."""
    yield from ("### paramtool check", "", f"{report.summary}.")
    rows = [*_errors(report), *map(_row, report.failing_first)]
    if not rows:
        return
    yield from ("", "| | rule | where | finding |", "|---|---|---|---|")
    left, shown = most, 0
    for row in rows[:MAX_ROWS]:
        left -= len(row.encode()) + 1
        if left < 0:
            break
        yield row
        shown += 1
    if shown < len(rows):
        yield from ("", f"Not shown: {len(rows) - shown} more.")


def _errors(report: CheckReport) -> Iterator[str]:
    for path, text in report.errors.items():
        yield f"| **not checked** | | {code(path)} | {code(text)} |"


def _row(finding: Finding) -> str:
    where = code(finding.path)
    if finding.place is not None:
        where += f"{'<br>' if where else ''}{code(f'{finding.place.path}:{finding.place.line}')}"
    allowed = f"<br>allowed {code(finding.allowed)}" if finding.allowed else ""
    severity = "allowed" if finding.allowed else f"**{finding.severity}**" if finding.fails else finding.severity
    return f"| {severity} | {code(kind(finding))} | {where} | {code(finding.message)}{allowed} |"


def code(text: str) -> str:
    """Any text as code in a cell of a table; nothing for an empty one.

    >>> print(code("<b>|`x"))
    <code>&#60;b&#62;&#124;&#96;x</code>
    """
    shown = one_line(text, MAX_CELL)
    inner = re.sub(r"""[!"#$%&*\-.:<>@\[\\\]^_`{|}~]""", lambda found: f"&#{ord(found[0])};", shown)
    return f"<code>{inner}</code>" if inner else ""
