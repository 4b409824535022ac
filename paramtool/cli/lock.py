"""`paramtool lock`: what checkpoints hold, written as text for git."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _display, _render
from paramtool.cli._help import Command
from paramtool.cli._options import JSON, READING, Row, options
from paramtool.cli._table import whole
from paramtool.cli._text import FILE, plural
from paramtool.commands import lock as lock_command
from paramtool.lockfile.lock import NAME

EPILOG = "Exit codes: 0 locked, 2 usage, 3 bad file, 4 unsafe file, 7 output."


@click.command("lock", cls=Command, epilog=EPILOG)
@click.argument("paths", type=FILE, nargs=-1, required=True, metavar="PATH...")
@options(
    lock_command.lock,
    output=click.option(
        "-o", "--output", type=click.Path(), default=NAME, show_default=True, help="Write this file; - prints the lock."
    ),
    force=Row("Update an existing lock: add these models, replace those it has, remove those whose PATH is gone."),
    headers=Row("Read no tensor: lock names, types and shapes, and nothing about numbers."),
    **READING,
    json=JSON,
)
@_display.options
def command(paths: tuple[str, ...], *, output: str, as_json: bool, **options: Any) -> None:
    """Write a lock file: one line for each tensor, with its digest, for git and for `paramtool check`.

    \b
    $ paramtool lock model.safetensors
    $ paramtool lock models/*.safetensors -o models.lock
    """
    found = lock_command.lock(paths, output, progress=_render.progress, **options)
    _render.warn(*found.warnings)
    if as_json:
        _render.json_document(found)
    elif output == "-":
        _render.text([found.text.removesuffix("\n")])
    else:
        _render.rows(
            [
                ("lock", whole(found.output), plural(len(found.models), "model")),
                *(("model", whole(one.path), plural(len(one.tensors), "tensor"), one.content) for one in found.models),
            ]
        )
