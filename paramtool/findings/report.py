"""What one run of `check` found, as every format takes it; and strangers' words as text on one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from paramtool.errors import plural
from paramtool.lazy_dataclass import frozen
from paramtool.model.finding import ERROR, LOWERED, NOTE, WARNING, FileLine, Finding

ORDER = (ERROR, WARNING, NOTE)
"""Severities that are reported, the worst first."""


@frozen
class CheckReport:
    """The findings of one run."""

    findings: Sequence[Finding]
    """With those that are allowed; none has the severity `off`."""
    paths: Sequence[str]
    """Every checkpoint that was asked for, also one without findings."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """{path: why it could not be checked, or not to the end; of an empty path, why nothing was}"""
    places: Mapping[str, FileLine] = field(default_factory=dict)
    """{path of an error: its line in that file, 0 where it is not known}"""

    def place(self, path: str) -> FileLine:
        """Where an error is."""
        return self.places.get(path) or FileLine(path, 0, 0)

    @property
    def failing_first(self) -> list[Finding]:
        """The findings by how much they matter, those that are allowed last; otherwise in their order.

        What lets others pass comes before them.
        """
        return sorted(
            self.findings, key=lambda one: (one.id != LOWERED.id, bool(one.allowed), ORDER.index(one.severity))
        )

    @property
    def summary(self) -> str:
        """How many of what, on one line."""
        if self.errors and not self.paths:
            return "nothing checked"
        return summary(self.findings, len(self.paths), len(self.errors))


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """{`error`, `warning`, `note`, `allowed`: how many findings}"""
    found = Counter("allowed" if one.allowed else one.severity for one in findings)
    return {word: found[word] for word in (*ORDER, "allowed")}


def summary(findings: Iterable[Finding], files: int, failed: int) -> str:
    """How many of what of some files, of which some could not be checked."""
    errors, warnings, notes, allowed = counts(findings).values()
    words = [plural(files, "file"), plural(errors, "finding")]
    words += [plural(number, word) for number, word in ((warnings, WARNING), (notes, NOTE)) if number]
    words += [f"{number} {word}" for number, word in ((allowed, "allowed"), (failed, "not checked")) if number]
    return ", ".join(words)


def kind(finding: Finding) -> str:
    """The id and the name of a finding's rule: `PT101 tie-lost`, `PT103 untied:a=b`."""
    return one_line(f"{finding.id} {finding.rule}".strip())


def one_line(text: str, most: int = 0) -> str:
    """Text of printable characters, others as Python escapes them; with `most`, without the middle of a longer one.

    >>> print(one_line("w\\x1b[31m\\n::set-env"), one_line("abcdefghij", 7))
    w\\x1b[31m\\n::set-env ab...ij
    """
    if most and len(text) > 2 * most:  # what is cut off need not be escaped
        text = text[:most] + text[-most:]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    if most and len(text) > most:
        half = (most - 3) // 2
        text = f"{text[:half]}...{text[len(text) - half :]}"
    return text
