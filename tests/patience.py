"""How long a test waits for another process: longer than any machine that works takes, so that only a hang ends it.

No test measures time.  What must not take long is counted in calls instead, which are as many on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

PATIENCE = 900.0
"""Seconds."""


def calls(function: Callable[[], object]) -> int:
    """How many functions, Python's and C's, are called while a function runs in this thread."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
