"""The digest of every tensor of a checkpoint, by several threads.  Each window is read once, however many names it has.

`one_pass` hashes files and their tensors together, and leaves here what cannot be hashed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from paramtool.engine.compare.changes import digest
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.view import View

Advance = Callable[[int], None]
THREADS_NBYTES = 16 << 20
"""Fewer bytes are read by one thread: starting more takes longer."""
Signed = tuple[View, str]
"""A window, and the sign that is still to be carried out: `conj`, `neg`, both, or none."""


def distinct_nbytes(windows: Iterable[Signed]) -> int:
    """The bytes that are read for the digests of some windows."""
    return sum(min(view.nbytes, view.byte_stop - view.byte_start) for view, _ in set(windows))


def digests(
    checkpoint: Checkpoint, windows: Sequence[Signed], memory: int, advance: Advance = lambda nbytes: None
) -> Mapping[Signed, str]:
    """blake3 of the elements of each window, row-major and with signs carried out, as of `difference.digest`.

    FormatError where bytes do not have the CRC that their container states.
    """
    tasks = sorted(set(windows), key=lambda one: (int(one[0].storage), one[0].byte_start, one[1]))
    found: dict[Signed, str] = {}
    if distinct_nbytes(tasks) < THREADS_NBYTES:
        with Source(checkpoint) as source:
            for task in tasks:
                found[task] = _digest(source, task)
                advance(distinct_nbytes([task]))
        return found
    with Pool(checkpoint, memory) as pool:
        for task, made in zip(tasks, pool.map(_digest, ((task, [task[0]]) for task in tasks)), strict=True):
            found[task] = made
            advance(distinct_nbytes([task]))
    return found


def _digest(source: Source, task: Signed) -> str:
    view, sign = task
    source.prove_later(view.number)
    made = _signed_digest(source, view, sign) if sign else digest(source, view)
    source.settle()
    return made


def _signed_digest(source: Source, view: View, sign: str) -> str:
    """The digest of a tensor whose sign is pending: the sign bits are flipped as they are read."""
    import numpy as np
    from blake3 import blake3

    size = view.dtype.block_bytes
    parts = 2 if view.dtype.name.startswith("complex") else 1
    flip = [("neg" in sign) ^ ("conj" in sign and part == 1) for part in range(parts)]
    mask = np.zeros(size, "u1")
    for part in range(parts):
        mask[(part + 1) * size // parts - 1] = 0x80 if flip[part] else 0  # the sign of a little-endian float
    made, left = blake3(), b""
    for block in source.row_major(view):
        data = left + bytes(block)
        stop = len(data) - len(data) % size
        left = data[stop:]
        made.update((np.frombuffer(data[:stop], "u1").reshape(-1, size) ^ mask).tobytes())
    return str(made.hexdigest())
