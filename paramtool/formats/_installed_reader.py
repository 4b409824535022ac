"""Readers of other packages: their exceptions are converted, and the checkpoints that they return are checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paramtool.errors import FormatError, ParamtoolError, message_of
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.storage import ByteRange, Encoded, Inline, SourceFile, Storage

if TYPE_CHECKING:
    from paramtool.formats.table import Format

STEP = re.compile(r"inflate|skip[0-9]{1,9}|swap[248]")


def read(row: Format, path: str) -> Checkpoint:
    """Read a file with a package's reader; FormatError names the package if that fails."""
    try:
        found = import_module(row.module).read(path)
    except (ParamtoolError, OSError):
        raise
    except (Exception, SystemExit) as error:  # code of others
        if os.environ.get("PARAMTOOL_DEBUG"):
            raise
        reason = f"{type(error).__name__}: {message_of(error)}"
        hint = "set PARAMTOOL_DEBUG=1 for a traceback"
        raise FormatError(f"{path}: the reader of {row.package} failed: {reason}", hint) from error
    if wrong := next(_defects(found), ""):
        raise FormatError(f"{path}: the reader of {row.package} returned an invalid description: {wrong}")
    assert isinstance(found, Checkpoint)
    return found


def _defects(found: object) -> Iterator[str]:
    """The defects of a description, such as ranges outside their file and views outside their storage."""
    if not isinstance(found, Checkpoint):
        yield f"it returns {type(found).__name__}; expected a Checkpoint"
        return
    if not found.files or not all(isinstance(file, SourceFile) for file in found.files):
        yield "`files` is empty, or has items that `open_source` did not return"
        return
    sizes = {file.path: file.nbytes for file in found.files}
    storages: Mapping[Any, Any] = found.storages
    entries: Mapping[Any, Any] = found.entries
    for number, storage in storages.items():
        if not isinstance(storage, Storage) or storage.id != number:
            yield f"storages[{number!r}] is {storage!r:.200}; expected a Storage of that number"
            return
        yield from (f"storage {number}: {wrong}" for wrong in _wrong_backing(storage, sizes))
    for name, entry in entries.items():
        if not isinstance(name, str) or not isinstance(entry, Entry):
            yield f"entries[{name!r:.200}] is {type(entry).__name__}; expected an Entry under a string"
            return
    for name, view in found.windows():
        place = found.storages.get(view.storage) if isinstance(view.storage, int) else None
        if place is None:
            yield f"{name!r:.200} is a view of storage {view.storage!r}, which does not exist"
        elif view.byte_stop > place.nbytes:
            yield f"{name!r:.200} ends at byte {view.byte_stop} of storage {place.id}, which has {place.nbytes}"


def _wrong_backing(storage: Storage, sizes: dict[str, int]) -> Iterator[str]:
    backing = storage.backing
    part = backing.source if isinstance(backing, Encoded) else backing
    if isinstance(part, Inline):
        if len(part.data) != storage.nbytes:
            yield f"has {storage.nbytes} bytes, and {len(part.data)} inline"
        return
    if not isinstance(part, ByteRange):
        yield f"its backing is {type(backing).__name__}; expected a ByteRange, Encoded or Inline"
    elif part.file not in sizes:
        yield f"is read from {part.file}, which is not in `files`"
    elif not 0 <= part.start <= part.stop <= sizes[part.file]:
        yield f"has bytes {part.start} to {part.stop} of a file; the file has {sizes[part.file]}"
    elif part is backing and part.nbytes != storage.nbytes:
        yield f"has {storage.nbytes} bytes, and its range {part.nbytes}"
    elif isinstance(backing, Encoded) and (odd := [step for step in backing.steps if not STEP.fullmatch(step)]):
        yield f"has a step {odd[0]!r}; expected inflate, swap2, swap4, swap8 or skipN"
