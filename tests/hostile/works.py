"""Work that goes wrong, for `formats/sandbox.py`: each function is run in a worker."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO


def content(file: BinaryIO, pieces: int = 1) -> Iterator[bytes]:
    """The file, so many times."""
    for _ in range(pieces):
        file.seek(0)
        yield file.read()


def loop(file: BinaryIO) -> Iterable[bytes]:
    """Never comes back, and lets no signal handler run: as a library written in C does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def loop_behind_a_byte(file: BinaryIO) -> Iterator[bytes]:
    """Says something first."""
    yield b"x"
    loop(file)


def crash(file: BinaryIO) -> Iterable[bytes]:
    """As over a wild pointer."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def hog(file: BinaryIO) -> Iterable[bytes]:
    """Takes all memory."""
    held = []
    while True:
        held.append(bytes(16 << 20))


def vanish(file: BinaryIO) -> Iterator[bytes]:
    """Ends in the middle of what it says."""
    yield b"half"
    os._exit(0)


def refuse(file: BinaryIO) -> Iterable[bytes]:
    """Says what is wrong with the file."""
    raise ValueError("byte 7 is\nodd \ud800" + "x" * 5000)


def write(file: BinaryIO) -> Iterable[bytes]:
    """Writes into a file, which no worker may."""
    with tempfile.TemporaryFile() as made:
        made.write(b"x")
    return []
