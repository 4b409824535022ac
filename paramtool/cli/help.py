"""`paramtool help`: the commands, or one of them, as --help shows it."""

from __future__ import annotations

import click

from paramtool.cli import _completion, _display, _render


@click.command("help")
@click.argument("name", metavar="[COMMAND]", required=False, shell_complete=_completion.commands)
@_display.options
@click.pass_context
def command(ctx: click.Context, name: str | None) -> None:
    """Explain paramtool, or one command.

    \b
    $ paramtool help
    $ paramtool help dedup
    """
    from paramtool.cli.main import COMMANDS, cli, no_such_command

    above = ctx.find_root()
    if name is None:
        _render.lines(cli.get_help(above).splitlines())
        return
    if name not in COMMANDS and name != "help":
        ctx.fail(no_such_command(name))
    found = cli.get_command(above, name)
    assert found is not None
    _render.lines(found.get_help(found.context_class(found, info_name=name, parent=above)).splitlines())
