"""Checking checkpoints: by the rules of a configuration, and against a lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paramtool.commands.check import config as configuring
from paramtool.commands.check.checking import Checking
from paramtool.commands.check.policy import Policy, Setting, Settings
from paramtool.commands.check.report import Checked
from paramtool.commands.check.settings import ALWAYS, BARE
from paramtool.commands.check.targets import CheckTarget, Targets, targets
from paramtool.commands.check.uses import PolicyUses
from paramtool.commands.progress import Path, Progress, silent
from paramtool.errors import MissingFileError, UsageError, refuse_string
from paramtool.formats import policy
from paramtool.lockfile.lock import NAME
from paramtool.model.inflating import limiting

if TYPE_CHECKING:
    from datetime import date

    from paramtool.commands.check.locked_files import LockedFiles
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
    Files of a folder that the lock names, such as shards, are checked as that folder, once.
    `content_only` compares only tensors with the lock.  `today` decides which exceptions have expired.

    A checkpoint that cannot be read stops no other: its error is in `CheckedFile.error`.  Nothing is raised for
    findings; `Checked.exit_code` is what the command line exits with.  UsageError where the configuration cannot be
    read or no path is known, FormatError where the lock is damaged.
    """
    refuse_string("paths", paths)
    said = _policy(config)
    locked = _lock(lock, said)
    asked = _settings(said, locked, content_only)
    day, uses = _today(today), PolicyUses(asked)
    classes = policy.checked(allow_class)
    locked_files = _locked_files(locked)
    about = Checking(asked, locked, classes, allow_unknown, day, uses, progress, locked_files)
    given = [os.fspath(path) for path in paths]
    found = _targets(given, said, locked, locked_files.is_named if locked_files else lambda path: False)
    files = tuple(file for target in about.joined(found.targets) for file in about.files(target))
    is_whole = not (given or content_only or allow_class or allow_unknown)
    general = uses.findings([file.path for file in files], day, is_whole=is_whole)
    return Checked(files, locked.path if locked else "", said.path, tuple(general), (*found.notes, *about.notes(files)))


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


def _today(today: date | None) -> date:
    from datetime import date as days

    return today if today is not None else days.today()


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
        hint="paramtool check model.safetensors; or files = [...] in paramtool.toml",
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
