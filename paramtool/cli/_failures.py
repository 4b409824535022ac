"""How a command fails: the exit code, what is said on standard error, and the same as a JSON document."""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress

import click

from paramtool.cli._render import told
from paramtool.cli._streams import quoted, shown
from paramtool.errors import MissingFileError, ParamtoolError, bounded, internal
from paramtool.lazy_dataclass import frozen

PACKAGES = ("numpy", "ml_dtypes", "blake3", "safetensors", "rich", "tomli")
"""What pyproject.toml requires and a single-file build lacks, for `inspect` without tensors needs none of them."""


LIKENESS = 0.8
"""How alike the name of a file is that may have been meant."""


class Interrupted(BaseException):
    """A signal asked for the end; it unwinds through every `except Exception`, so that temporary files are removed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ClosedPipe(Exception):
    """Whoever read standard output has stopped."""


caught: list[int] = []
"""Signals that came: whatever exception arrives after one is its echo."""


@frozen
class Failure:
    """An error that ends a command, or the work on one of its files."""

    code: int
    """The exit code."""
    message: str
    hint: str = ""
    """What to do next; may be empty."""
    text: str = ""
    """What a terminal shows instead of message and hint: click's own words for a wrong command line."""

    _schema = "error/1"
    _members = "exit_code=code message hint"

    def complain(self) -> None:
        """Say it on standard error."""
        usage, is_error, text = self.text.partition("Error: ")
        said = {"Error": text.rstrip("\n")} if is_error else {} if usage else {"error": self.message, "hint": self.hint}
        lines = "".join(f"{told(label, shown(text, lines=True))}\n" for label, text in said.items() if text)
        with suppress(OSError):
            click.echo(usage + lines, err=True, nl=False, color=True)


def failure(error: BaseException) -> Failure | None:
    """The failure that an error means; None for what is not an error of the command.

    These are signals and their echoes, a standard output that nobody reads or that is full, and, for whoever debugs,
    our own defects.
    """
    if caught:
        return None
    match error:
        case ClosedPipe() | BrokenPipeError():
            return None
        case click.ClickException(exit_code=code):
            text, context = io.StringIO(), getattr(error, "ctx", None)
            error.show(file=text)
            hint = f"{context.command_path} --help" if context else ""
            return Failure(code, error.format_message(), hint, text.getvalue())
        case ParamtoolError(exit_code=code, hint=hint):
            return Failure(
                code, error.message, hint or (_near(error.path) if isinstance(error, MissingFileError) else "")
            )
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return Failure(3, "too many open files", "`ulimit -n 1024` allows more")
        case FileNotFoundError(filename=None):  # os.getcwd
            return Failure(3, "the current folder was deleted", "change to a folder that exists")
        case OSError(filename=None):
            return None
        case OSError():
            return Failure(3, bounded(f"{os.fsdecode(error.filename)}: {error.strerror or type(error).__name__}"))
        case click.exceptions.Abort() | click.exceptions.Exit():
            return None
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] in PACKAGES:
            hint = "pip install paramtool installs everything that the commands need"
            return Failure(2, f"this command needs the package {name.partition('.')[0]}, which is not installed", hint)
        case Exception():
            return failure(internal(error))
    return None


def _near(path: str) -> str:
    """The names beside a path that is not there, one of which may have been meant; empty where none is alike."""
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    with suppress(OSError):
        near = get_close_matches(name, os.listdir(folder or "."), 2, LIKENESS)
        return f"did you mean {' or '.join(quoted(os.path.join(folder, one)) for one in near)}?" if near else ""
    return ""
