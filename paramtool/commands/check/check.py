"""Checking checkpoints: by the rules of a configuration, and against a lock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paramtool.commands import inspect as inspecting
from paramtool.commands.check import config as configuring
from paramtool.commands.check.policy import Policy, Settings
from paramtool.commands.check.report import Checked, CheckedFile
from paramtool.commands.check.settings import ALWAYS, BARE, AskedRule, asked_rules
from paramtool.commands.check.targets import CheckTarget, targets
from paramtool.commands.progress import Path, Progress, silent
from paramtool.errors import FormatError, ParamtoolError, UsageError, plural, refuse_string
from paramtool.formats import hf_config, policy
from paramtool.lazy_dataclass import dataclass
from paramtool.lockfile.lock import NAME
from paramtool.model.finding import OFF, Finding
from paramtool.model.inflating import limiting
from paramtool.model.rule_ids import BY_ID, BY_NAME

if TYPE_CHECKING:
    from datetime import date

    from paramtool.commands.inspect import Inspection
    from paramtool.lockfile.lock import Lock


@limiting
def check(
    paths: Sequence[Path] = (),
    *,
    lock: Path | None = None,
    config: Path | None = None,
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
    `content_only` compares only tensors with the lock.  `today` decides which exceptions have expired.

    A checkpoint that cannot be read stops no other: its error is in `CheckedFile.error`.  Nothing is raised for
    findings; `Checked.exit_code` is what the command line exits with.  UsageError where the configuration cannot be
    read or no path is known, FormatError where the lock is damaged.
    """
    refuse_string("paths", paths)
    said = _policy(config)
    locked = _lock(lock, said)
    allowing = policy.checked(allow_class)
    about = _Check(
        said, locked, _settings(said, locked, content_only), allowing, allow_unknown, _today(today), progress
    )
    given = [os.fspath(path) for path in paths]
    files = tuple(about.file(target) for target in _targets(given, said, locked))
    return Checked(
        files, locked.path if locked else "", said.path, tuple(about.expired()), tuple(about.notes(given, files))
    )


def _policy(config: Path | None) -> Policy:
    path = os.fspath(config) if config is not None else configuring.found()
    return configuring.read(path) if path else Policy()


def _lock(lock: Path | None, said: Policy) -> Lock | None:
    if lock is not None:
        path = os.fspath(lock)
    elif said.lock:
        path = os.path.join(said.folder, said.lock)
    elif os.path.lexists(NAME):
        path = NAME
    else:
        return None
    from paramtool.lockfile.read import read

    return read(path)


def _settings(said: Policy, lock: Lock | None, content_only: bool) -> Policy:
    """The configuration, or what holds without one."""
    if not said.path:
        said = replace(said, settings=ALWAYS if lock else BARE)
    if not content_only:
        return said
    from paramtool.commands.check.policy import Setting

    return replace(said, settings=said.settings.joined(Settings({"content-only": Setting(True)})))


def _today(today: date | None) -> date:
    from datetime import date as days

    return today if today is not None else days.today()


def _targets(given: Sequence[str], said: Policy, lock: Lock | None) -> list[CheckTarget]:
    """What is checked; UsageError where nothing says it."""
    if given:
        return targets(given)
    if said.files:
        return targets(said.files, said.folder)
    if lock is not None:
        from paramtool.commands.check.against import place_of

        return [one for name in lock.models for one in targets([place_of(lock, name)])]
    raise UsageError(
        "no path is given, and no configuration or lock names one",
        hint="paramtool check model.safetensors; or files = [...] in paramtool.toml",
    )


@dataclass(frozen=True, slots=True)
class _Check:
    """One run of the command."""

    given: Policy
    lock: Lock | None
    policy: Policy
    allow_class: tuple[str, ...]
    allow_unknown: bool
    today: date
    progress: Progress

    def file(self, target: CheckTarget) -> CheckedFile:
        """One checkpoint; its errors are its own."""
        findings: list[Finding] = []
        notes: list[str] = []
        names = [""]
        path, error = target.path, target.error
        if error is None:
            try:
                findings.extend(self._judged(path, notes, names))
            except ParamtoolError as caught:
                error = caught
            except (MemoryError, RecursionError) as caught:
                what = "memory" if isinstance(caught, MemoryError) else "stack"
                error = FormatError(f"{path}: out of {what}", hint="the file may be a bomb")
        if error is not None and not error.message.startswith(path):
            error = error.located(path)
        return CheckedFile(path, tuple(findings), error, names[0], tuple(notes))

    def _judged(self, path: str, notes: list[str], names: list[str]) -> Iterator[Finding]:
        """The findings of one checkpoint; `notes` and the name of its model in the lock are added to the lists."""
        settings = self.policy.of(path)
        if (pointed := self._pointed(path, settings, names)) is not None:
            for finding in pointed:
                yield from self._weighed(finding, path, settings, finding.severity)
            return
        asked = self._asked(settings, path)
        found = self._inspected(path, settings, asked)
        for rule, place in asked:
            for finding in rule.findings(found):
                yield from self._weighed(replace(finding, place=place), path, settings)
            notes += rule.assumptions(found)
        if self.lock is None or not settings.get("changed", True):
            return
        from paramtool.commands.check import against

        locked = against.model_for(self.lock, path)
        names[0] = locked.path
        only = settings.get("content-only", False)
        for finding in against.differences(found, locked, self.lock, content_only=only, progress=self.progress):
            yield from self._weighed(finding, path, settings, finding.severity)

    def _pointed(self, path: str, settings: Settings, names: list[str]) -> list[Finding] | None:
        """What the pointers of git-LFS or Xet at a path say against the lock; None where it is a checkpoint itself."""
        if self.lock is None or not settings.get("changed", True):
            return None
        from paramtool.commands.check import against

        try:
            locked = against.model_for(self.lock, path)
        except UsageError:
            return None
        found = against.pointer_differences(path, locked, self.lock)
        names[0] = locked.path if found is not None else ""
        return found

    def _asked(self, settings: Settings, path: str) -> list[AskedRule]:
        """The rules; what nobody asked for and needs a config.json is left out where there is none."""
        asked = asked_rules(settings)
        return [one for one in asked if one.place or not one.rule.kind.needs_config or _has_config(path)]

    def _inspected(self, path: str, settings: Settings, asked: Sequence[AskedRule]) -> Inspection:
        kinds = [one.rule.kind for one in asked]
        return inspecting.inspect(
            path,
            equal=any(kind.needs_content for kind in kinds),
            min_equal_bytes=1,
            config="" if any(kind.needs_config for kind in kinds) else None,
            allow_class=(*self.allow_class, *settings.get("allow-class", ())),
            allow_unknown=self.allow_unknown,
            progress=self.progress,
        )

    def _weighed(self, finding: Finding, path: str, settings: Settings, own: str = "") -> Iterator[Finding]:
        """A finding with its severity, and with the exception that allows it; nothing where it is off."""
        severity = settings.severity(finding.id, own)
        if severity == OFF or (self.allow_unknown and finding.id == BY_NAME["unsafe"].id):
            return
        allowed = self.policy.allowing(finding.id, path, finding.names, self.today)
        yield replace(finding, path=path, severity=severity, allowed=allowed.words if allowed else "")

    def expired(self) -> Iterator[Finding]:
        """A finding for each exception whose last day is over."""
        kind = BY_NAME["expired"]
        severity = self.policy.settings.severity(kind.id)
        for one in self.policy.allowances:
            if one.is_expired(self.today) and one.until is not None and severity != OFF:
                known = BY_ID[one.rule_id]
                message = f'{known.id} {known.name} was allowed until {one.until.isoformat()}: "{one.reason}"'
                yield Finding(kind.name, message, id=kind.id, severity=severity, place=one.place)

    def notes(self, given: Sequence[str], files: Sequence[CheckedFile]) -> Iterator[str]:
        """Models of the lock that were not checked."""
        if self.lock is None:
            return
        seen = {file.locked for file in files} | {_name(self.lock, file.path) for file in files}
        if missed := [name for name in self.lock.models if name not in seen]:
            first = ", ".join(repr(name)[:200] for name in missed[:4]) + (", ..." if len(missed) > 4 else "")
            yield f"{self.lock.path} names {plural(len(missed), 'model')} more, which no path was given for: {first}"


def _name(lock: Lock, path: str) -> str:
    from paramtool.commands.lock import name_in

    return name_in(lock.path, path)


def _has_config(path: str) -> bool:
    try:
        hf_config.place(path)
    except UsageError:
        return False
    return True
