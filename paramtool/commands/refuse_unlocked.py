"""Weights that are not those of a lock are refused before they are loaded."""

from __future__ import annotations

import os

from paramtool.commands.check.against import model_for
from paramtool.commands.locked_model import content_of
from paramtool.commands.progress import Path
from paramtool.errors import LockError, UsageError, listed, plural
from paramtool.lockfile.read import read
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes.lock.compare import findings


def refuse_unlocked(lock: Path, path: Path, checkpoint: Checkpoint) -> None:
    """LockError where a checkpoint, read from a path, does not hold just the tensors that the lock says.

    Its model in the lock is the one of this path, or the only one.  UsageError where there are several others, or where
    the lock has no digests of tensors; FormatError where the lock is damaged.
    """
    known = read(os.fspath(lock))
    locked = model_for(known, os.fspath(path))
    if locked.is_headers_only:
        raise UsageError(
            f"{known.path}:{locked.line}: made with --headers, so it says nothing about numbers",
            hint="paramtool lock --force, without --headers",
        )
    now = content_of(checkpoint, locked.path)
    if now.content == locked.content:
        return
    found = list(findings(locked, now, known.path, content_only=True))
    where = f"{os.fspath(path)}: {plural(len(found), 'difference')} from {known.path}"
    lines = [f"line {one.place.line}: {one.message}" if one.place else one.message for one in found]
    raise LockError(listed(f"{where}; the weights are not the locked ones:", lines),
                    hint="take the locked weights, or make the lock again: paramtool lock --force")  # fmt: skip
