"""`paramtool check`: rules and a lock over many checkpoints, for CI."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from paramtool.cli import _display, _paths, _render
from paramtool.cli._allow import allowing
from paramtool.cli._check_forms import FORMS, NotChecked, add_summary, form_of, write
from paramtool.cli._failures import failure
from paramtool.cli._help import Command
from paramtool.cli._streams import is_github
from paramtool.cli._text import FILE, FILES, OUTPUT_FILE
from paramtool.commands.check import check as check_command
from paramtool.commands.check.config import FILE as CONFIG
from paramtool.commands.check.config import PYPROJECT
from paramtool.commands.check.report import Checked
from paramtool.errors import ParamtoolError
from paramtool.lockfile.lock import NAME

EPILOG = (
    "Exit codes: 0 no finding of severity error, 1 at least one, 2 usage or configuration, 3 bad file or lock, 4 "
    "unsafe file that cannot be described.  The highest code wins; one bad file does not stop the others."
)


def _print(found: Checked | NotChecked, form: str) -> None:
    """Print one form, the report for people as rows; on GitHub, annotations come with a summary."""
    if form == "text":
        from paramtool.cli import _check_rows

        if isinstance(found, Checked):  # otherwise standard error has it
            _render.rows(_check_rows.rows(found))
        return
    _render.text(FORMS[form](found))
    if form == "github" and (trouble := add_summary(found)):
        _render.warn(trouble)


def _found(paths: tuple[str, ...], options: dict[str, Any]) -> Checked | NotChecked:
    """What a run found; an error that ends it is said on standard error at once, since its forms may fail, too."""
    try:
        # The same, in which the error of what is no path at all, such as a URL, says so.
        found = check_command.check(paths, progress=_render.progress, **options)
        files = (
            replace(file, error=_paths.explained(file.error, file.path, "check")) if file.error is not None else file
            for file in found.files
        )
        return replace(found, files=tuple(files))
    except ParamtoolError as error:
        _complain(error)
        given = (*paths, options["lock"], options["config"], *(error.place or ())[:1], NAME, CONFIG, PYPROJECT)
        return NotChecked(error, tuple(path for path in given if path))


def _complain(error: ParamtoolError | None) -> None:
    if error is not None and (failed := failure(error)) is not None:
        failed.complain()


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
@click.option("--format", "form", type=click.Choice(list(FORMS)),
              help="Print the findings in this form.  [default: github where GITHUB_ACTIONS is true, else "
              "text]")  # fmt: skip
@click.option("-o", "--output", type=OUTPUT_FILE,
              help="Write the form to this file, by default that of its suffix (.sarif, .xml for junit, .md, .json, "
              ".txt), and print the usual one.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an earlier output in the same form, and no other kind of file.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json (schema: docs/json.md).")
@allowing
@_display.options
def command(
    paths: tuple[str, ...], *, form: str | None, as_json: bool, output: str | None, force: bool, **options: Any
) -> int:
    """Check checkpoints by the rules of a configuration and against a lock.

    Without a configuration and a lock, check looks for unsafe pickles, ties that config.json declares, and more than
    1% of unused or duplicate bytes.  Patterns in quotes are expanded.  Without PATH, everything is checked that the
    configuration or the lock names.

    \b
    $ paramtool check models/*.safetensors --lock paramtool.lock
    $ paramtool check --config paramtool.toml -o results.sarif
    """
    form = "json" if as_json else form
    written = form or (form_of(output) if output is not None else None)
    found = _found(paths, options)
    if isinstance(found, Checked):
        _render.warn(*found.notes)
    if output is not None and written is not None:
        _render.warn(*write(found, written, output, force=force))
    usual = "github" if is_github() else "text"
    _print(found, usual if output is not None else form or usual)
    _render.flush()
    if isinstance(found, NotChecked):
        return found.error.exit_code
    for file in found.files:
        _complain(file.error)
    return found.exit_code
