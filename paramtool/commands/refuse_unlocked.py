"""Weights that are not those of a lock are refused before they are loaded."""

from __future__ import annotations

import os

from paramtool.commands.check.against import model_for
from paramtool.commands.locked_model import weights_of
from paramtool.commands.pinned import Pin
from paramtool.commands.progress import Path
from paramtool.errors import UsageError
from paramtool.lockfile.read import read
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes.lock.compare import of_weights


def refuse_unlocked(pinned: Pin, path: Path, checkpoint: Checkpoint) -> None:
    """LockError where a checkpoint, read from a path, does not hold just the tensors and the ties that the lock says.

    What decides nothing about loaded weights is not judged: objects, files, the dialect, and what a config.json ties.
    UsageError where it is not clear which model of the lock is meant, or where the lock has no digests of tensors;
    FormatError where the lock is damaged.
    """
    known = read(os.fspath(pinned.lock))
    hint = f"locked_as={next(iter(known.models))!r:.200} names the one that is meant"
    locked = model_for(known, os.fspath(path), pinned.name, hint=hint)
    if locked.is_headers_only:
        raise UsageError(
            f"{known.path}:{locked.line}: made with --headers, so it says nothing about numbers",
            hint="`lock --force`, without --headers",
        )
    found = list(of_weights(locked, weights_of(checkpoint, locked.path), known.path, pinned.content_only))
    if not found:
        return
    lines = [f"line {one.place.line}: {one.message}" if one.place else one.message for one in found]
    of_ties = all(one.id.startswith("PT1") for one in found)
    why = "every tensor is the same: content_only=True judges tensors alone, or lock this file, too"
    raise pinned.refuse(os.fspath(path), lines, hint=why if of_ties else "")
