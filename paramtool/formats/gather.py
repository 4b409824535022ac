"""Reads pieces of a file that stand apart in one call, where `preadv` needs one for each.

The file is mapped, and the system copies the pieces out of the mapping: Linux's process_vm_readv, asked of this very
process (man 2 process_vm_readv).  No other code touches the mapping.  So a file that another program truncates then
gives fewer bytes, where a look at the mapping would end the process by SIGBUS.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MOST_PIECES = 1 << 10
"""How many pieces the system takes in one call: UIO_MAXIOV."""
_mappings: WeakKeyDictionary[BinaryIO, Array] = WeakKeyDictionary()


def gather(file: BinaryIO, start: int, step: int, buffer: memoryview, nbytes: int) -> int:
    """Fill a buffer with pieces of `nbytes` bytes that begin `step` bytes apart, the first at byte `start` of a file.

    Returns how many bytes were filled: fewer, or none, where the system does not do this, or the file is shorter.
    """
    import numpy as np

    count, filled = len(buffer) // nbytes, 0
    if (
        (copy := _copy()) is None
        or (mapped := _mapped(file)) is None
        or start + (count - 1) * step + nbytes > len(mapped)
    ):
        return 0
    pieces = np.empty((count, 2), np.uintp)
    pieces[:, 0] = np.arange(count, dtype=np.uintp) * step + (mapped.ctypes.data + start)
    pieces[:, 1] = nbytes
    at = np.frombuffer(buffer, "u1").ctypes.data
    for low in range(0, count, MOST_PIECES):
        part = pieces[low : low + MOST_PIECES]
        whole = np.array([at + filled, nbytes * len(part)], np.uintp)
        copied = copy(os.getpid(), whole.ctypes.data, 1, part.ctypes.data, len(part), 0)
        filled += max(0, copied)
        if copied < nbytes * len(part):
            break
    return filled


def _mapped(file: BinaryIO) -> Array | None:
    """The bytes of a file, which are not to be looked at; None where it cannot be mapped."""
    import mmap

    import numpy as np

    found = _mappings.get(file)
    if found is None:
        try:
            found = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), "u1")
        except (OSError, ValueError):  # an empty file cannot be mapped
            return None
        _mappings[file] = found
    return found


@cache
def _copy() -> Any:
    """The system's function; None where there is none."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        found = ctypes.CDLL(None).process_vm_readv
    except (AttributeError, OSError):  # a libc that lacks it
        return None
    number, place = ctypes.c_ulong, ctypes.c_void_p
    found.argtypes = [ctypes.c_int, place, number, place, number, number]
    found.restype = ctypes.c_ssize_t
    return found
