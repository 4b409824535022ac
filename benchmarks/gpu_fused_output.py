"""Where a run writes: nothing that exists is overwritten without --force, and only a regular file with it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from paramtool.engine.write.places import check_place, writing
from paramtool.engine.write.staging import Staged
from paramtool.errors import OutputError


class Output:
    """A file that a run writes, perhaps many times; each time whole or not at all."""

    def __init__(self, path: str, flag: str, force: bool, inputs: Sequence[str] = ()) -> None:
        self.path = path
        self.flag = flag
        """What asked for it: said in errors."""
        self.force = force
        self.inputs = inputs
        """Files that are read, and so never overwritten."""
        self._made: list[tuple[int, ...]] = []
        """What was written last, and before: an interruption can come before the last has its place."""

    def check(self) -> None:
        """OutputError where it could not be written; asked before the time is spent, and nothing is left of it."""
        with self._staged():
            pass

    def write_json(self, document: Any) -> None:
        """OutputError where that is impossible, or where something stands there that this run did not write."""
        self.write(lambda path: _write_json(document, path))

    def write(self, make: Callable[[str], object]) -> None:
        """Let `make` write to a temporary place, and move that here."""
        with self._staged() as staged:
            with writing(self.path):
                make(staged.temporary)
            self._made = [*self._made[-1:], _identity(os.lstat(staged.temporary))]
            staged.commit()

    @property
    def is_ours(self) -> bool:
        """Whether what stands there was written by this run."""
        try:
            return _identity(os.lstat(self.path)) in self._made
        except OSError:
            return False

    def _staged(self) -> Staged:
        if not self.path:
            raise OutputError(f"{self.flag}: the name is empty", hint=f"{self.flag} FILE")
        if os.path.isdir(self.path):
            raise OutputError(f"{self.flag}: {self.path}: is a folder, not a file", hint=f"{self.flag} FILE")
        try:
            force = self.force or self.is_ours
            check_place(self.path, False, force, self.inputs)
            return Staged(self.path, False, force, self.inputs)
        except OutputError as error:
            hint = re.sub(r"(?<!\S)-o\b", self.flag, error.hint)  # where the place of something else is told of
            raise OutputError(f"{self.flag}: {error}", hint=hint) from None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """An inode alone does not do: that of a file which was replaced is soon another's."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _write_json(document: Any, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
