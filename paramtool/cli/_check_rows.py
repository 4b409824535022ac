"""The rows of `check`: a line for each finding, bounded for each rule and file, and the counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramtool.cli import _display
from paramtool.cli._render import Row
from paramtool.cli._streams import quoted
from paramtool.cli._text import NEXT
from paramtool.commands.check.report import Checked
from paramtool.errors import MAX_LISTED, ParamtoolError, plural, some
from paramtool.model.finding import Finding
from paramtool.model.rule_ids import BY_ID
from paramtool.model.severity import ERROR

MANY_NAMES = 4
"""The most tensors that a row names."""
LISTED = "--verbose and --format json list them"


def rows(found: Checked) -> Iterator[Row]:
    """What was used, the findings of each file, what the rules assume, the counts, and what comes next."""
    used = [("lock", found.lock), ("configuration", found.config)]
    if texts := [f"{word} {path}" for word, path in used if path]:
        yield ("checked by", ", ".join(texts))
    yield from _findings(found.general)
    for file in found.files:
        yield from _findings(file.findings)
        yield from (("note", f"{file.path}: {text}") for text in file.notes)
    yield ("verdict", f"{found.summary}, exit code {found.exit_code}" if found.exit_code else found.summary)
    # What a person does next: lock what passes, or look at what does not.
    if found.exit_code == 0 and not found.lock and found.files:
        paths = " ".join(quoted(file.path) for file in found.files[:4])
        yield (NEXT, f"paramtool lock {paths}{' ...' if len(found.files) > 4 else ''}")
    elif failing := next((one for one in found.files if not one.error and any(f.fails for f in one.findings)), None):
        yield (NEXT, f"paramtool inspect {quoted(failing.path)}")


def of_error(error: ParamtoolError) -> Iterator[Row]:
    """Why nothing was checked."""
    yield ("error", error.message)
    yield ("verdict", f"nothing checked, exit code {error.exit_code}")


def _findings(findings: Iterable[Finding]) -> Iterator[Row]:
    """A row for what is found, with the first tensors of those of which the same is found; of one kind the first rows.

    With --verbose each finding has a row of its own.
    """
    kinds: dict[tuple[str, str, bool], dict[object, list[Finding]]] = {}
    for number, finding in enumerate(findings):
        same = (finding.what, finding.allowed) if finding.what and not _display.current.verbose else number
        groups = kinds.setdefault((finding.id, finding.severity, bool(finding.allowed)), {})
        groups.setdefault(same, []).append(finding)
    most = _display.most(MAX_LISTED)
    for (rule_id, _, _), groups in kinds.items():
        rule, rows = f"{rule_id} {BY_ID[rule_id].name}", list(groups.values())
        for group in rows[:most]:
            one = group[0]
            message = one.message if len(group) == 1 else _of_several(group)
            yield (
                label(one),
                _where(one),
                f"{rule}: {message}",
                (f"allowed {one.allowed}" if one.allowed else ""),
            )
        if more := sum(map(len, rows[most:])):
            one = rows[0][0]
            yield (label(one), _where(one), f"{rule}: and {more} more; {LISTED}")


def _of_several(group: list[Finding]) -> str:
    """What is found of several tensors, and the first names."""
    listed = f"; {LISTED}" if len(group) > MANY_NAMES else ""
    names = some([one.names[0] for one in group], MANY_NAMES)
    return f"{plural(len(group), 'tensor')}, each {group[0].what}: {names}{listed}"


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
