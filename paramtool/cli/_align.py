"""What the commands that write safetensors have in common: `--align`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from paramtool.cli import _render
from paramtool.cli._text import Size, size

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
