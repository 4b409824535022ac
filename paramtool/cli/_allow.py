"""The options of every command that reads a checkpoint: what of it a person has looked at and allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from paramtool.cli import _completion, _render
from paramtool.cli._text import Size, size
from paramtool.model import inflating

F = TypeVar("F", bound=Callable[..., Any])


def _limit(ctx: click.Context, param: click.Parameter, nbytes: int | None) -> None:
    inflating.set_limit(nbytes)


OPTIONS = (
    click.option("--allow-class", multiple=True, metavar="NAME", shell_complete=_completion.classes,
                 help="Accept pickles that call NAME or hold objects of a class that matches it; paramtool runs "
                 "none of them.  Repeatable."),
    click.option("--allow-unknown", is_flag=True,
                 help="Accept pickles that call unknown names; paramtool runs nothing, so what they would make is "
                 "missing."),
    click.option("--max-inflated", type=Size(), metavar="SIZE", expose_value=False, callback=_limit,
                 help="Inflate or calculate at most this many bytes of a checkpoint.  [default: 32GB, or 16 times "
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
    help="Align tensor data to a multiple of BYTES.  With 4096, tensors of whole pages come first.",
)


def physical(nbytes: int, cloned: int) -> Iterator[_render.Row]:
    """How much of an output is new on the disk, where some of it shares its blocks with what was read."""
    if cloned:
        yield ("on disk", f"{size(nbytes - cloned)} new", f"{size(cloned)} in blocks that the input has too")
