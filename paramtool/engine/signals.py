"""Delays signals, so that a few system calls that belong together are not interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a program to end and can be delayed; Windows has no SIGHUP."""


@contextmanager
def held() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the block is left; each is then delivered as usual.

    Only the main thread of Python handles signals; in another thread there is nothing to delay.
    """
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    handlers = {}
    try:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None and handler != signal.SIG_IGN:  # None: not set from Python, which cannot restore it
                handlers[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        with _blocked():
            for number, handler in handlers.items():
                signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


@contextmanager
def _blocked() -> Iterator[None]:
    """Block signals while all handlers are restored."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
