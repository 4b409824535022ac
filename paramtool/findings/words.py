"""What every form of findings says alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paramtool.errors import plural
from paramtool.model.finding import ERROR, NOTE, SEVERITIES, WARNING, Finding


def title(finding: Finding) -> str:
    """`PT101 tie-lost`, as far as it has both."""
    return " ".join(filter(None, (finding.id, finding.rule)))


def severest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings, then notes, then what is allowed; those of one severity in their order."""
    return sorted(findings, key=lambda one: (bool(one.allowed), SEVERITIES.index(one.severity)))


def counted(findings: Sequence[Finding], paths: Sequence[str]) -> str:
    """What was found, in a line: `2 files, 1 error, 1 warning, 1 allowed`."""
    allowed = sum(bool(one.allowed) for one in findings)
    counts = {
        kind: sum(one.severity == kind and not one.allowed for one in findings) for kind in (ERROR, WARNING, NOTE)
    }
    found = [plural(count, kind) for kind, count in counts.items() if count] or ["no findings"]
    return ", ".join([plural(len(paths), "file"), *found, *([f"{allowed} allowed"] if allowed else [])])


def printable(text: str) -> str:
    """A text with escapes in place of everything that is not printable; what is printable stays.

    >>> print(printable("a\\nb\\x1b[31m"))
    a\\nb\\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] if c != "\ufeff" else "\\ufeff" for c in text)
