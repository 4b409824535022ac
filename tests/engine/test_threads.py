"""Work in threads: results in order, errors at their place, and an end at any moment."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.engine.read.threads import threaded
from tests.patience import PATIENCE


@given(st.lists(st.integers(), max_size=30), st.integers(1, 4))
def test_results_come_in_the_order_of_the_tasks(tasks: list[int], threads: int) -> None:
    assert list(threaded(lambda task: task * 2, tasks, threads)) == [task * 2 for task in tasks]


def test_an_error_is_raised_where_its_result_would_be() -> None:
    answers = threaded(lambda task: 1 // task, [1, 1, 0, 1], 2)
    assert [next(answers), next(answers)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(answers)


def test_no_task_begins_once_the_caller_has_stopped() -> None:
    ran: list[int] = []
    answers = threaded(lambda task: ran.append(task) or time.sleep(0.001), range(1000), 2)
    next(answers)
    answers.close()
    count = len(ran)
    assert count < 1000
    time.sleep(0.02)
    assert len(ran) == count


MANY_MOMENTS = """
import signal
from paramtool.engine import signals
from paramtool.engine.read.threads import threaded

def stop(number, frame):
    raise KeyboardInterrupt

signals.SIGNALS += (signal.SIGALRM,)  # a timer stands for who presses Ctrl-C
signal.signal(signal.SIGALRM, stop)
for moment in range(1, 120):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, moment / 20_000)
            list(threaded(lambda task: task, range(3000), 2))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
assert list(threaded(lambda task: task, range(9), 2)) == list(range(9))
print("ended")
"""


def test_a_signal_at_any_moment_ends_it() -> None:
    """A handler that raises, at many moments of many tasks: threads end, the next run works, the process exits."""
    done = subprocess.run([sys.executable, "-c", MANY_MOMENTS], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
