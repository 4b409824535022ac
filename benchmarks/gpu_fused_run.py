"""A run of gpu_fused.py: how it ends, and how it writes.

A run ends with an exit code and at most one line, never with a traceback.

0 measured      1 a configuration failed, or nothing was measured      2 bad arguments or no GPU
7 cannot be written      130 Ctrl-C      143 SIGTERM      141 stdout was closed
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
"""The exit code that a shell shows for a program that SIGPIPE ended."""
CANNOT_WRITE = 7


class Interrupted(BaseException):
    """A signal to end; it passes through every `except Exception`, so that temporary files are removed."""


_caught: list[int] = []
"""Signals that were received: any exception after one is a consequence of it."""


def interrupted_code() -> int | None:
    """The exit code of the signal that was received; None if there was none."""
    return 128 + _caught[0] if _caught else None


def go_on() -> None:
    """Raise Interrupted if a signal was received and an `except` suppressed it."""
    if _caught:
        raise Interrupted


def ended(run: Callable[[], int]) -> int:
    """The exit code of a run, after printing one line about what ended it."""
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
        say("\n".join(filter(None, [f"gpu_fused: {error.message}", error.hint])))
        return error.exit_code
    finally:
        _silence()


def _code_of(run: Callable[[], int]) -> int:
    """The exit code of a run, including argparse, which raises SystemExit; all output is flushed."""
    try:
        return run()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn signals into exceptions; signals that are ignored (nohup) stay ignored."""
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
    """Discard what a stream could not take: otherwise Python would try again at exit, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(words: str) -> None:
    """Print to stderr; a closed stderr does not end a sweep."""
    with suppress(OSError):
        print(shown(words, lines=True), file=sys.stderr, flush=True)


# --- output ----------------------------------------------------------------------------------------------


class Output:
    """A file that a run writes, perhaps several times; each time completely or not at all."""

    def __init__(self, path: str, flag: str, force: bool, inputs: Sequence[str] = ()) -> None:
        self.path = path
        self.flag = flag
        """The flag that names it, for errors."""
        self.force = force
        self.inputs = inputs
        """Input files, which are never overwritten."""
        self._made: list[tuple[int, ...]] = []
        """The identities of the last two versions: an interruption can come before the last is at its place."""

    def check(self) -> None:
        """OutputError if it cannot be written; checked before measuring, and nothing is left behind."""
        with self._staged():
            pass

    def write_json(self, document: Any) -> None:
        """OutputError if that is impossible, or if the file was not written by this run."""
        self.write(lambda path: _write_json(document, path))

    def write(self, make: Callable[[str], object]) -> None:
        """Let `make` write to a temporary path, and move the result to its place."""
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
            hint = re.sub(r"(?<!\S)-o\b", self.flag, error.hint)  # the hint names -o
            raise OutputError(f"{self.flag}: {error.message}", hint=hint) from None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """The identity of a file; the inode alone is not enough, since the inode of a replaced file is soon used again."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _write_json(document: Any, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
