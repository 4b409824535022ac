"""`paramtool lock`: what checkpoints hold, written as text for git."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _render
from paramtool.cli._options import Row, command_line
from paramtool.cli._render import Rows
from paramtool.commands import lock as lock_command
from paramtool.errors import plural


@command_line(
    lock_command.lock,
    "[PATH...]",
    common="output force headers",
    codes="0 locked, 2 usage, 3 bad file, 4 unsafe file, 7 output.",
    output=Row("Write this file; - prints the lock.", type=click.Path()),
    force=Row("Update models that the lock has already."),
    remove=Row("Take this model out of the lock.  Repeatable.", "PATH"),
    headers=Row("Read no tensor: lock names, types and shapes, and nothing about numbers."),
)
def command(paths: tuple[str, ...], *, output: str, **options: Any) -> None:
    """Write a lock file: one line for each tensor, with its digest, for git and for `paramtool check`.

    \b
    $ paramtool lock model.safetensors
    $ paramtool lock models/*.safetensors -o models.lock
    """
    found = lock_command.lock(paths, output, progress=_render.progress, **options)
    is_text = output == "-" and not _render.current.as_json
    _render.report(found, (lambda _: ()) if is_text else _rows)
    if is_text:
        _render.text([found.text.removesuffix("\n")])


def _rows(found: lock_command.Locked) -> Rows:
    yield "lock", found.output, plural(found.count, "model")
    for one in found.models:
        yield "updated" if one.path in found.updated else "model", one.path, plural(one.tensors, "tensor"), one.content
