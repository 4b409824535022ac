"""Opening files to describe them, with the errors that a person can act on."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from paramtool.errors import FormatError
from paramtool.model.storage import SourceFile


def open_source(path: str) -> tuple[BinaryIO, SourceFile]:
    """Open a regular file and note its size and time; FormatError where that is not possible."""
    if not path:
        raise FormatError("the path is empty; expected a checkpoint file")
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise FormatError(f"{path}: is {kind}; expected a checkpoint file")
        file = open(path, "rb")
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    status = os.fstat(file.fileno())
    return file, SourceFile(path, status.st_size, status.st_mtime_ns)
