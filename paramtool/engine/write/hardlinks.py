"""An output that is several folders, with files that stand in more than one of them.

DIR/a/model-00001-of-00002.safetensors      one file ...
DIR/b/model-00001-of-00003.safetensors      ... with two names: a hard link
DIR/paramtool.family.json                   what this program wrote, so that it knows what it may replace
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from paramtool.engine.write._manifest import MANIFEST, manifest
from paramtool.engine.write.places import writing
from paramtool.engine.write.sink import Advance, Sink
from paramtool.engine.write.staging import Staged, sync_folder
from paramtool.errors import OutputError, UnreadableError

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
"""How file systems say that they have no hard links, or no more of one file."""


def link(staged: Staged, name: str, other: str, advance: Advance = lambda nbytes: None) -> bool:
    """Give a file of the output a second name; where the file system has no hard links copy it, and return False."""
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
    """Write down what the output holds, and flush its folders to the disk."""
    try:
        with writing(staged.path):
            with Sink(staged, MANIFEST, lambda nbytes: None) as sink:
                sink.write(manifest(staged.temporary))
            for folder in folders:
                sync_folder(staged.file(folder))
            sync_folder(staged.temporary)
    except UnreadableError as error:
        told = error.message.replace(staged.temporary, staged.path)
        raise OutputError(f"{told}: it was written, and not kept, since it cannot be read back") from None
