"""Findings as workflow commands, which GitHub shows as annotations.

The syntax, the escapes and the number that is shown (ten of a kind for a step) are in GitHub's documentation, "Workflow
commands for GitHub Actions".  The runner reads a line as a command if it begins with `::`, blanks aside, and if it has
`##[` anywhere (ActionCommand.cs of actions/runner), so no other line may have either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paramtool.findings.words import counted, printable, severest_first, title
from paramtool.model.finding import ERROR, NOTE, WARNING, Finding

SHOWN = 10
"""Annotations of one kind that GitHub shows for a step."""
COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}
_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}


def text(findings: Sequence[Finding], paths: Sequence[str]) -> str:
    """A command for each finding that GitHub can show, and a line that counts."""
    return "".join(f"{line}\n" for line in _lines(findings, paths))


def _lines(findings: Sequence[Finding], paths: Sequence[str]) -> Iterator[str]:
    for severity, command in COMMANDS.items():
        own = [one for one in severest_first(findings) if one.severity == severity and not one.allowed]
        shown = own if len(own) <= SHOWN else own[: SHOWN - 1]
        for one in shown:
            yield _command(command, one)
        if len(own) > len(shown):
            more = f"{len(own) - len(shown)} more of this kind; --format json or sarif has all"
            yield f"::{command} title=paramtool check::{_escaped(more, _MESSAGE)}"
    for one in findings:
        if one.allowed:
            yield plain(f"allowed: {one.path}: {title(one)}: {one.message} ({one.allowed})")
    yield counted(findings, paths)


def _command(command: str, one: Finding) -> str:
    place = one.place
    properties = {"file": one.path} if place is None else {"file": place.path, "line": place.line, "col": place.column}
    properties["title"] = title(one)
    joined = ",".join(f"{key}={_escaped(str(value), _PROPERTY)}" for key, value in properties.items() if value != "")
    return f"::{command} {joined}::{_escaped(f'{one.path}: {one.message}' if one.path else one.message, _MESSAGE)}"


def plain(line: str) -> str:
    """A line that the runner does not read as a command, whatever it has.

    >>> plain("::set-env name=a::b"), plain("a ##[error]b")
    (':\\u200b:set-env name=a::b', 'a ##\\u200b[error]b')
    """
    shown = printable(line).replace("##[", "##\u200b[")
    return f":\u200b{shown.lstrip()[1:]}" if shown.lstrip().startswith("::") else shown


def _escaped(value: str, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(c, c) for c in printable(value))
