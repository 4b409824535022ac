"""`paramtool diff`: how two checkpoints differ, and the map between them where only names or layouts do."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _completion, _diff_rows, _display, _render
from paramtool.cli._allow import allowing
from paramtool.cli._help import Command
from paramtool.cli._text import FILE, Size
from paramtool.commands import diff as diff_command
from paramtool.commands.progress import MEMORY_NBYTES

EPILOG = (
    "Exit codes: 0 compared, 1 they are not the same weights (with --exit-code), 2 usage, 3 bad file, 4 unsafe file."
)


@click.command("diff", cls=Command, epilog=EPILOG)
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@click.option("--stat", is_flag=True, help="Print the verdict and counts only.")
@click.option("--rows", is_flag=True, help="Say which rows of each changed tensor differ.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 where A and B are not the same weights.")
@click.option(
    "--strict",
    is_flag=True,
    help="With --exit-code: names, layouts, lossless casts and metadata have to be the same, too.",
)
@click.option(
    "--tolerance", type=float, metavar="X",
    help="With --exit-code: accept a rounding cast whose largest absolute difference is at most X.",
)  # fmt: skip
@click.option(
    "--only", metavar="SECTION", shell_complete=_completion.sections_of("a"), help="Compare this section of both."
)
@click.option(
    "--memory", type=Size(), default=MEMORY_NBYTES,
    help="Use at most this much memory to compare tensors.  [default: 512MiB]",
)  # fmt: skip
@allowing
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (schema: docs/json.md).")
@_display.options
def command(
    a: str,
    b: str,
    *,
    stat: bool,
    rows: bool,
    exit_code: bool,
    strict: bool,
    tolerance: float | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare two checkpoints by content: what changed, and what is the same under other names or in another layout.

    Every verdict is proved by comparing all bytes.

    \b
    $ paramtool diff base/ finetuned/
    """
    if not exit_code and (strict or tolerance is not None):
        flag = "--strict" if strict else "--tolerance"
        raise click.UsageError(f"{flag} says when --exit-code gives 1, and --exit-code is not given")
    found = diff_command.diff(a, b, progress=_render.progress, **options)
    _render.warn(*found.notes)
    if as_json:
        from paramtool.cli import _json

        _render.json_text(_json.diffed(found))
    else:
        _render.rows(_diff_rows.rows(found, stat=stat, rows=rows))
    return 1 if exit_code and not found.is_same(strict=strict, tolerance=tolerance) else 0
