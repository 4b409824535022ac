"""`paramtool lock`: what checkpoints hold, written as text for git."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _display, _render
from paramtool.cli._options import JSON, READING, Row, command_line
from paramtool.cli._text import FILE, plural
from paramtool.commands import lock as lock_command
from paramtool.lockfile.lock import NAME

CODES = "0 locked, 2 usage, 3 bad file, 4 unsafe file, 7 output."


@command_line(
    lock_command.lock,
    click.argument("paths", type=FILE, nargs=-1, required=True, metavar="PATH..."),
    common="output force headers",
    codes=CODES,
    output=click.option(
        "-o", "--output", type=click.Path(), default=NAME, show_default=True, help="Write this file; - prints the lock."
    ),
    force=Row("Update models that the lock has already, and remove those whose PATH is gone."),
    headers=Row("Read no tensor: lock names, types and shapes, and nothing about numbers."),
    **READING,
    json=JSON,
)
def command(paths: tuple[str, ...], *, output: str, **options: Any) -> None:
    """Write a lock file: one line for each tensor, with its digest, for git and for `paramtool check`.

    \b
    $ paramtool lock model.safetensors
    $ paramtool lock models/*.safetensors -o models.lock
    """
    found = lock_command.lock(paths, output, progress=_render.progress, **options)
    made = [
        ("updated" if one.path in found.updated else "model", one.path, plural(len(one.tensors), "tensor"), one.content)
        for one in found.models
    ]
    head = ("lock", found.output, plural(found.count, "model"))
    is_text = output == "-" and not _display.current.as_json
    _render.report(found, [head, *made] if not is_text else (), found.warnings)
    if is_text:
        _render.text([found.text.removesuffix("\n")])
