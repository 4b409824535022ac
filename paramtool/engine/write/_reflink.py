"""Sharing blocks between files instead of copying them, where a file system can (XFS, btrfs, bcachefs).

A run of bytes can share the whole blocks in it if it begins at the same place of a block in both files: what stands
before the first whole block and behind the last is copied.

    struct file_clone_range { s64 src_fd; u64 src_offset, src_length, dest_offset; }
    FICLONERANGE            _IOW(0x94, 13, struct file_clone_range) = 0x4020940D

Source: linux/fs.h and ioctl_ficlonerange(2); offsets and length have to be multiples of the file system's block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import BinaryIO

CLONE_RANGE = 0x4020940D
RANGE = Struct("=qQQQ")


def whole_blocks(start: int, nbytes: int, position: int, block: int) -> tuple[int, int]:
    """(bytes before it, bytes) of the part of a run that is whole blocks of both files; (0, 0) where none is.

    >>> whole_blocks(100, 10_000, 4196, 4096)
    (3996, 4096)
    >>> whole_blocks(100, 10_000, 0, 4096)
    (0, 0)
    """
    if (start - position) % block:
        return 0, 0
    before = -start % block
    inside = (nbytes - before) // block * block
    return (before, inside) if inside > 0 else (0, 0)


def block_nbytes(file: BinaryIO) -> int:
    """The block size of the file system that a file is on; that of most where it is not said."""
    try:
        return os.fstatvfs(file.fileno()).f_bsize
    except (OSError, AttributeError):  # Windows has none
        return 4096


def _ioctl() -> Callable[[int, int, bytes], object]:
    import fcntl

    return fcntl.ioctl


def clone(source: BinaryIO, start: int, nbytes: int, into: BinaryIO, *, position: int) -> bool:
    """Let a file share whole blocks of another; False where the file system cannot, and nothing was changed."""
    try:
        _ioctl()(into.fileno(), CLONE_RANGE, RANGE.pack(source.fileno(), start, nbytes, position))
    except (OSError, ImportError):  # not there, not between these two, not on this system: bytes are copied then
        return False
    return True
