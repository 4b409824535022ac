"""How much is printed, and how: the options that every command takes, and what the environment says of colour."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar

import click

from paramtool.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
WHEN = ("auto", "always", "never")


class Display:
    """What the command line says of printing."""

    def __init__(self) -> None:
        self.quiet = self.verbose = self.wide = self.as_json = False
        self.color = "auto"


current = Display()
"""Of the command that runs; `reset` begins anew."""


def reset() -> None:
    """Forget what an earlier command line said: one process may run several."""
    vars(current).update(vars(Display()))


def _set(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and param.name:
        setattr(current, param.name, value)
    if current.quiet and current.verbose:
        raise UsageError("--quiet and --verbose exclude each other", hint="give one of the two")


OPTIONS = (
    click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_set,
                 help="Print only findings, differences and other results that need attention.  Errors stay on "
                 "standard error."),
    click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=_set,
                 help="List what a report cuts short, with the long form of the evidence."),
    click.option("--wide", is_flag=True, expose_value=False, callback=_set,
                 help="Print names and digests whole, however wide the terminal is."),
    click.option("--color", type=click.Choice(WHEN), expose_value=False, callback=_set, metavar="WHEN",
                 help="Use colour: auto (on a terminal), always or never.  NO_COLOR and FORCE_COLOR set the default."),
)  # fmt: skip


def adding(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    """What adds options to a command, in their order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


options = adding(OPTIONS)
"""Add the options; they change `current`, and the command does not see them."""


def json_option(text: str = "Print one JSON document (schema: docs/json.md).") -> Callable[[Any], Any]:
    """The option `--json`, for the commands that have a document."""
    return click.option("--json", "as_json", is_flag=True, expose_value=False, callback=_set, help=text)


def most(number: int) -> int:
    """How many rows of one kind a report lists: `number`, or all with --verbose.

    >>> most(8)
    8
    """
    return sys.maxsize if current.verbose else number


def is_colored(stream: TextIO) -> bool:
    """Whether a stream gets colour: --color, then NO_COLOR, then FORCE_COLOR and CLICOLOR_FORCE, then the terminal.

    NO_COLOR is defined by https://no-color.org, the two others by https://force-color.org and
    https://bixense.com/clicolors.
    """
    if current.color != "auto":
        return current.color == "always"
    said = os.environ.get
    if said("NO_COLOR"):
        return False
    if any(said(name, "") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return stream.isatty() and said("TERM") != "dumb" and said("CLICOLOR") != "0"


STYLES = {"label": "1", "bad": "1;31", "warn": "1;33", "good": "1;32", "next": "1;36"}
"""Select Graphic Rendition parameters (ECMA-48): bold, with red, yellow, green or cyan."""
LABELS = {
    **dict.fromkeys(("finding", "unsafe", "difference", "error", "unsupported", "lacks", "apart"), "bad"),
    **dict.fromkeys(("warning", "unknown", "not done", "left out", "unused", "decide"), "warn"),
    **dict.fromkeys(("verified",), "good"),
    **dict.fromkeys(("next", "hint"), "next"),
}
"""The style of a label; the others are bold.  The words say the same without it."""


def styled(text: str, label: str, stream: TextIO) -> str:
    """Text in the style of a label, where the stream has colour."""
    if not text.strip() or not is_colored(stream):
        return text
    return f"\x1b[{STYLES[LABELS.get(label, 'label')]}m{text}\x1b[0m"
