"""The options of every command that reads a checkpoint: what of it a person has looked at and allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from paramtool.cli import _render
from paramtool.cli._text import Size, size
from paramtool.model import inflating

F = TypeVar("F", bound=Callable[..., Any])


def _limit(ctx: click.Context, param: click.Parameter, nbytes: int | None) -> None:
    inflating.set_limit(nbytes)


OPTIONS = (
    click.option("--allow-class", multiple=True, metavar="NAME",
                 help="Go on where the pickle calls NAME, or holds objects of classes that match it (it is never run). "
                 "Repeatable."),
    click.option("--allow-unknown", is_flag=True,
                 help="Go on whatever the pickle calls (nothing is run, and what it would have made is missing)."),
    click.option("--max-inflated", type=Size(), metavar="SIZE", expose_value=False, callback=_limit,
                 help="The most bytes that are inflated or calculated of a checkpoint.  [default: 32GB, or 16 times "
                 "the size of its files]"),
)  # fmt: skip


def allowing(command: F) -> F:
    """Add the options; the command gets `allow_class` and `allow_unknown`, and what it reads keeps to the limit."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


ALIGN = click.option(
    "--align",
    type=Size(),
    default=8,
    show_default=True,
    metavar="BYTES",
    help="Begin tensor data at a multiple of so many bytes, tensors of whole pages first: 4096.",
)


def physical(nbytes: int, cloned: int) -> Iterator[_render.Row]:
    """How much of an output is new on the disk, where some of it shares its blocks with what was read."""
    if cloned:
        yield ("on disk", f"{size(nbytes - cloned)} new", f"{size(cloned)} in blocks that the input has too")
