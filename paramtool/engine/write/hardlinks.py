"""An output of several folders, with files that are in more than one of them.

DIR/a/model-00001-of-00002.safetensors      one file ...
DIR/b/model-00001-of-00003.safetensors      ... with two names: a hard link
DIR/paramtool.family.json                   the files that were written, so that a later run knows what it may replace
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from paramtool.engine.write.places import MANIFEST, manifest, writing
from paramtool.engine.write.sink import Advance, Sink
from paramtool.engine.write.staging import Staged, sync_folder
from paramtool.errors import OutputError, UnreadableError

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
"""The errors of file systems that have no hard links, or allow no more of them for one file."""


def link(staged: Staged, name: str, other: str, advance: Advance = lambda nbytes: None) -> bool:
    """Give a file of the output a second name; if the file system has no hard links, copy it and return False."""
    if hasattr(os, "link"):
        with writing(staged.path):
            try:
                os.link(staged.file(name), staged.file(other))
                return True
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
    with open(staged.file(name), "rb") as file, Sink(staged, other, advance) as sink:
        sink.copy(file, 0, os.fstat(file.fileno()).st_size)
    return False


def finish(staged: Staged, folders: Iterable[str]) -> None:
    """Write the manifest of the output, and flush its folders to the disk."""
    try:
        with writing(staged.path):
            with Sink(staged, MANIFEST, lambda nbytes: None) as sink:
                sink.write(manifest(staged.temporary))
            for folder in folders:
                sync_folder(staged.file(folder))
            sync_folder(staged.temporary)
    except UnreadableError as error:
        where = error.message.replace(staged.temporary, staged.path)
        raise OutputError(f"{where}: cannot be read back after writing, so the output was not kept") from None
