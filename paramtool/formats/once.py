"""What a command knows of the files that it read: none is read or scanned again while it stays as it was."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import NamedTuple, TypeVar

from paramtool.errors import ParamtoolError
from paramtool.formats.files import changed, watched
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.storage import SourceFile

MOST = 300_000
"""How many results and tensors in them are kept; the oldest go first."""
R = TypeVar("R")


class _Known(NamedTuple):
    """What a function gave or raised, and the files that it read for that."""

    files: dict[str, SourceFile]
    found: object

    @property
    def size(self) -> int:
        return 1 + (len(self.found.entries) if isinstance(self.found, Checkpoint) else 0)

    def holds(self) -> bool:
        """Whether no file was modified or replaced since."""
        try:
            return not any(changed(file, os.stat(file.path)) for file in self.files.values())
        except OSError:
            return False


class _Memory:
    """The results of one command."""

    def __init__(self) -> None:
        self.size = 0
        self._known: dict[tuple[object, str], _Known] = {}

    def of(self, key: tuple[object, str]) -> _Known | None:
        known = self._known.get(key)
        return known if known and known.holds() else None

    def keep(self, key: tuple[object, str], known: _Known) -> None:
        if (old := self._known.pop(key, None)) is not None:
            self.size -= old.size
        self._known[key] = known
        self.size += known.size
        while self.size > MOST:
            self.size -= self._known.pop(next(iter(self._known))).size


_memory: ContextVar[_Memory | None] = ContextVar("memory", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Keep results in the block, or go on keeping them."""
    token = _memory.set(_memory.get() or _Memory())
    try:
        yield
    finally:
        _memory.reset(token)


def once(function: Callable[[str], R]) -> Callable[[str], R]:
    """Run a function of a path once where results are kept; its errors are results, too."""

    @functools.wraps(function)
    def kept(path: str) -> R:
        memory = _memory.get()
        if memory is None:
            return function(path)
        if (known := memory.of((function, path))) is None:
            token = watched.set({})
            try:
                found: object = function(path)
            except ParamtoolError as error:
                found = copy(error)  # without the frames that it came through
            finally:
                files = watched.get()
                watched.reset(token)
            known = _Known(files, found)
            if files:
                memory.keep((function, path), known)
        for name, file in known.files.items():
            watched.get({}).setdefault(name, file)
        if isinstance(known.found, ParamtoolError):
            raise copy(known.found)
        return known.found  # type: ignore[return-value]

    return kept
