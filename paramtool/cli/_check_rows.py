"""The rows of `check`: a line for each finding, bounded for each rule and file, and the counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramtool.cli import _display
from paramtool.cli._render import Row
from paramtool.cli._streams import quoted
from paramtool.cli._table import whole
from paramtool.cli._text import NEXT
from paramtool.commands.check.report import Checked
from paramtool.errors import MAX_LISTED
from paramtool.model.finding import ERROR, Finding
from paramtool.model.rule_ids import BY_ID


def rows(found: Checked) -> Iterator[Row]:
    """What was used, the findings of each file, what the rules assume, the counts, and what comes next."""
    used = [("lock", found.lock), ("configuration", found.config)]
    if texts := [f"{word} {path}" for word, path in used if path]:
        yield ("checked by", whole(", ".join(texts)))
    yield from _findings(found.general)
    for file in found.files:
        yield from _findings(file.findings)
        yield from (("note", whole(f"{file.path}: {text}")) for text in file.notes)
        if file.error is not None:
            yield ("file", whole(file.path), f"not checked to the end: error with exit code {file.error.exit_code}")
    yield ("verdict", f"{found.summary}, exit code {found.exit_code}" if found.exit_code else found.summary)
    yield from _next(found)


def _findings(findings: Iterable[Finding]) -> Iterator[Row]:
    """A row for each of the first findings of a kind, with those that fail first, and the number of the others."""
    kinds: dict[tuple[str, str, bool], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.id, finding.severity, bool(finding.allowed)), []).append(finding)
    most = _display.most(MAX_LISTED)
    for (rule_id, _, _), group in kinds.items():
        for finding in group[:most]:
            yield (
                label(finding),
                whole(_where(finding)),
                f"{rule_id} {BY_ID[rule_id].name}: {finding.message}",
                _allowed(finding),
            )
        if more := len(group[most:]):
            words = f"{rule_id} {BY_ID[rule_id].name}: and {more} more; --verbose and --format json list them"
            yield (label(group[0]), whole(_where(group[0])), words)


def label(finding: Finding) -> str:
    """What a row is called: `finding` for what fails, else its severity, or `allowed`."""
    if finding.allowed:
        return "allowed"
    return "finding" if finding.severity == ERROR else finding.severity


def _where(finding: Finding) -> str:
    """The checkpoint, or the line of the configuration that a finding is about."""
    if finding.path or finding.place is None:
        return finding.path
    return f"{finding.place.path}:{finding.place.line}"


def _allowed(finding: Finding) -> str:
    return f"allowed {finding.allowed}" if finding.allowed else ""


def _next(found: Checked) -> Iterator[Row]:
    """What a person does next: lock what passes, or look at what does not."""
    if found.exit_code == 0 and not found.lock and found.files:
        paths = " ".join(quoted(file.path) for file in found.files[:4])
        yield (NEXT, whole(f"paramtool lock {paths}{' ...' if len(found.files) > 4 else ''}"))
    elif failing := next((file for file in found.files if any(one.fails for one in file.findings)), None):
        yield (NEXT, whole(f"paramtool inspect {quoted(failing.path)}"))
