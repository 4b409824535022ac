"""The two options of every command that reads a checkpoint: what of its pickles a person has looked at and allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option("--allow-class", multiple=True, metavar="NAME",
                 help="Go on where the pickle calls NAME, or holds objects of classes that match it (it is never run). "
                 "Repeatable."),
    click.option("--allow-unknown", is_flag=True,
                 help="Go on whatever the pickle calls (nothing is run, and what it would have made is missing)."),
)  # fmt: skip


def allowing(command: F) -> F:
    """Add the options; the command gets `allow_class` and `allow_unknown`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
