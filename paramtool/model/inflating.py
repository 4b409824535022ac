"""How many bytes may be inflated, assembled or calculated: a few bytes of a file can expand to a huge number.

The limit applies to each opening of a checkpoint's bytes.  `--max-inflated`, or the keyword `max_inflated` of the
library's functions, sets it for everything that the call reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from paramtool.errors import UnsafeError, UsageError

USUAL_NBYTES = 32 * 10**9
USUAL_PER_FILE_BYTE = 16
"""The default limit is 32 GB, or 16 times the bytes of the files where that is more."""

P = ParamSpec("P")
R = TypeVar("R")
_asked: ContextVar[int | None] = ContextVar("max_inflated", default=None)


def set_limit(nbytes: int | None) -> None:
    """Set the limit for everything that this process reads from now on; None is the default limit."""
    _asked.set(nbytes)


def check(nbytes: int | None) -> None:
    """Raise UsageError if a limit is negative."""
    if nbytes is not None and nbytes < 0:
        raise UsageError(f"--max-inflated is {nbytes}; expected a number of bytes")


@contextmanager
def limited(nbytes: int | None) -> Iterator[None]:
    """Set the limit for what is opened inside the block; None changes nothing.  UsageError where it is negative."""
    check(nbytes)
    token = _asked.set(_asked.get() if nbytes is None else nbytes)
    try:
        yield
    finally:
        _asked.reset(token)


def limiting(function: Callable[P, R]) -> Callable[P, R]:
    """Apply the keyword `max_inflated` of a function, or of its options, while the function runs."""

    @functools.wraps(function)
    def kept(*args: P.args, **kwargs: P.kwargs) -> R:
        options = (getattr(one, "max_inflated", None) for one in (*args, *kwargs.values()))
        said = kwargs.get("max_inflated")
        found = said if isinstance(said, int) else next((one for one in options if one is not None), None)
        with limited(found):
            return function(*args, **kwargs)

    return kept


class Budget:
    """How many bytes may still be made from some files."""

    def __init__(self, files_nbytes: int) -> None:
        asked = _asked.get()
        self._most = max(USUAL_NBYTES, USUAL_PER_FILE_BYTE * files_nbytes) if asked is None else asked
        self._spent = 0

    def spend(self, where: str, nbytes: int) -> None:
        """Count bytes before they are made; UnsafeError where they exceed the limit."""
        self._spent += nbytes
        if self._spent > self._most:
            raise UnsafeError(
                f"{where}: {self._spent} bytes would be inflated or calculated; the limit is {self._most}",
                hint=f"--max-inflated {self._spent} allows it, if the file is trusted",
            )
