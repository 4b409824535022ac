"""Two checkpoints side by side: which pairs of windows hold the same bytes, or are casts of each other."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Lock
from typing import TypeVar

from paramtool.engine.compare.casts import cast_verdict
from paramtool.engine.compare.changes import WindowPair, measured, number_types
from paramtool.engine.compare.equal import Window, partition
from paramtool.engine.read.pairs import same_windows
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import Pool
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.diff import Distance
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

Advance = Callable[[int], None]
Task = TypeVar("Task")
Answer = TypeVar("Answer")
SIDES = 2


CONSTANT_NBYTES = 256 << 20
"""Larger windows are no biases."""


class Sides:
    """Two open checkpoints, for several threads.  A context manager."""

    def __init__(self, a: Checkpoint, b: Checkpoint, memory: int, rtol: float = 0.0) -> None:
        """`memory` is the most bytes that all comparisons together may hold, `rtol` of numbers as of numpy.allclose."""
        self._rtol = rtol
        self._stack = ExitStack()
        self._lock = Lock()
        self._known: dict[str, tuple[int, int]] = {}
        self._same: dict[WindowPair, bool] = {}
        self.a, self.b = Pool(a, memory), Pool(b, memory)

    def __enter__(self) -> Sides:
        for pool in (self.a, self.b):
            self._stack.enter_context(pool)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def nbytes_read(self) -> int:
        """Bytes that were read of both."""
        return self.a.nbytes_read + self.b.nbytes_read

    @property
    def sources(self) -> tuple[Source, Source]:
        """What this thread reads of both."""
        return self.a.source, self.b.source

    def map(
        self, work: Callable[[Source, Source, Task], Answer], tasks: Iterable[tuple[Task, Iterable[WindowPair]]]
    ) -> Iterator[Answer]:
        """The results of `work` in the order of the tasks; each comes with the pairs that it reads."""
        listed = [(task, list(pairs)) for task, pairs in tasks]

        def both(a_source: Source, task: tuple[Task, bool]) -> Answer:
            if not task[1]:  # decoded once, and kept where one thread finds it
                with self._lock:
                    return work(self.a.source, self.b.source, task[0])
            with self.b.borrowed() as b_source:
                return work(a_source, b_source, task[0])

        plain = [self.a.is_plain(p.a for p in pairs) and self.b.is_plain(p.b for p in pairs) for _, pairs in listed]
        wrapped = [
            ((task, is_plain), [pair.a for pair in pairs])
            for (task, pairs), is_plain in zip(listed, plain, strict=True)
        ]
        return self.a.map(both, wrapped)

    def same(self, pairs: Iterable[WindowPair], advance: Advance = lambda nbytes: None) -> dict[WindowPair, bool]:
        """{pair of one dtype: whether it holds the same bytes}.

        What is one range of one file is not read, and no pair is read twice, whoever asks.
        """
        every = list(dict.fromkeys(pairs))
        new = [pair for pair in every if pair not in self._same and not self._is_one_window(pair)]
        windows = [(pair.a, pair.b) for pair in new]
        self._same.update(zip(new, same_windows(self.sources, windows, advance), strict=True))
        return {pair: self._same.get(pair, True) for pair in every}

    def _is_one_window(self, pair: WindowPair) -> bool:
        """Whether two windows are the same elements of one file, whatever protects its bytes."""
        places = []
        for pool, view in ((self.a, pair.a), (self.b, pair.b)):
            backing = pool.checkpoint.storage_of(view).backing
            if not isinstance(backing, ByteRange):
                return False
            places.append((self._identity(backing.file), backing.start + view.byte_start, view.strides))
        return places[0] == places[1]

    def are_same_files(self) -> bool:
        """Whether both checkpoints are read from the same files, or from copies of them: these are read whole."""
        a, b = ([file.path for file in pool.checkpoint.files] for pool in (self.a, self.b))
        return len(a) == len(b) and all(
            self._identity(one) == self._identity(other) or filecmp.cmp(one, other, shallow=False)
            for one, other in zip(a, b, strict=True)
        )

    def _identity(self, path: str) -> tuple[int, int]:
        if path not in self._known:
            status = os.stat(path)
            self._known[path] = status.st_dev, status.st_ino
        return self._known[path]

    def casts(self, tensors: Iterable[Sequence[WindowPair]]) -> Iterator[str]:
        """CAST, ROUNDED or CHANGED for each tensor, as the pairs that it is made of."""
        verdict = partial(cast_verdict, block_nbytes=self.a.block_nbytes(2 * SIDES))
        return self.map(verdict, ((pairs, pairs) for pairs in tensors))

    def changes(self, tensors: Iterable[Sequence[WindowPair]]) -> Iterator[Distance]:
        """How far tensors are apart, each as the pairs that it is made of."""
        return self.map(partial(measured, rtol=self._rtol), ((pairs, pairs) for pairs in tensors))

    def equal(self, groups: Iterable[tuple[list[View], list[View]]]) -> Iterator[list[tuple[list[int], list[int]]]]:
        """For windows of both of one dtype and shape: classes of equal ones, as positions in the two lists.

        Only classes with windows of both sides are given.
        """
        for left, right in groups:
            windows = [Window(self.a.source, view) for view in left] + [Window(self.b.source, view) for view in right]
            count = len(left)
            classes = (
                ([k for k in one if k < count], [k - count for k in one if k >= count]) for one in partition(windows)
            )
            yield [one for one in classes if one[0] and one[1]]


def is_number(source: Source, view: View, number: float) -> bool:
    """Whether every element of a window of moderate size is one number, bit by bit: -0.0 is not 0.0."""
    import numpy as np

    kinds = number_types(view, view)
    if kinds is None or view.nbytes > CONSTANT_NBYTES:
        return False
    found = source.array(view).all()
    return bool(found.tobytes() == np.full(found.shape, number, kinds[0]).tobytes())
