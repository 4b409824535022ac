"""A table in Markdown, for the summary of a job on GitHub.

Strangers' words are code spans (CommonMark 0.31, section 6.1), in which no parser sees structure, and GitHub neither
mentions nor links.  A pipe would end the cell, so it is `<code>&#124;</code>`; so is the bracket of `##[`, which a log
obeys.  Character references alone would not do: GitHub's renderer links addresses after it has read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramtool.drawing.strips import stacked, text_strip
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
    yield from _bar(report)
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


def _bar(report: CheckReport) -> Iterator[str]:
    """Of several files, how many pass: the stacked bar of a page as text."""
    if len(report.paths) < 2:
        return
    failing = {one.path for one in report.findings if one.fails} - report.errors.keys()
    failed, unread = (sum(path in those for path in report.paths) for those in (failing, report.errors))
    passing = len(report.paths) - failed - unread
    rows = [
        (f"{passing} of {len(report.paths)} pass", passing, "green"),
        (f"{failed} {'fails' if failed == 1 else 'fail'}", failed, "red"),
        (f"{unread} not checked", unread, "blank"),
    ]
    parts = stacked((word, count, tint, "", "") for word, count, tint in rows)
    said = [word for k, (word, count, _) in enumerate(rows) if count or not k]
    yield from ("", f"{text_strip(parts)} {', '.join(said)}")


def _errors(report: CheckReport) -> Iterator[str]:
    for path, text in report.errors.items():
        line = report.place(path).line
        yield f"| **not checked** | | {code(f'{path}:{line}' if line else path)} | {code(text)} |"


def _row(finding: Finding) -> str:
    where = code(finding.path)
    if finding.place is not None:
        where += f"{'<br>' if where else ''}{code(f'{finding.place.path}:{finding.place.line}')}"
    allowed = f"<br>allowed {code(finding.allowed)}" if finding.allowed else ""
    severity = "allowed" if allowed else f"**{finding.severity}**" if finding.fails else finding.severity
    return f"| {severity} | {code(kind(finding))} | {where} | {code(finding.message)}{allowed} |"


def code(text: str) -> str:
    """Any text as code in a cell of a table; nothing for an empty one.

    >>> print(code("a|`b"))
    `a`<code>&#124;</code>`` `b ``
    """
    parts = re.split(r"(\|+|(?<=##)\[)", one_line(text, MAX_CELL))
    return "".join(
        (f"<code>{''.join(f'&#{ord(c)};' for c in part)}</code>" if k % 2 else _span(part))
        for k, part in enumerate(parts)
        if part
    )


def _span(text: str) -> str:
    """A code span without pipes: its fence is longer than any run of backticks in it."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.strip() and (text[0] in "` " or text[-1] in "` ") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
