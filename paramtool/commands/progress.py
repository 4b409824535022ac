"""What all commands share: paths, and progress that somebody may look at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

Path = str | os.PathLike[str]
Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""`with progress("writing", nbytes) as advance: advance(n)`."""


def several(paths: Path | Sequence[Path]) -> Sequence[Path]:
    """Paths, of which one may stand alone."""
    return [paths] if isinstance(paths, (str, os.PathLike)) else paths


MEMORY_NBYTES = 512 << 20
"""What comparing may hold in memory, unless it is told otherwise."""
MIN_EQUAL_NBYTES = 4096
"""Smaller tensors are not compared: counters and scales are equal by chance."""


@contextmanager
def silent(label: str, total: int) -> Iterator[Advance]:
    """Progress that nobody looks at."""
    yield lambda nbytes: None
