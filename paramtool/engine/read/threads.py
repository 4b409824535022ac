"""Work in several threads that any signal can end.

`concurrent.futures` takes locks in Python code: where a signal's handler raises between taking one and the block that
releases it (`Condition.__enter__`), a thread waits for that lock for ever.  Here the main thread waits in queues that
are written in C, and starts threads while signals are held.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import chain, islice
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from paramtool.engine.signals import held

Task = TypeVar("Task")
Answer = TypeVar("Answer")
CORES = os.cpu_count() or 1
"""How many threads have work at once; copies, comparisons and hashes run without Python's lock."""
AHEAD = 256
"""How many tasks are begun or waiting beside the one whose result is asked for."""


class Promise(Generic[Answer]):
    """What a thread will answer."""

    def __init__(self, work: Callable[[], Answer]) -> None:
        self._work = work
        self._came: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def keep(self) -> None:
        """Do the work, in this thread."""
        try:
            self._came.put((self._work(), None))
        except BaseException as error:
            self._came.put((None, error))

    def result(self) -> Answer:
        """Wait for the answer; what the work raised is raised here.  It can be asked for once."""
        answer, error = self._came.get()
        if error is not None:
            raise error
        found: Answer = answer
        return found


class Threads:
    """At most `most` threads, each started when there is work for it.  A context manager.

    At its end, work that has begun is finished, no other begins, and no thread is left.
    """

    def __init__(self, most: int = CORES) -> None:
        self._most = most
        self._todo: SimpleQueue[Promise[Any] | None] = SimpleQueue()
        self._started: list[Thread] = []
        self._is_stopped = False

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, work: Callable[[], Answer]) -> Promise[Answer]:
        """Have work done; what is given first begins first."""
        promise = Promise(work)
        self._todo.put(promise)
        if len(self._started) < self._most:
            with held():
                self._started.append(Thread(target=self._run, daemon=True))
                self._started[-1].start()
        return promise

    def _run(self) -> None:
        while (promise := self._todo.get()) is not None and not self._is_stopped:
            promise.keep()

    def close(self) -> None:
        """Wait for the threads; what they have not begun is left."""
        self._is_stopped = True
        for _ in self._started:
            self._todo.put(None)
        for thread in self._started:
            if thread.ident is not None:
                thread.join()
        self._started.clear()


def threaded(work: Callable[[Task], Answer], tasks: Iterable[Task], threads: int = CORES) -> Generator[Answer]:
    """The results of `work`, in the order of the tasks; an error of a task is raised where its result would be.

    If the caller stops, or is interrupted, tasks that have begun are finished, and no other one begins.
    """
    tasks = iter(tasks)
    first = list(islice(tasks, 2))
    if threads < 2 or len(first) < 2:
        yield from map(work, chain(first, tasks))
        return
    with Threads(threads) as started:
        waiting: deque[Promise[Answer]] = deque()
        for task in chain(first, tasks):
            waiting.append(started.submit(partial(work, task)))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
