"""Workflow commands of GitHub Actions: an annotation for each finding.

The runner obeys a line that begins with `::`, after any blanks, and otherwise one that has `##[` anywhere
(actions/runner, src/Runner.Common/ActionCommand.cs).  So every line here is a command of ours, whose values have their
percent signs, line breaks, colons and commas escaped, or has no stranger's word in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from paramtool.errors import plural
from paramtool.findings.report import ORDER, CheckReport, kind, one_line
from paramtool.model.finding import BY_NAME, ERROR, LOWERED, NOTE, WARNING, FileLine, Finding

MOST = 10
"""Annotations of one severity that GitHub shows for a step; it drops the others."""
MAX_MESSAGE, MAX_PATH = 2000, 1000
"""Characters of a message, and of a path."""
COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}


def lines(report: CheckReport) -> Iterator[str]:
    """The lines to print: commands, and the summary at the end.

    What is unsafe comes first, once for each file.  Of each severity nine other findings follow, and one line that
    counts the rest by rule.  Findings that are allowed are only counted.
    """
    errors = [_command("error", report.place(path), "not checked", text) for path, text in report.errors.items()]
    lowered = [annotation(one) for one in report.findings if one.id == LOWERED.id]
    yield from lowered[:MOST]
    unsafe: dict[tuple[str, str], Finding] = {}
    for one in report.findings:
        if one.id == BY_NAME["unsafe"].id and not one.allowed:
            unsafe.setdefault((one.path, one.message.rpartition(" by ")[2]), one)  # of a folder, by which of its files
    yield from map(annotation, first := list(unsafe.values()))
    for severity in ORDER:
        found = [
            one
            for one in report.findings
            if one.severity == severity and not one.allowed and one.id != LOWERED.id
            if not any(one is other for other in first)
        ]
        made = errors if severity == ERROR else []
        # Commands that are made already and those of findings, as many as are shown.
        command = COMMANDS[severity]
        count = len(made) + len(found)
        shown = count if count <= MOST else MOST - 1
        yield from made[:shown]
        yield from (annotation(one) for one in found[: max(0, shown - len(made))])
        if count > shown:
            rest = Counter(
                kind(Finding(one.rule.partition(":")[0], "", id=one.id)) for one in found[max(0, shown - len(made)) :]
            )
            rest.update({"not checked": len(made[shown:])})
            yield f"::{command} title=more::{plural(count - shown, 'more', 'more')}: {_data(_counted(rest))}"
    yield report.summary


def _counted(rest: Counter[str], most: int = 8) -> str:
    words = [f"{number} {what}" for what, number in rest.most_common() if number]
    return ", ".join(words[:most]) + (f" and {plural(len(words) - most, 'other kind')}" if len(words) > most else "")


def annotation(finding: Finding) -> str:
    """The command for one finding: at its line of the lock or configuration, otherwise at its checkpoint."""
    place, message = finding.place, finding.message
    if place is not None and finding.path:
        message = f"{finding.path}: {message}"
    return _command(COMMANDS[finding.severity], place or FileLine(finding.path, 0, 0), kind(finding), message)


def _command(command: str, place: FileLine, title: str, message: str) -> str:
    line, column = (str(number or "") for number in place[1:])
    said = {"file": one_line(place.path, MAX_PATH), "line": line, "col": column, "title": title}
    values = ",".join(f"{key}={_property(value)}" for key, value in said.items() if value)
    return f"::{command} {values}::{_data(one_line(message, MAX_MESSAGE))}"


def _data(text: str) -> str:
    """A message as the runner reads it back."""
    return _replaced(text, "%\r\n")


def _property(text: str) -> str:
    """A value before the message, as the runner reads it back."""
    return _replaced(text, "%\r\n:,")


def _replaced(text: str, characters: Iterable[str]) -> str:
    for character in characters:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
