"""Decoded storages in a temporary file without a name, in which zeros take no space."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import BinaryIO

from paramtool.errors import OutputError


class Spool:
    """A temporary file that is made when the first storage is added to it."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._starts: dict[int, int] = {}

    def __contains__(self, storage_id: int) -> bool:
        return storage_id in self._starts

    @property
    def file(self) -> BinaryIO:
        """The file; OutputError if it cannot be made."""
        if self._file is None:
            self._file = _temporary()
        return self._file

    def place(self, storage_id: int) -> tuple[BinaryIO, int]:
        """The file, and where a storage begins in it."""
        return self.file, self._starts[storage_id]

    def add(self, storage_id: int, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        """Write the `nbytes` bytes of a storage to the end."""
        file = self.file
        start = file.seek(0, os.SEEK_END)
        try:
            for part in parts:
                if _is_zero(part):
                    file.seek(len(part), os.SEEK_CUR)
                else:
                    file.write(part)
            file.flush()
            os.ftruncate(file.fileno(), file.tell())
        except OSError as error:
            raise OutputError(
                f"{tempfile.gettempdir()}: cannot store a decoded storage of {nbytes} bytes: {error.strerror}",
                hint="set TMPDIR to a folder with more space",
            ) from None
        self._starts[storage_id] = start

    def close(self) -> None:
        """Close the file, which ends it."""
        if self._file is not None:
            self._file.close()


def _temporary() -> BinaryIO:
    """A nameless temporary file in the folder of TMPDIR, or the system's; OutputError if it cannot be made there.

    Python itself would try other folders, and finally the current one.
    """
    folder = os.environ.get("TMPDIR") or "/tmp" if os.name == "posix" else tempfile.gettempdir()
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot make a temporary file: {error.strerror}", hint="set TMPDIR to another folder"
        ) from None


def _is_zero(part: memoryview | bytes) -> bool:
    """Whether all bytes of a block are zero; checks only the first and the last if these are not."""
    return bool(part) and not part[0] and not part[-1] and not bytes(part).strip(b"\0")
