"""The digests of tensors and of the files that hold them, from one reading of each file.

A file is read once from the beginning to the end.  Each block goes to up to four hashers: in threads, to the sha256 of
the file, which takes longest, and to counts of numbers that are not finite if they are asked for; beside them, to
blake3 of each tensor whose bytes are a run of the file, and to the CRCs that the container states.  Tensors that
have to be decoded, gathered or put together from several files are read apart (`digests`).
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

from paramtool.engine.read.crcs import Crcs
from paramtool.engine.read.digests import THREADS_NBYTES, Advance, Signed, digests, distinct_nbytes
from paramtool.engine.read.finite import Counter, NotFinite, has_nonfinite
from paramtool.engine.read.open_files import CHUNK_NBYTES, OpenFiles
from paramtool.engine.read.threads import Promise, Threads
from paramtool.formats.files import read_at
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.storage import ByteRange, SourceFile
from paramtool.model.view import View

BUFFERS = 6
"""Blocks of CHUNK_NBYTES that are in memory at once."""
MOST_AT_ONCE = 64
"""Tensors that one byte may belong to; others on it are read apart."""
Take = Callable[[memoryview, int], None]
"""Takes a block of a file, and where it begins there; blocks come in order."""


class Hasher(Protocol):
    """What bytes are given to, in order."""

    def update(self, data: memoryview, /) -> object:
        """Take the next bytes."""


class FileRun(NamedTuple):
    """Bytes `start` to `stop` of a file, and what they are of."""

    start: int
    stop: int
    key: Any


class Hashes(NamedTuple):
    """What one reading found."""

    tensors: Mapping[Signed, str]
    """blake3 of each window, as of `digests`."""
    files: Mapping[str, str]
    """{path: sha256}"""
    numbers: Mapping[View, NotFinite] = {}
    """What of the windows that are runs of a file is not finite, if that was asked for."""


class HashPlan:
    """Which windows are hashed while their file is read, and which are read apart."""

    def __init__(
        self, checkpoint: Checkpoint, windows: Iterable[Signed], paths: Sequence[str], *, counts: bool = False
    ) -> None:
        """`paths` are the files of the checkpoint whose sha256 is asked for; `counts`: and what is not finite there."""
        self._checkpoint, self._counts = checkpoint, counts
        self._numbers: dict[View, NotFinite] = {}
        self._files = {file.path: file for file in checkpoint.files if file.path in set(paths)}
        self._runs: dict[str, list[FileRun]] = {path: [] for path in self._files}
        self._apart: list[Signed] = []
        for window in dict.fromkeys(windows):
            path, run = self._run(window)
            self._runs[path].append(run) if run else self._apart.append(window)
        for path, runs in self._runs.items():
            # Runs in the order of their bytes, of which few overlap at any byte; and the others
            kept, others = [], []
            stops: list[int] = []
            for run in sorted(runs, key=lambda one: (one.start, one.stop)):
                while stops and stops[0] <= run.start:
                    heappop(stops)
                if len(stops) < MOST_AT_ONCE:
                    heappush(stops, run.stop)
                    kept.append(run)
                else:
                    others.append(run)
            self._runs[path], more = kept, others
            self._apart += (run.key for run in more)

    def _run(self, window: Signed) -> tuple[str, FileRun | None]:
        """The file that a window is a run of, and where; None where it has to be read apart."""
        view, sign = window
        backing = self._checkpoint.storage_of(view).backing
        if sign or not view.numel or not view.is_contiguous or not isinstance(backing, ByteRange):
            return "", None
        if backing.file not in self._runs or backing.start + view.byte_stop > self._files[backing.file].nbytes:
            return "", None
        return backing.file, FileRun(backing.start + view.byte_start, backing.start + view.byte_stop, window)

    @property
    def nbytes(self) -> int:
        """The bytes that are read."""
        return sum(file.nbytes for file in self._files.values()) + distinct_nbytes(self._apart)

    def carried_out(self, memory: int, advance: Advance = lambda nbytes: None) -> Hashes:
        """Read everything.

        FormatError where bytes do not have the CRC that their container states; UnreadableError where a file changed
        since it was described, or cannot be read.
        """
        found: dict[Signed, str] = {}
        known: dict[str, str] = {}
        crcs, files = Crcs(self._checkpoint), OpenFiles(self._checkpoint.files, 1)
        try:
            for path, source in self._files.items():
                known[path] = self._read(source, files, crcs, found, advance=advance)
        finally:
            files.close()
        if self._files:
            files.check_unchanged()
        if self._apart:
            found.update(digests(self._checkpoint, self._apart, memory, advance))
        return Hashes(found, known, self._numbers)

    def _read(
        self, source: SourceFile, files: OpenFiles, crcs: Crcs, found: dict[Signed, str], *, advance: Advance
    ) -> str:
        """Read one file: its sha256; the digests of its tensors go to `found`."""
        from blake3 import blake3

        whole, runs = sha256(usedforsecurity=False), self._runs[source.path]
        sealed = [FileRun(one.start, one.stop, one) for one in self._sealed(runs, crcs)]
        tensors = RunHashers(runs, lambda _: blake3(), lambda run, made: found.__setitem__(run.key, made.hexdigest()))
        stated = RunHashers(sealed, lambda _: _Crc32(), lambda run, made: crcs.compare(run.key, made.value))
        counted = [run._replace(key=run.key[0]) for run in runs if self._counts and has_nonfinite(run.key[0].dtype)]
        numbers = RunHashers(
            counted, lambda run: Counter(run.key.dtype), lambda run, made: self._numbers.update({run.key: made.found})
        )
        apart: list[Take] = [lambda block, _: whole.update(block), *([numbers.take] if counted else [])]
        file = files.open(source.path)
        ring = deque(memoryview(bytearray(min(CHUNK_NBYTES, source.nbytes))) for _ in range(BUFFERS))
        taken: deque[list[Promise[None]]] = deque()
        with ExitStack() as stack:
            threads = [stack.enter_context(Threads(1)) for _ in apart if source.nbytes >= THREADS_NBYTES]
            for at in range(0, source.nbytes, CHUNK_NBYTES):
                if len(taken) == BUFFERS:
                    _wait(taken.popleft())
                ring.rotate()
                block = ring[0][: source.nbytes - at]
                read_at(file, at, block)
                taken.append([one.submit(partial(take, block, at)) for one, take in zip(threads, apart, strict=False)])
                for take in (*apart[len(threads) :], tensors.take, stated.take):
                    take(block, at)
                advance(len(block))
            for promises in taken:
                _wait(promises)
        return whole.hexdigest()

    def _sealed(self, runs: Iterable[FileRun], crcs: Crcs) -> set[ByteRange]:
        """The ranges with a CRC that tensors are in."""
        found = set()
        for run in runs:
            backing = self._checkpoint.storages[int(run.key[0].storage)].backing
            assert isinstance(backing, ByteRange)
            sealed = backing if backing.crc32 is not None else crcs.around(backing)
            found.update([sealed] if sealed else [])
        return found


class _Crc32:
    """The CRC of bytes, as zip files have it."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, data: memoryview, /) -> None:
        """Take the next bytes."""
        self.value = zlib.crc32(data, self.value)


class RunHashers:
    """Hashers for runs of a file, which may overlap: each gets its bytes of the blocks that come."""

    def __init__(
        self, runs: Sequence[FileRun], made: Callable[[FileRun], Any], done: Callable[[FileRun, Any], None]
    ) -> None:
        """`runs` are not empty; `done` gets each run and its hasher once all of its bytes have come."""
        self.runs = sorted(runs, key=lambda run: (run.start, run.stop))
        self._made, self._done = made, done
        self._next = 0
        self._open: list[tuple[FileRun, Hasher]] = []

    def take(self, block: memoryview, at: int) -> None:
        """Take the block that begins at a byte of the file."""
        stop = at + len(block)
        while self._next < len(self.runs) and self.runs[self._next].start < stop:
            self._open.append((self.runs[self._next], self._made(self.runs[self._next])))
            self._next += 1
        left = []
        for run, hasher in self._open:
            hasher.update(block[max(run.start - at, 0) : run.stop - at])
            if run.stop <= stop:
                self._done(run, hasher)
            else:
                left.append((run, hasher))
        self._open = left


def _wait(promises: Iterable[Promise[None]]) -> None:
    """Wait until a block was taken; what a function raised is raised here."""
    for promise in promises:
        promise.result()
