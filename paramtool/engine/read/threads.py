"""Work in several threads that any signal can end.

`concurrent.futures` takes locks in Python code: where a signal's handler raises between taking one and the block that
releases it (`Condition.__enter__`), a thread waits for that lock for ever.  Here the main thread waits in queues that
are written in C, and starts threads while signals are held.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from paramtool.engine.signals import held

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def threaded(work: Callable[[Task], Answer], tasks: Sequence[Task], threads: int) -> Generator[Answer]:
    """The results of `work`, in the order of the tasks; an error of a task is raised where its result would be.

    If the caller stops, or is interrupted, tasks that have begun are finished, and no other one begins.
    """
    todo: SimpleQueue[tuple[int, Task] | None] = SimpleQueue()
    done: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
    is_stopped = False

    def run() -> None:
        while (item := todo.get()) is not None and not is_stopped:
            number, task = item
            try:
                done.put((number, work(task), None))
            except BaseException as error:
                done.put((number, None, error))

    for item in enumerate(tasks):
        todo.put(item)
    started = [Thread(target=run, daemon=True) for _ in range(min(threads, len(tasks)))]
    for _ in started:
        todo.put(None)
    try:
        with held():
            for thread in started:
                thread.start()
        ready: dict[int, tuple[Any, BaseException | None]] = {}
        for number in range(len(tasks)):
            while number not in ready:
                which, answer, error = done.get()
                ready[which] = answer, error
            answer, error = ready.pop(number)
            if error is not None:
                raise error
            yield answer
    finally:
        is_stopped = True
        for thread in started:
            if thread.ident is not None:
                thread.join()
