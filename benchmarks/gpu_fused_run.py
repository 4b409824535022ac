"""A run of gpu_fused.py: how it ends, and how it writes.

Every ending is an exit code and at most one line; none of them is a traceback.

0 measured      1 a configuration failed, or nothing was measured      2 cannot be done as asked
7 cannot be written      130 Ctrl-C      143 SIGTERM      141 nobody reads stdout any more
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from paramtool.cli._streams import prepare_streams, shown
from paramtool.engine.write.places import check_place, writing
from paramtool.engine.write.staging import Staged
from paramtool.errors import OutputError, ParamtoolError

# --- ending ----------------------------------------------------------------------------------------------

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CLOSED_PIPE = 141
"""What a shell shows for a program that SIGPIPE ended."""
CANNOT_WRITE = 7


class Interrupted(BaseException):
    """A signal asked for the end; it unwinds through every `except Exception`, so that temporary files are removed."""


_caught: list[int] = []
"""Signals that came: whatever exception arrives after one is its echo."""


def interrupted_code() -> int | None:
    """The exit code of the signal that came; None where none did."""
    return 128 + _caught[0] if _caught else None


def go_on() -> None:
    """Interrupted where a signal came, and somebody's `except` swallowed it."""
    if _caught:
        raise Interrupted


def ended(run: Callable[[], int]) -> int:
    """The exit code of a run, after one line about what ended it."""
    prepare_streams()
    _caught.clear()
    try:
        with _interruptible():
            code = _code_of(run)
            sys.stdout.flush()
            return code
    except Interrupted:
        say("gpu_fused: interrupted")
        return interrupted_code() or 1
    except BrokenPipeError:
        return CLOSED_PIPE
    except OSError as error:
        where = "standard output" if error.filename is None else os.fsdecode(error.filename)
        say(f"gpu_fused: {where}: {error.strerror or type(error).__name__}")
        return CANNOT_WRITE
    except ParamtoolError as error:
        say("\n".join(filter(None, [f"gpu_fused: {error}", error.hint])))
        return error.exit_code
    finally:
        _silence()


def _code_of(run: Callable[[], int]) -> int:
    """Of argparse, too, which ends by SystemExit: what it printed is flushed, like all else."""
    try:
        return run()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Signals unwind like an exception; those that are ignored (nohup) stay so."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in taken:
            signal.signal(number, _interrupt)
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    _caught.append(number)
    raise Interrupted


def _silence() -> None:
    """Send what a stream could not take to nowhere: Python would try again at its end, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(words: str) -> None:
    """To stderr; a sweep does not end because nobody listens."""
    with suppress(OSError):
        print(shown(words, lines=True), file=sys.stderr, flush=True)


# --- output ----------------------------------------------------------------------------------------------


class Output:
    """A file that a run writes, perhaps many times; each time whole or not at all."""

    def __init__(self, path: str, flag: str, force: bool, inputs: Sequence[str] = ()) -> None:
        self.path = path
        self.flag = flag
        """What asked for it: said in errors."""
        self.force = force
        self.inputs = inputs
        """Files that are read, and so never overwritten."""
        self._made: list[tuple[int, ...]] = []
        """What was written last, and before: an interruption can come before the last has its place."""

    def check(self) -> None:
        """OutputError where it could not be written; asked before the time is spent, and nothing is left of it."""
        with self._staged():
            pass

    def write_json(self, document: Any) -> None:
        """OutputError if that is impossible, or if the file was not written by this run."""
        self.write(lambda path: _write_json(document, path))

    def write(self, make: Callable[[str], object]) -> None:
        """Let `make` write to a temporary place, and move that here."""
        with self._staged() as staged:
            with writing(self.path):
                make(staged.temporary)
            self._made = [*self._made[-1:], _identity(os.lstat(staged.temporary))]
            staged.commit()

    @property
    def is_ours(self) -> bool:
        """Whether the existing file was written by this run."""
        try:
            return _identity(os.lstat(self.path)) in self._made
        except OSError:
            return False

    def _staged(self) -> Staged:
        if not self.path:
            raise OutputError(f"{self.flag}: the name is empty", hint=f"{self.flag} FILE")
        if os.path.isdir(self.path):
            raise OutputError(f"{self.flag}: {self.path}: is a folder, not a file", hint=f"{self.flag} FILE")
        try:
            force = self.force or self.is_ours
            check_place(self.path, False, force, self.inputs)
            return Staged(self.path, False, force, self.inputs)
        except OutputError as error:
            hint = re.sub(r"(?<!\S)-o\b", self.flag, error.hint)  # where the place of something else is told of
            raise OutputError(f"{self.flag}: {error}", hint=hint) from None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """An inode alone does not do: that of a file which was replaced is soon another's."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _write_json(document: Any, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
