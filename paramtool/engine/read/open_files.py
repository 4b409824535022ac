"""The files of a checkpoint while they are read: few are open at once, and none may change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from paramtool.formats.files import changed, check_unchanged, file_changed, open_source, read_at
from paramtool.model.storage import SourceFile

MAX_OPEN_FILES = 16
"""The limit for one checkpoint; comparing opens two, and some systems allow 256 open files for a process."""
MANY_OPEN_FILES = 128
"""The limit where the system allows eight times as many: a tensor can have a part in every rank's file."""
CHUNK_NBYTES = 1 << 20
"""How many bytes are read at once; they should stay in a processor's cache between reading and writing."""


class OpenFiles:
    """Files by their paths, opened when they are needed."""

    def __init__(self, files: tuple[SourceFile, ...], max_files: int) -> None:
        """`max_files` may be open at once; 0 for as many as the system allows easily."""
        self._files = files
        self._noted = {file.path: file for file in files}
        self._max_files = max_files or _allowed_files()
        self._open: dict[str, BinaryIO] = {}

    def closes_another(self, path: str) -> bool:
        """Whether opening a file closes another one, because too many are open."""
        return path not in self._open and len(self._open) >= self._max_files

    def open(self, path: str) -> BinaryIO:
        """An open file; if too many are open, the file that was asked for longest ago is closed."""
        if self.closes_another(path):
            self._open.pop(next(iter(self._open))).close()
        if path in self._open:
            self._open[path] = file = self._open.pop(path)
            return file
        file, _ = open_source(path)
        self._open[path] = file
        if changed(self._noted[path], os.fstat(file.fileno())):
            raise file_changed(path)
        return file

    def check_unchanged(self) -> None:
        """FormatError if a file was replaced or written to since it was described."""
        for file in self._files:
            check_unchanged(file)

    def close(self) -> None:
        """Close every file."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def _allowed_files() -> int:
    """How many files of a checkpoint may be open at once: an eighth of what the process may open, within bounds."""
    try:
        import resource
    except ImportError:  # Windows
        return MAX_OPEN_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(MAX_OPEN_FILES, min(MANY_OPEN_FILES, soft // 8)) if soft >= 0 else MANY_OPEN_FILES


def read_blocks(file: BinaryIO, start: int, stop: int) -> Iterator[memoryview]:
    """Bytes of a file in blocks that share one buffer; FormatError if they cannot be read."""
    buffer = memoryview(bytearray(min(CHUNK_NBYTES, stop - start)))
    while start < stop:
        part = buffer[: min(len(buffer), stop - start)]
        read_at(file, start, part)
        yield part
        start += len(part)
