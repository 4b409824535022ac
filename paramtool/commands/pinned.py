"""The lock that loaded weights have to match, as the loaders take it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from paramtool.commands.progress import Path
from paramtool.errors import LockError, UsageError, listed, plural
from paramtool.lazy_dataclass import frozen


@frozen
class Pin:
    """The lock that weights have to match, as the loaders take it."""

    lock: Path
    name: str | None = None
    """What the lock calls the model; None for the one of the path, or the only one."""
    content_only: bool = False
    """Whether only tensors are judged, and no ties."""

    def refuse(self, where: str, lines: Sequence[str], hint: str = "") -> LockError:
        """The error of weights that differ."""
        head = f"{where}: {plural(len(lines), 'difference')} from {os.fspath(self.lock)}"
        take = "take the locked weights, or lock these: `lock --force`"
        return LockError(listed(f"{head}; the weights are not the locked ones:", lines), hint=hint or take)


def pin(lock: Path | None, name: str | None, content_only: bool) -> Pin | None:
    """What the keywords `lock`, `locked_as` and `content_only` of a loader say; None without a lock."""
    if lock is not None:
        return Pin(lock, name, content_only)
    if name is not None or content_only:
        word = "locked_as" if name is not None else "content_only"
        raise UsageError(f"{word} is given without a lock", hint='lock="paramtool.lock"')
    return None
