"""`paramtool check`: rules and a lock over many checkpoints, for CI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from paramtool.cli import _display, _render
from paramtool.cli._allow import allowing
from paramtool.cli._failures import failure
from paramtool.cli._help import Command
from paramtool.cli._text import FILE, FILES
from paramtool.commands.check import check as check_command
from paramtool.commands.check.report import Checked

EPILOG = (
    "Exit codes: 0 no finding of severity error, 1 at least one, 2 usage or configuration, 3 bad file or lock, 4 "
    "unsafe file that cannot be described.  The highest code wins; one bad file does not stop the others."
)


def _text(found: Checked) -> None:
    from paramtool.cli import _check_rows

    _render.rows(_check_rows.rows(found))


def _json(found: Checked) -> None:
    from paramtool.cli._json_check import checked

    _render.json_text(checked(found))


FORMATS: dict[str, Callable[[Checked], None]] = {"text": _text, "json": _json}
"""{value of --format: what prints it}"""


@click.command("check", cls=Command, epilog=EPILOG)
@click.argument("paths", type=FILES, nargs=-1, metavar="[PATH...]")
@click.option("--lock", type=FILE, metavar="FILE",
              help="Compare with this lock.  [default: that of the configuration, or ./paramtool.lock, if it "
              "exists]")  # fmt: skip
@click.option("--config", type=FILE, metavar="FILE",
              help="Take the rules from this file.  [default: ./paramtool.toml, or [tool.paramtool] in "
              "./pyproject.toml]")  # fmt: skip
@click.option("--content-only", is_flag=True,
              help="Compare only tensors with the lock: no ties, objects, dialects and files.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="text", show_default=True,
              help="Print the findings in this form.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json (schema: docs/json.md).")
@allowing
@_display.options
def command(paths: tuple[str, ...], *, form: str, as_json: bool, **options: Any) -> int:
    """Check checkpoints by the rules of a configuration and against a lock.

    Without a configuration and a lock, check looks for unsafe pickles, ties that config.json declares, and more than
    1% of unused or duplicate bytes.  Patterns in quotes are expanded.  Without PATH, everything is checked that the
    configuration or the lock names.

    \b
    $ paramtool check models/*.safetensors --lock paramtool.lock
    $ paramtool check --config paramtool.toml --format json
    """
    found = check_command.check(paths, progress=_render.progress, **options)
    _render.warn(*found.notes)
    FORMATS["json" if as_json else form](found)
    _render.flush()
    for file in found.files:
        if file.error is not None and (failed := failure(file.error)) is not None:
            failed.complain()
    return found.exit_code
