"""Renaming on Linux with a guarantee: never replace a file, or exchange two names in one step.

    int renameat2(int olddirfd, const char *oldpath, int newdirfd, const char *newpath, unsigned int flags)
    RENAME_NOREPLACE  1       fails with EEXIST if the new name is taken
    RENAME_EXCHANGE   2       swaps what two names refer to; at every moment both names exist
    AT_FDCWD          -100

Source: rename(2) of the Linux man-pages, linux/fs.h, linux/fcntl.h.  glibc has it since 2.28, musl since 1.2.6; a file
system may lack a flag and says EINVAL.
"""

from __future__ import annotations

import errno
import os
from functools import cache
from typing import Any

NOREPLACE = 1
EXCHANGE = 2
AT_FDCWD = -100
CANNOT = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


@cache
def _renameat2() -> Any:
    """The function `renameat2` of the C library, or None."""
    import ctypes

    try:
        found = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # another C library, or Windows, where None names no library
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return found


def rename(source: str, target: str, flag: int) -> bool:
    """Rename with one of the flags; False, and no change, if the system or the file system does not support it.

    OSError for any other failure.
    """
    from ctypes import get_errno

    function = _renameat2()
    if function is None:
        return False
    if not function(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flag):
        return True
    number = get_errno()
    if number in CANNOT:
        return False
    raise OSError(number, os.strerror(number), source, None, target)
