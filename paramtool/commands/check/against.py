"""A checkpoint against a lock: which model of the lock it is, and what differs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paramtool.commands.lock import name_in
from paramtool.commands.locked_model import LockReading, described
from paramtool.commands.pointed import pointed
from paramtool.commands.progress import Progress
from paramtool.errors import UsageError
from paramtool.lockfile.lock import Lock, LockedModel
from paramtool.model.finding import Finding
from paramtool.passes.lock import compare
from paramtool.passes.lock import pointers as judging_pointers

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection

MANY = 6
"""How many models of a lock a message names."""


def place_of(lock: Lock, name: str) -> str:
    """Where a model of a lock is: paths in it are relative to its folder."""
    return os.path.normpath(os.path.join(os.path.dirname(lock.path), name.replace("/", os.sep)))


def model_for(lock: Lock, path: str) -> LockedModel:
    """The model of a path, else the only one; UsageError where there are several."""
    if found := lock.models.get(name_in(lock.path, path)):
        return found
    real = os.path.realpath(path)
    for name, model in lock.models.items():
        if os.path.realpath(place_of(lock, name)) == real:
            return model
    if len(lock.models) == 1:
        return next(iter(lock.models.values()))
    names = [repr(name)[:200] for name in lock.models][:MANY]
    more = f" and {len(lock.models) - MANY} more" if len(lock.models) > MANY else ""
    raise UsageError(
        f"{path}: {lock.path} does not name it, and has {len(lock.models)} models: {', '.join(names)}{more}",
        hint="`paramtool lock` with all paths names it; `changed = false` in [[paths]] compares it with none",
    )


def pointers(path: str, locked: LockedModel, lock: Lock) -> Iterator[Finding] | None:
    """What the pointers at a path say against a lock; None where the files themselves are there."""
    seen = pointed(path, locked)
    return None if seen is None else judging_pointers.findings(locked, seen, lock.path, path)


def differences(
    found: Inspection, locked: LockedModel, lock: Lock, *, content_only: bool, progress: Progress
) -> Iterator[Finding]:
    """What differs from the lock; a lock that was made of headers reads no tensor."""
    has_hashes = not content_only and all(file.sha256 for file in locked.files)
    reading = LockReading(locked.is_headers_only, hash_files=has_hashes)
    now = described(found.checkpoint, found.path, locked.path, reading, progress=progress)
    yield from compare.findings(locked, now, lock.path, content_only=content_only)
