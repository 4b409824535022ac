"""Windows as streams of blocks, to compare many of them in parallel and in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from math import prod
from queue import SimpleQueue
from typing import TypeVar

from paramtool.engine.read.blocks import RUN, blocks, spread
from paramtool.engine.read.crcs import Sums
from paramtool.engine.read.elements import Array, equal, room
from paramtool.engine.read.source import BYTE, Buffer, Source
from paramtool.engine.read.threads import threaded
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

MAX_BLOCK_NBYTES = 1 << 20
"""Blocks that fit a processor's cache are compared fastest."""
MIN_BLOCK_NBYTES = 1 << 12
THREADS = 2
"""Comparing is limited by memory speed: more than two threads gained nothing on the machines it was measured on."""
TILES_NBYTES = 80 << 20
"""How many bytes of a window are held at once, by all threads, to compare them with one in another order."""
THREADS_NBYTES = 4 << 20
"""Smaller windows are compared by one thread."""
SMALL_NBYTES = 1 << 20
"""Tasks that read less than this together take less time than to start threads for them."""


def block_nbytes(memory: int, streams: int) -> int:
    """How many bytes of each stream may be held at once, so that all threads together stay within a budget."""
    share = memory // (2 * THREADS * max(streams, 1))
    return max(MIN_BLOCK_NBYTES, min(MAX_BLOCK_NBYTES, share - share % MIN_BLOCK_NBYTES))


class Stream:
    """The row-major bytes of a window, block by block."""

    def __init__(self, source: Source, view: View) -> None:
        self._source = source
        self._view = view
        self._at = view.byte_start
        self._blocks: Iterator[Buffer] | None = None if view.is_contiguous else source.row_major(view)
        self._rest = memoryview(b"")

    def into(self, buffer: Array) -> None:
        """Fill a buffer of bytes with the next block; the stream must have that many bytes left."""
        if self._blocks is None:
            self._source.read_into(self._view.number, self._at, buffer.data)
            self._at += buffer.nbytes
            return
        at = 0
        while at < buffer.nbytes:
            self._rest = self._rest or memoryview(next(self._blocks))
            count = min(len(self._rest), buffer.nbytes - at)
            buffer.data[at : at + count] = self._rest[:count]
            self._rest = self._rest[count:]
            at += count


def squeezed(*views: View) -> tuple[View, ...]:
    """Windows of one shape without the axes along which all repeat their elements, since these may be endless."""
    shape = views[0].shape
    if 0 in shape:
        return views
    keep = [k for k, size in enumerate(shape) if size > 1 and any(view.strides[k] for view in views)]
    return tuple(v.with_axes(tuple(v.shape[k] for k in keep), tuple(v.strides[k] for k in keep)) for v in views)


def _is_gapless(view: View) -> bool:
    """Whether a window touches every element from its first to its last, as far as nested strides show it."""
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in view.axes):
        if stride > reach + 1:
            return False
        reach += (size - 1) * stride
    return True


def same_window(
    a_source: Source, a: View, b_source: Source, b: View, *, threads: int = 1, proves: bool = False
) -> bool:
    """Whether two windows of one dtype and shape hold the same bytes; stops at the first piece that differs.

    With `proves` the CRCs that their containers state are compared, or begun: that of `a` from what is read, if it can.
    """
    if not a.numel:
        return True
    if a.nbytes < THREADS_NBYTES or not (a_source.share([a]) and b_source.share([b])):
        threads = 1
    a, b = squeezed(a, b)
    if a.strides == b.strides and a.byte_stop - a.byte_start < a.nbytes:  # both repeat elements in the same way
        spans = (View(view.storage, BYTE, view.byte_start, (a.byte_stop - a.byte_start,), (1,)) for view in (a, b))
        one, other = spans
        is_same = same_window(a_source, one, b_source, other, threads=threads, proves=proves)
        if is_same or _is_gapless(a):
            return is_same
    for source in (a_source, b_source):
        source.nbytes_read += a.nbytes
    if a.is_contiguous and b.is_contiguous:
        a, b = (View(view.storage, BYTE, view.byte_start, (view.nbytes,), (1,)) for view in (a, b))
    order = sorted(range(len(a.shape)), key=lambda k: -a.strides[k])  # as the first one lies in its storage
    shape, size = tuple(a.shape[k] for k in order), a.dtype.block_bytes
    is_plain = a.is_contiguous and b.is_contiguous
    most = max(1, (MAX_BLOCK_NBYTES if is_plain else max(MAX_BLOCK_NBYTES, TILES_NBYTES // threads)) // size)
    sealed = a_source.stated(a.number, a.byte_start, a.byte_stop - a.byte_start) if proves else None
    sums = Sums() if sealed and a_source.is_unproved(sealed) and prod(shape[1:]) * RUN <= most else None
    if proves:
        b_source.prove_later(b.number)
        if sums is None:
            a_source.prove_later(a.number)
    left, right = a_source.array(a, sums).transpose(order), b_source.array(b).transpose(order)

    def same_box(box: tuple[slice, ...]) -> bool:
        lows = [at.start for at in box]
        lengths = tuple(at.stop - at.start for at in box)
        with room(size * prod(lengths)) as held:
            there = right.read(box, held)
            for part in blocks(lengths, max(1, MAX_BLOCK_NBYTES // size)):
                here = tuple(slice(low + at.start, low + at.stop) for low, at in zip(lows, part, strict=True))
                with room(size * prod(at.stop - at.start for at in part)) as one:
                    if not equal(left.read(here, one), there[part]):
                        return False
        return True

    with closing(threaded(same_box, spread((left, right), shape, most), threads)) as answers:
        is_same = all(answers)
    if sealed and sums:
        crc = sums.joined(sealed.nbytes)
        if crc is None:
            a_source.prove_later(a.number)
        else:
            a_source.compare(sealed, crc)
    return is_same


Task = TypeVar("Task")
Answer = TypeVar("Answer")


@dataclass
class Pool:
    """Sources of one checkpoint for several threads, each with open files of its own."""

    checkpoint: Checkpoint
    memory: int

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        self._free: SimpleQueue[Source] = SimpleQueue()
        self._all: list[Source] = []

    def __enter__(self) -> Pool:
        self.source = self._stack.enter_context(Source(self.checkpoint))
        """For work that one thread has to do: decoded storages are stored once."""
        for _ in range(min(THREADS, os.cpu_count() or 1)):
            self._all.append(self._stack.enter_context(Source(self.checkpoint)))
            self._free.put(self._all[-1])
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def nbytes_read(self) -> int:
        """Bytes that were read from storages by all threads."""
        return sum(source.nbytes_read for source in [self.source, *self._all])

    def block_nbytes(self, streams: int) -> int:
        """How many bytes of each stream one task may hold."""
        return block_nbytes(self.memory, streams)

    def map(
        self, work: Callable[[Source, Task], Answer], tasks: Iterable[tuple[Task, Iterable[View]]]
    ) -> Iterator[Answer]:
        """The results of `work` in the order of the tasks; each task comes with the windows that it reads."""

        def borrowing(task: Task) -> Answer:
            with self.borrowed() as source:
                return work(source, task)

        listed, nbytes = [], 0
        for task, views in tasks:
            read = list(views)
            listed.append((task, self.is_plain(read)))
            nbytes += sum(view.nbytes for view in read)
        plain_tasks = [task for task, plain in listed if plain]
        if nbytes < SMALL_NBYTES:
            answers: Generator[Answer] = (borrowing(task) for task in plain_tasks)
        else:
            answers = threaded(borrowing, plain_tasks, len(self._all))
        with closing(answers):
            for task, plain in listed:
                yield next(answers) if plain else work(self.source, task)

    @contextmanager
    def borrowed(self) -> Iterator[Source]:
        """One of the sources for a thread."""
        source = self._free.get()
        try:
            yield source
        finally:
            self._free.put(source)

    def is_plain(self, views: Iterable[View]) -> bool:
        """Whether the bytes are in the file unencoded."""
        storages = self.checkpoint.storages
        return all(isinstance(storages[view.number].backing, ByteRange) for view in views)
