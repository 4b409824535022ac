"""Findings as Markdown, for the summary of a job.

Every word that a file chose is in a code span: nothing in one is a link, a mention, an image or HTML (CommonMark 0.31,
section 6.1).  A step's summary has at most 1 MiB (GitHub's documentation, "Job summaries").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paramtool.errors import plural
from paramtool.findings.words import counted, printable, severest_first, title
from paramtool.model.finding import Finding

MAX_NBYTES = 900_000
"""Bytes of the summary."""
MAX_MESSAGE = 600
"""Characters of a message."""


def text(findings: Sequence[Finding], paths: Sequence[str]) -> str:
    """The summary: a heading, a list for each path with findings, and what was left out."""
    out, nbytes, shown = [f"### paramtool check: {counted(findings, paths)}\n"], 0, 0
    for is_finding, line in _lines(findings):
        nbytes += len(line.encode()) + 1
        if nbytes > MAX_NBYTES:
            out.append(f"\nand {plural(len(findings) - shown, 'more finding')}")
            break
        out.append(line)
        shown += is_finding
    return "\n".join(out) + "\n"


def _lines(findings: Sequence[Finding]) -> Iterator[tuple[bool, str]]:
    by_path: dict[str, list[Finding]] = {}
    for one in severest_first(findings):
        by_path.setdefault(one.path, []).append(one)
    for path, found in by_path.items():
        if path:
            yield False, f"\n{code(path)}\n"
        for one in found:
            severity = "allowed" if one.allowed else one.severity
            why = f" ({code(one.allowed)})" if one.allowed else ""
            place = f" at {code(f'{one.place.path}:{one.place.line}')}" if one.place else ""
            yield True, f"- **{severity}** {code(title(one))}{place}: {code(_cut(one.message))}{why}"


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}..."


def code(value: str) -> str:
    """A text as a code span.

    >>> print(code("a"), code("`"), code(""))
    `a` `` ` `` ` `
    """
    shown = printable(value)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    if not shown.strip():
        return f"`{shown or ' '}`"
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"
