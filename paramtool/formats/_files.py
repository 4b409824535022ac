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
        raise FormatError(f"{path}: cannot be read: {error.strerror}", _hint(path, error)) from None
    status = os.fstat(file.fileno())
    return file, SourceFile(path, status.st_size, status.st_mtime_ns)


def _hint(path: str, error: OSError) -> str:
    """A shell hands on a pattern that matches no file as it was written."""
    is_pattern = isinstance(error, FileNotFoundError) and any(sign in path for sign in "*?[")
    return "the pattern matches no file, so the shell passed it on as it stands" if is_pattern else ""
