"""What of a configuration took effect in a run: a pattern or an exception that did nothing is a finding.

A typing mistake in a pattern would switch a rule off, and an exception that nothing needs hides what comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from paramtool.commands.check.policy import Allowance, Policy
from paramtool.errors import leading, plural, some
from paramtool.model.finding import BY_ID, BY_NAME, NOTE, OFF, FileLine, Finding

if TYPE_CHECKING:
    from datetime import date

MANY = 4
"""The most patterns that a message lists."""
MAX_LINES = 8
"""The most lines of the configuration that a message lists."""
Said = tuple[FileLine, str]
"""A place in the configuration, and what did nothing there."""


class PolicyUses:
    """Gathers what took effect while checkpoints are judged."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._skipped: list[str] = []
        """Checkpoints that no rule judged, or not to the end."""
        self._needed: dict[Allowance, set[str]] = {}
        """{exception that a finding needs: those of its patterns of tensors that match}"""
        self._patterns: dict[tuple[FileLine, str], bool] = {}
        """{(place of a rule, pattern): whether a tensor matches it}"""

    def skip(self, path: str) -> None:
        """No rule judges a checkpoint, or not every one."""
        self._skipped.append(path)

    def need(self, allowance: Allowance, names: Iterable[str]) -> None:
        """A finding about these tensors is allowed by an exception, or would be if it had not expired."""
        used = self._needed.setdefault(allowance, set())
        used.update(pattern for pattern in allowance.tensors if any(fnmatchcase(name, pattern) for name in names))

    def match(self, place: FileLine, patterns: Iterable[str], names: Sequence[str]) -> None:
        """A rule with patterns judges a checkpoint that has these tensors."""
        for pattern in patterns:
            key = place, pattern
            self._patterns[key] = self._patterns.get(key, False) or any(fnmatchcase(name, pattern) for name in names)

    def findings(self, paths: Sequence[str], today: date, *, is_whole: bool) -> Iterator[Finding]:
        """Exceptions that have expired, patterns that match nothing, exceptions that no finding needs.

        `is_whole` says that `paths` are all checkpoints of the configuration, judged by all that it asks for.
        Otherwise what did nothing is gathered in one note of each kind.
        """
        yield from self._expired(today)
        unmatched = [*self._unmatched_paths(paths), *(() if self._skipped else self._unmatched_tensors())]
        yield from self._told("unmatched", unmatched, is_whole)
        yield from self._told("unused-exception", list(self._unneeded(paths, today)), is_whole)

    def _told(self, name: str, said: Sequence[Said], is_whole: bool) -> Iterator[Finding]:
        kind = BY_NAME[name]
        severity = self.policy.settings.severity(kind.id)
        if severity == OFF or not said:
            return
        if is_whole:
            for place, message in said:
                yield kind.found(message, severity=severity, place=place)
            return
        lines = [str(place.line) for place, _ in said]
        where = f"{'line' if len(lines) == 1 else 'lines'} {leading(lines, MAX_LINES)}"
        one, many, what = PARTLY[name]
        message = f"{plural(len(said), one, many)} {what}: {where}"
        yield kind.found(message, severity=NOTE, place=said[0][0])

    def _expired(self, today: date) -> Iterator[Finding]:
        kind = BY_NAME["expired"]
        severity = self.policy.settings.severity(kind.id)
        for one in self.policy.allowances:
            if severity != OFF and one.until is not None and one.is_expired(today):
                more = "" if one in self._needed or self._skipped else ", and no finding needs it"
                message = f'{_kind(one)} was allowed until {one.until.isoformat()}: "{one.reason}"{more}'
                yield kind.found(message, severity=severity, place=one.place)

    def _unmatched_paths(self, paths: Sequence[str]) -> Iterator[Said]:
        """Patterns of `[[paths]]` and `[[allow]]` that match no checkpoint."""
        tables = [("match of this [[paths]]", one.patterns, one.place) for one in self.policy.by_path]
        tables += [("path of this [[allow]]", one.paths, one.place) for one in self.policy.allowances]
        for word, patterns, place in tables:
            if lost := _without(patterns, lambda one: any(self.policy.matches(path, [one]) for path in paths)):
                yield place or FileLine(self.policy.path, 1), f"no checkpoint matches {some(lost, MANY)} in {word}"

    def _unmatched_tensors(self) -> Iterator[Said]:
        lost: dict[FileLine, list[str]] = {}
        for (place, pattern), matches in self._patterns.items():
            if not matches:
                lost.setdefault(place, []).append(pattern)
        for place, patterns in lost.items():
            yield place, f"no tensor matches {some(patterns, MANY)}, so nothing was judged by it"

    def _unneeded(self, paths: Sequence[str], today: date) -> Iterator[Said]:
        """Exceptions that are about judged checkpoints alone, and allow nothing there."""
        for one in self.policy.allowances:
            about = [path for path in paths if not one.paths or self.policy.matches(path, one.paths)]
            if one.is_expired(today) or not about or set(about) & set(self._skipped):
                continue
            place, used = one.place or FileLine(self.policy.path, 1), self._needed.get(one)
            if used is None:
                yield place, f'no finding needs the exception for {_kind(one)}: "{one.reason}"'
            elif lost := _without(one.tensors, used.__contains__):
                yield place, f"no finding needs {some(lost, MANY)} in tensors of the exception for {_kind(one)}"


PARTLY = {
    "unmatched": ("table or rule matches", "tables or rules match", "nothing that was checked"),
    "unused-exception": ("exception is", "exceptions are", "not needed by what was checked"),
}
"""{name of a kind of findings: one and many of what it is about, and what they do not do}"""


def _without(patterns: Iterable[str], is_used: Callable[[str], bool]) -> list[str]:
    return [pattern for pattern in patterns if not is_used(pattern)]


def _kind(one: Allowance) -> str:
    return f"{one.rule_id} {BY_ID[one.rule_id].name}"
