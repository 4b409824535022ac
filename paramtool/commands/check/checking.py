"""One run of `check`: each checkpoint by the rules, against the lock, and weighed by severities and exceptions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from paramtool import formats
from paramtool.commands import inspect as inspecting
from paramtool.commands.check.policy import Policy, Settings
from paramtool.commands.check.report import CheckedFile, OtherModelError
from paramtool.commands.check.settings import AskedRule, asked_rules
from paramtool.commands.check.targets import MANY, CheckTarget, beside, inside, unsafe_files
from paramtool.commands.check.uses import PolicyUses
from paramtool.commands.opening import refuse_different
from paramtool.commands.progress import Progress
from paramtool.errors import FormatError, ParamtoolError, UnsafeError, UsageError, plural, printable, some
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.lazy_dataclass import dataclass
from paramtool.model.finding import ERROR, OFF, FileLine, Finding
from paramtool.model.rule_ids import BY_ID, BY_NAME

if TYPE_CHECKING:
    from datetime import date

    from paramtool.commands.check.locked_files import LockedFiles
    from paramtool.commands.inspect import Inspection
    from paramtool.lockfile.lock import Lock, LockedModel


class _SoFar:
    """What is known of a checkpoint so far."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.locked = ""


@dataclass(frozen=True, slots=True)
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
    looked_at: set[str] = field(default_factory=set)
    """Files whose pickles were looked at."""

    def joined(self, targets: Sequence[CheckTarget]) -> Sequence[CheckTarget]:
        """Targets with each model of the lock once in place of its files."""
        return targets if self.locked_files is None else self.locked_files.joined(targets, self._is_compared)

    def _is_compared(self, path: str) -> bool:
        return self.lock is not None and bool(self.policy.of(path).get("changed", True))

    def files(self, target: CheckTarget) -> Iterator[CheckedFile]:
        """One checkpoint, or those in a folder that is none itself."""
        found = self.file(target)
        is_refused = target.error is None and isinstance(found.error, (UsageError, FormatError, UnsafeError))
        is_refused = is_refused and not isinstance(found.error, OtherModelError)
        is_named = self.lock is not None and _name(self.lock, target.path) in self.lock.models
        inner = inside(target.path) if is_refused and not is_named and is_folder(target.path) else []
        if found.error is None and not is_named and is_folder(target.path):
            inner, left = beside(target.path)
            names = some([printable(os.path.basename(path)) for path in left], MANY)
            note = f"not checked, since the folder is one model: {names}; name them, or use a pattern"
            found = replace(found, notes=(*found.notes, note)) if left else found
        if len(inner) > isinstance(found.error, UnsafeError):  # an unsafe model of one file is the folder's
            yield from (self.file(CheckTarget(path)) for path in inner)
        else:
            inner = []
            yield found
        if target.error is None and is_folder(target.path) and not self.allow_unknown:
            known = {os.path.normpath(path) for path in (*inner, *self.looked_at)}
            said = found.error.message if isinstance(found.error, UnsafeError) else ""
            allowed = (*self.allow_class, *self.policy.of(target.path).get("allow-class", ()))
            for path in unsafe_files(target.path, known, allowed):
                if os.path.basename(path) not in said:
                    yield self.file(CheckTarget(path))

    def file(self, target: CheckTarget) -> CheckedFile:
        """One checkpoint; its errors are its own."""
        draft, path, error = _SoFar(target.path), target.path, target.error
        draft.notes += target.notes
        if error is None:
            try:
                self._judge(draft)
            except ParamtoolError as caught:
                error = caught
            except (MemoryError, RecursionError) as caught:
                what = "memory" if isinstance(caught, MemoryError) else "stack"
                error = FormatError(f"{path}: out of {what}", hint="the file may be a bomb")
        if error is not None:
            self.uses.skip(path)
        if error is not None and not error.message.startswith((path, printable(path))):
            error = error.located(printable(path))
        return CheckedFile(path, tuple(draft.findings), error, draft.locked, tuple(draft.notes))

    def _judge(self, draft: _SoFar) -> None:
        """The findings of one checkpoint; those before an error stay.

        Where pointers to its files are there, they are compared with the lock, and no rule is judged.
        """
        path, settings = draft.path, self.policy.of(draft.path)
        compares = self._is_compared(path)
        if compares and self.locked_files is not None and (folder := self.locked_files.around(path)):
            compares = False
            draft.notes.append(f"not compared with the lock, which has no such file in {printable(folder)}")
        locked = self._locked(path) if compares else None
        draft.locked = locked.path if locked else ""
        if locked is not None and (pointed := self._pointers(path, locked)) is not None:
            draft.notes.append(pointed[0])
            self._add(draft, pointed[1], settings)
            self.uses.skip(path)
            return
        asked = self._asked(settings, path)
        found = self._inspected(path, settings, asked)
        draft.notes += found.checkpoint.notes
        for rule, place in asked:
            usual = (replace(one, place=place, severity=_severity(one, place)) for one in rule.findings(found))
            self._add(draft, usual, settings)
            draft.notes += rule.assumptions(found)
            if place is not None and (patterns := rule.kind.patterns(rule.asked)):
                self.uses.match(place, patterns, [name for name, _ in found.checkpoint.windows()])
        if compares:
            if is_folder(path):
                allowed = (*self.allow_class, *settings.get("allow-class", ()))
                weights = formats.looked_at(path, None, allow_class=allowed, allow_unknown=self.allow_unknown)
                refuse_different(path, weights, self.progress)
            self._add(draft, self._differences(found, settings), settings)

    def _add(self, draft: _SoFar, findings: Iterable[Finding], settings: Settings) -> None:
        """Findings, each with its severity and the exception that allows it; not those that are off."""
        for finding in findings:
            severity = settings.severities.get(finding.id, finding.severity)
            if severity == OFF or (self.allow_unknown and finding.id == BY_NAME["unsafe"].id):
                continue
            words = self._allowed(finding, draft.path)
            draft.findings.append(replace(finding, path=draft.path, severity=severity, allowed=words))

    def _allowed(self, finding: Finding, path: str) -> str:
        """Why a finding is allowed, by the first exception that holds; empty where none does."""
        found = list(self.policy.matching(finding.id, path, finding.names))
        holds = [one for one in found if not one.is_expired(self.today)][:1]
        for one in holds or found:
            self.uses.need(one, finding.names)
        return holds[0].words if holds else ""

    def _locked(self, path: str) -> LockedModel | None:
        """The model of the lock; None where it is not clear which, which is an error after the rules were judged."""
        from paramtool.commands.check import against

        assert self.lock is not None
        try:
            return against.model_for(self.lock, path)
        except UsageError:
            return None

    def _pointers(self, path: str, locked: LockedModel) -> tuple[str, Iterator[Finding]] | None:
        from paramtool.commands.check import against

        assert self.lock is not None
        return against.pointers(path, locked, self.lock)

    def _differences(self, found: Inspection, settings: Settings) -> Iterator[Finding]:
        """What differs from the lock; UsageError where it is not clear from which of its models."""
        from paramtool.commands.check import against

        assert self.lock is not None
        locked = against.model_for(self.lock, found.path)
        only = settings.get("content-only", False)
        return against.differences(found, locked, self.lock, content_only=only, progress=self.progress)

    def _asked(self, settings: Settings, path: str) -> list[AskedRule]:
        """The rules; what nobody asked for and needs a config.json is left out where there is none."""
        asked = asked_rules(settings)
        return [one for one in asked if one.place or not one.rule.kind.needs_config or _has_config(path)]

    def _inspected(self, path: str, settings: Settings, asked: Sequence[AskedRule]) -> Inspection:
        kinds = [one.rule.kind for one in asked]
        if needs_config := any(kind.needs_config for kind in kinds):
            _refuse_no_config(path)
        found = inspecting.inspect(
            path,
            equal=any(kind.needs_content for kind in kinds),
            min_equal_bytes=1,
            config="" if needs_config else None,
            allow_class=(*self.allow_class, *settings.get("allow-class", ())),
            allow_unknown=self.allow_unknown,
            progress=self.progress,
        )
        beside = (os.path.join(path, name) for name in found.unsafe_sidecars)
        self.looked_at.update(
            os.path.normpath(one) for one in (*(file.path for file in found.checkpoint.files), *beside)
        )
        return found

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


def _refuse_no_config(path: str) -> None:
    """UsageError where there is no config.json, which a rule of the configuration needs."""
    try:
        hf_config.place(path)
    except UsageError as error:
        error.hint = "config-ties = false in [[paths]] is for checkpoints without one"
        raise


def _has_config(path: str) -> bool:
    try:
        hf_config.place(path)
    except UsageError:
        return False
    return True
