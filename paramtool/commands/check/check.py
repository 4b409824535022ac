"""Checking checkpoints: by the rules of a configuration, and against a lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from paramtool import formats
from paramtool.commands import inspect as inspecting
from paramtool.commands.check import config as configuring
from paramtool.commands.check.config import ALWAYS, BARE, Allowance, AskedRule, Policy, Setting, Settings, asked_rules
from paramtool.commands.check.report import Checked, CheckedFile, OtherModelError
from paramtool.commands.check.targets import MANY, CheckTarget, Targets, beside, inside, targets
from paramtool.commands.config_ties import config_beside
from paramtool.commands.opening import refuse_different
from paramtool.commands.progress import Path, Progress, several, silent
from paramtool.commands.rules import Rule, not_finite, unsafe
from paramtool.commands.rules import parse as parse_rule
from paramtool.errors import (
    FormatError,
    MissingFileError,
    ParamtoolError,
    UnsafeError,
    UsageError,
    exit_code,
    internal,
    leading,
    plural,
    printable,
    some,
)
from paramtool.formats import hf_config, policy
from paramtool.formats.files import is_folder, sha256_of, unreadable
from paramtool.formats.folder import weight_sets
from paramtool.formats.folder.below import FolderReading
from paramtool.formats.once import remembering
from paramtool.lazy_dataclass import frozen
from paramtool.lockfile.lock import NAME
from paramtool.model.checkpoint import judged_files
from paramtool.model.finding import BY_ID, BY_NAME, ERROR, LOWERED, NOTE, OFF, FileLine, Finding
from paramtool.model.inflating import limiting

if TYPE_CHECKING:
    from datetime import date

    from paramtool.commands.check.locked_files import LockedFiles
    from paramtool.commands.inspect import Inspection
    from paramtool.engine.read.one_pass import Hashes
    from paramtool.formats.folder.below import Below
    from paramtool.lockfile.lock import Lock
    from paramtool.model.checkpoint import Unknown

UNSAFE = BY_NAME["unsafe"].id


@limiting
@remembering()
def check(
    paths: Path | Sequence[Path] = (),
    *,
    lock: Path | None = None,
    config: Path | None = None,
    fail_on: Sequence[str] = (),
    content_only: bool = False,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    max_inflated: int | None = None,
    today: date | None = None,
    progress: Progress = silent,
) -> Checked:
    """Check checkpoints, files or folders, by the rules of a configuration and against a lock.

    `config` is a `paramtool.toml` or `pyproject.toml`; without it, those of the working directory are looked for.
    `lock` is a lock file; without it, that of the configuration, or else `paramtool.lock` in the working directory.
    Patterns among `paths` are expanded.  Without paths, those that the configuration or the lock names are checked.
    Files of a folder that the lock names, such as shards, are checked as that folder, once.
    `fail_on` are rules beside those of the configuration, as `inspect` has them, and each finding is an error.
    `content_only` compares only tensors with the lock.  `today` decides which exceptions have expired.

    A checkpoint that cannot be read stops no other: its error is in `CheckedFile.error`.  Nothing is raised for
    findings; `Checked.exit_code` is what the command line exits with.  UsageError where the configuration cannot be
    read or no path is known, FormatError where the lock is damaged.
    """
    rules = tuple(map(parse_rule, fail_on))
    path = os.fspath(config) if config is not None else configuring.found()
    said = configuring.read(path, is_found=config is None) if path else Policy()
    for one in said.allowances if config is None else ():
        if one.rule_id == UNSAFE and one.place and not one.sha256:
            hint = "or name the configuration, if it is trusted: --config"
            raise UsageError("an exception for an unsafe file needs its digest, sha256", hint).at(*one.place)
    damaged = None
    try:
        locked = _lock(lock, said)
    except ParamtoolError as error:
        if not (paths or said.files):
            raise
        damaged, locked = error, None
    asked = _settings(said, locked, content_only)
    from datetime import date as days

    day, uses = (today if today is not None else days.today()), PolicyUses(asked)
    classes = policy.checked(allow_class)
    locked_files = _locked_files(locked)
    about = Checking(asked, locked, classes, allow_unknown, day, uses, progress, locked_files, rules)
    given = [os.fspath(path) for path in several(paths)]
    found = _targets(given, said, locked, locked_files.is_named if locked_files else lambda path: False)
    files = tuple(file for target in about.joined(found.targets) for file in about.files(target))
    if damaged is not None:  # which hides no unsafe file
        if exit_code([file.exit_code for file in files]) not in (70, 4):
            raise damaged
        files = (*files, CheckedFile((damaged.place or (os.fspath(lock or said.lock), 0, 0))[0], error=damaged))
    is_whole = not (given or content_only or allow_class or allow_unknown)
    lowered = _lowered(said, files, about.unsafe) if config is None else ()
    general = (*lowered, *uses.findings([file.path for file in files], day, is_whole=is_whole))
    return Checked(files, locked.path if locked else "", said.path, general, (*found.notes, *about.notes(files)))


def _lowered(said: Policy, files: Iterable[CheckedFile], unsafe: Mapping[str, Sequence[Unknown]]) -> Iterator[Finding]:
    """What a configuration that was found, and may be a stranger's, lets pass, of what is unsafe without it."""
    failed = {file.path for file in files if any(one.id == UNSAFE and one.fails for one in file.findings)}
    passed = {path: (bad, said.of(path)) for path, bad in unsafe.items() if bad and path not in failed}
    places = [
        place
        for settings in (said.settings, *said.by_path)
        for key, (value, place) in settings.said.items()
        if (value is False and key in ("unsafe", "severity")) or (value and key == "allow-class")
    ]
    places += (one.place for one in said.allowances if one.rule_id == UNSAFE)
    for place in filter(None, places):
        what = [
            f"{printable(path)} ({leading([*map(policy.format_unknown, bad)])})"
            for path, (bad, settings) in passed.items()
            if place
            in {one.place for one in said.matching(UNSAFE, path, ())}.union(one.place for one in settings.said.values())
        ]
        here = f": {leading(what)}" if what else ", none of these"
        yield LOWERED.found(f"lets unsafe files pass{here}; --config names a trusted configuration", place=place)


def _lock(lock: Path | None, said: Policy) -> Lock | None:
    if lock is not None:
        path = os.fspath(lock)
    elif said.lock:
        path = os.path.join(said.folder, said.lock)
        if os.path.isdir(path):
            raise UsageError(f"{said.path}: lock is {said.lock!r}, a folder; expected a file that paramtool lock wrote")
    elif os.path.lexists(NAME):
        path = NAME
    else:
        return None
    from paramtool.lockfile.read import read

    return read(path)


def _locked_files(lock: Lock | None) -> LockedFiles | None:
    if lock is None:
        return None
    from paramtool.commands.check.locked_files import LockedFiles

    return LockedFiles(lock)


def _settings(said: Policy, lock: Lock | None, content_only: bool) -> Policy:
    """The configuration, or what holds without one."""
    if not said.path:
        said = replace(said, settings=ALWAYS if lock else BARE)
    if not content_only:
        return said
    only = Settings({"content-only": Setting(True)})  # the flag counts more than any table
    return replace(said, settings=said.settings.joined(only), by_path=tuple(one.joined(only) for one in said.by_path))


def _targets(given: Sequence[str], said: Policy, lock: Lock | None, is_named: Callable[[str], bool]) -> Targets:
    """What is checked; UsageError where nothing says it."""
    if given:
        found = targets(given, is_named)
        return found._replace(targets=[*found.targets, *_vanished(given, lock)])
    if said.files:
        return targets(said.files, is_named, said.folder)
    if lock is not None:
        from paramtool.commands.check.against import place_of

        models = lock.models.items()
        return Targets([_named(place_of(lock, name), f"{lock.path}:{model.line}") for name, model in models], [])
    raise UsageError(
        "no path is given, and no configuration or lock names one",
        hint="`paramtool check model.safetensors`, or files = [...] in paramtool.toml",
    )


def _named(path: str, where: str) -> CheckTarget:
    """A checkpoint that a line of the lock names; no pattern."""
    is_there = os.path.lexists(path)
    return CheckTarget(path, None if is_there else MissingFileError(path, f"no such file or folder; {where} names it"))


def _vanished(given: Sequence[str], lock: Lock | None) -> list[CheckTarget]:
    """Models of the lock that were in one of the folders that are checked, and are there no more."""
    if lock is None:
        return []
    from paramtool.commands.check.against import place_of

    folders = [os.path.join(os.path.abspath(path), "") for path in given if os.path.isdir(path)]
    places = [place_of(lock, name) for name in lock.models]
    return [
        CheckTarget(place, MissingFileError(place, f"no such file or folder; {lock.path} names it"))
        for place in places
        if not os.path.lexists(place) and os.path.abspath(place).startswith(tuple(folders))
    ]


# --- One run of `check`: each checkpoint by the rules, against the lock, and weighed by severities and exceptions ----


class _SoFar:
    """What is known of a checkpoint so far."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.locked = ""


@frozen
class Checking:
    """One run of `check`: what is asked, and what each checkpoint is asked for."""

    policy: Policy
    lock: Lock | None
    allow_class: tuple[str, ...]
    allow_unknown: bool
    today: date
    uses: PolicyUses
    progress: Progress
    locked_files: LockedFiles | None = None
    """Which paths are files of a model of the lock; None without a lock."""
    fail_on: tuple[Rule, ...] = ()
    """Rules whose findings are errors, whatever the configuration says."""
    looked_at: set[str] = field(default_factory=set)
    """Files whose pickles were looked at."""
    below: dict[str, Below] = field(default_factory=dict)
    """{folder: what the pickles of all its files ask for}"""
    unsafe: dict[str, tuple[Unknown, ...]] = field(default_factory=dict)
    """{file: what makes it unsafe, whatever the configuration says}"""

    def joined(self, targets: Sequence[CheckTarget]) -> Sequence[CheckTarget]:
        """Targets with each model of the lock once in place of its files."""
        return targets if self.locked_files is None else self.locked_files.joined(targets, self._is_compared)

    def _is_compared(self, path: str) -> bool:
        return self.lock is not None and bool(self.policy.of(path).get("changed", True))

    def files(self, target: CheckTarget) -> Iterator[CheckedFile]:
        """One checkpoint, or those in a folder that is none itself, which is unsafe where none of them is."""
        found = self.file(target)
        files = list(self._with_inner(target, found))
        yield from files
        if isinstance(found.error, UnsafeError) and exit_code(file.exit_code for file in files) not in (70, 4):
            yield found

    def _with_inner(self, target: CheckTarget, found: CheckedFile) -> Iterator[CheckedFile]:
        is_refused = target.error is None and isinstance(found.error, (UsageError, FormatError, UnsafeError))
        is_refused = is_refused and not isinstance(found.error, OtherModelError)
        is_named = self.lock is not None and _name(self.lock, target.path) in self.lock.models
        inner = inside(target.path) if is_refused and not is_named and is_folder(target.path) else []
        if found.error is None and not is_named and is_folder(target.path):
            inner, left = beside(target.path)
            names = some([printable(os.path.basename(path)) for path in left], MANY)
            note = f"not checked, since the folder is one model: {names}; name them, or use a pattern"
            found = replace(found, notes=(*found.notes, note)) if left else found
        yield from map(self.file, map(CheckTarget, inner)) if inner else (found,)
        if (below := self.below.get(target.path)) is not None:
            known = {os.path.normpath(path) for path in (*inner, *self.looked_at)}
            for path, seen in below.files.items():
                if os.path.normpath(path) in known:
                    continue
                draft = _SoFar(path)
                self._add_unsafe(draft, seen.asked)
                if seen.error is not None:
                    yield self.file(CheckTarget(path))
                elif draft.findings:
                    yield CheckedFile(path, tuple(draft.findings))

    def file(self, target: CheckTarget) -> CheckedFile:
        """One checkpoint; its errors are its own."""
        draft, path, error = _SoFar(target.path), target.path, target.error
        draft.notes += target.notes
        if error is None:
            try:
                self._judge(draft)
            except ParamtoolError as caught:
                error = caught
            except OSError as caught:
                error = unreadable(os.fsdecode(caught.filename or path), caught)
            except Exception as caught:
                error = internal(caught)
        if error is not None:
            self.uses.skip(path)
            if error.below is not None:
                self.below[path] = error.below
            else:
                self._add_unsafe(draft, error.asked)
            if isinstance(error, UnsafeError):
                self._add(draft, [BY_ID[UNSAFE].found(error.message)], self.policy.of(path))
        if error is not None and not error.message.startswith((path, printable(path))):
            error = error.located(printable(path))
        return CheckedFile(path, tuple(draft.findings), error, draft.locked, tuple(draft.notes))

    def _judge(self, draft: _SoFar) -> None:
        """The findings of one checkpoint; those before an error stay.

        Where pointers to its files are there, they are compared with the lock, and of the other files of the
        folder only `unsafe` is judged.
        """
        path, settings = draft.path, self.policy.of(draft.path)
        lock = self.lock if self._is_compared(path) else None
        if lock is not None and self.locked_files is not None and (folder := self.locked_files.around(path)):
            lock = None
            draft.notes.append(f"not compared with the lock, which has no such file in {printable(folder)}")
        if lock is not None:
            from paramtool.commands.check import against

            with suppress(UsageError):  # it is not clear which model: an error after the rules were judged
                draft.locked = against.model_for(lock, path).path
            if draft.locked and (pointed := against.pointers(path, lock.models[draft.locked], lock)) is not None:
                draft.notes.append(pointed[0])
                if is_folder(path):
                    self.below[path] = FolderReading(path, formats.read_file).finish()
                    draft.notes += self.below[path].told
                self._add(draft, pointed[1], settings)
                self.uses.skip(path)
                return
        asked = [one for one in self._asked(settings, path) if one.rule not in self.fail_on]
        asked += [AskedRule(rule, None) for rule in self.fail_on]
        read = self._inspected(path, settings, asked)
        self.unsafe[path] = policy.unsafe(read.checkpoint.unknown, self.allow_class, self.allow_unknown)
        draft.notes += read.checkpoint.notes
        only, counts = settings.get("content-only", False), any(one.rule.kind.judge is not_finite for one in asked)

        @cache
        def known() -> Hashes:
            assert lock is not None
            locked = against.model_for(lock, path)
            return against.hashed(read, locked, content_only=only, counts=counts, progress=self.progress)

        found = replace(read, numbers=lambda: known().numbers) if draft.locked else read
        for rule, place in asked:
            for one in rule.findings(found):
                severity = ERROR if rule in self.fail_on else _severity(one, place)
                self._add(draft, [replace(one, place=place, severity=severity)], settings)
            draft.notes += rule.assumptions(found)
            if place is not None and (patterns := rule.kind.patterns(rule.asked)):
                self.uses.match(place, patterns, [name for name, _ in found.checkpoint.windows()])
        if lock is not None:
            hashes = known()
            if is_folder(path):
                refuse_different(path, weight_sets.only(path, formats.read_file), self.progress, hashes)
            locked = against.model_for(lock, path)
            self._add(draft, against.differences(found, locked, lock, hashes, content_only=only), settings)

    def _add_unsafe(self, draft: _SoFar, asked: Iterable[Unknown]) -> None:
        """The findings of a file that no rule judges, of what its pickles ask for."""
        settings, asked = self.policy.of(draft.path), tuple(asked)
        self.unsafe[draft.path] = policy.unsafe(asked, self.allow_class, self.allow_unknown)
        bad = policy.unsafe(asked, (*self.allow_class, *settings.get("allow-class", ())), self.allow_unknown)
        for place in (one.place for one in asked_rules(settings) if one.rule.kind.rule_id == UNSAFE):
            said = unsafe(bad, "the file")
            self._add(draft, (BY_ID[UNSAFE].found(*one[:2], place=place) for one in said), settings)

    def _add(self, draft: _SoFar, findings: Iterable[Finding], settings: Settings) -> None:
        """Findings, each with its severity and the exception that allows it; not those that are off."""
        for finding in findings:
            severity = settings.severities.get(finding.id, finding.severity)
            if severity == OFF or (self.allow_unknown and finding.id == UNSAFE):
                continue
            # Why a finding is allowed, by the first exception that holds; empty where none does
            path = draft.path
            found = [
                one
                for one in self.policy.matching(finding.id, path, finding.names)
                if not one.sha256 or (os.path.isfile(path) and sha256_of(path)[1] == one.sha256)
            ]
            holds = [one for one in found if not one.is_expired(self.today)][:1]
            for one in holds or found:
                self.uses.need(one, finding.names)
            words = holds[0].words if holds else ""
            draft.findings.append(replace(finding, path=draft.path, severity=severity, allowed=words))

    def _asked(self, settings: Settings, path: str) -> list[AskedRule]:
        """The rules; what nobody asked for and needs a config.json is left out where there is none."""
        asked = asked_rules(settings)
        return [one for one in asked if one.place or not one.rule.kind.needs_config or config_beside(path)]

    def _inspected(self, path: str, settings: Settings, asked: Sequence[AskedRule]) -> Inspection:
        kinds = [one.rule.kind for one in asked]
        if needs_config := any(kind.needs_config for kind in kinds):
            hf_config.place(path, "config-ties = false in [[paths]] is for checkpoints without one")
        found = inspecting.inspect(
            path,
            equal=any(kind.needs_content for kind in kinds),
            min_equal_bytes=1,
            config="" if needs_config else None,
            allow_class=(*self.allow_class, *settings.get("allow-class", ())),
            allow_unknown=True,  # an error says what the file asks for, which is a finding
            progress=self.progress,
        )
        if found.below is not None:
            self.below[path] = found.below
        self.looked_at.update(map(os.path.normpath, judged_files(found.checkpoint)))
        return replace(found, below=None)

    def notes(self, files: Sequence[CheckedFile]) -> Iterator[str]:
        """Models of the lock that were not checked."""
        if self.lock is None:
            if any(self.policy.settings.get(key, False) for key in ("changed", "content-only")):
                yield "no lock is there, so nothing was compared with one"
            return
        seen = {file.locked for file in files} | {_name(self.lock, file.path) for file in files}
        if missed := [name for name in self.lock.models if name not in seen]:
            first = ", ".join(repr(name)[:200] for name in missed[:4]) + (", ..." if len(missed) > 4 else "")
            yield f"{self.lock.path} names {plural(len(missed), 'other model')}, for which no path was given: {first}"


LIMITS = ("PT204", "PT205")
"""Kinds of findings that are warnings where nobody wrote the limit, and errors where the configuration has it."""


def _severity(finding: Finding, place: FileLine | None) -> str:
    """The severity of a rule's finding, where no `[severity]` says another; `place` is that of the rule, if written."""
    return ERROR if place is not None and finding.id in LIMITS else BY_ID[finding.id].severity


def _name(lock: Lock, path: str) -> str:
    from paramtool.commands.lock import name_in

    return name_in(lock.path, path)


# --- What of a configuration took effect in a run: a pattern or an exception that did nothing is a finding -----------
#
# A typing mistake in a pattern would switch a rule off, and an exception that nothing needs hides what comes later.


MANY_PATTERNS = 4
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
        kind = BY_NAME["expired"]
        severity = self.policy.settings.severity(kind.id)
        for one in self.policy.allowances:
            if severity != OFF and one.until is not None and one.is_expired(today):
                more = "" if one in self._needed or self._skipped else ", and no finding needs it"
                message = f'{_kind(one)} was allowed until {one.until.isoformat()}: "{one.reason}"{more}'
                yield kind.found(message, severity=severity, place=one.place)
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

    def _unmatched_paths(self, paths: Sequence[str]) -> Iterator[Said]:
        """Patterns of `[[paths]]` and `[[allow]]` that match no checkpoint."""
        tables = [("match of this [[paths]]", one.patterns, one.place) for one in self.policy.by_path]
        tables += [("path of this [[allow]]", one.paths, one.place) for one in self.policy.allowances]
        for word, patterns, place in tables:
            if lost := _without(patterns, lambda one: any(self.policy.matches(path, [one]) for path in paths)):
                yield (
                    place or FileLine(self.policy.path, 1),
                    f"no checkpoint matches {some(lost, MANY_PATTERNS)} in {word}",
                )

    def _unmatched_tensors(self) -> Iterator[Said]:
        lost: dict[FileLine, list[str]] = {}
        for (place, pattern), matches in self._patterns.items():
            if not matches:
                lost.setdefault(place, []).append(pattern)
        for place, patterns in lost.items():
            yield place, f"no tensor matches {some(patterns, MANY_PATTERNS)}, so nothing was judged by it"

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
                yield (
                    place,
                    f"no finding needs {some(lost, MANY_PATTERNS)} in tensors of the exception for {_kind(one)}",
                )


PARTLY = {
    "unmatched": ("table or rule matches", "tables or rules match", "nothing that was checked"),
    "unused-exception": ("exception is", "exceptions are", "not needed by what was checked"),
}
"""{name of a kind of findings: one and many of what it is about, and what they do not do}"""


def _without(patterns: Iterable[str], is_used: Callable[[str], bool]) -> list[str]:
    return [pattern for pattern in patterns if not is_used(pattern)]


def _kind(one: Allowance) -> str:
    return f"{one.rule_id} {BY_ID[one.rule_id].name}"
