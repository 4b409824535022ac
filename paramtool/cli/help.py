"""`paramtool help`: the commands, one of them, or the options that many have."""

from __future__ import annotations

import click

from paramtool.cli import _completion, _render
from paramtool.cli._options import ALL, displayed, shared, write_options


@click.command("help")
@click.argument("name", metavar="[COMMAND|options]", required=False, shell_complete=_completion.commands)
@click.option("--all", "every", is_flag=True, help="Every option of the command.")
@displayed
@click.pass_context
def command(ctx: click.Context, name: str | None, every: bool) -> None:
    """Explain paramtool, one command, or the options that many commands have.

    \b
    $ paramtool help
    $ paramtool help dedup --all
    $ paramtool help options
    """
    from paramtool.cli.main import COMMANDS, cli, no_such_command

    above = ctx.find_root()
    if name == "options":
        formatter = above.make_formatter()
        commands = filter(None, (cli.get_command(above, one) for one in COMMANDS))
        write_options(formatter, "Options that many commands have", shared(commands), above)
        text = formatter.getvalue()
    elif name is None:
        text = cli.get_help(above)
    else:
        found = cli.get_command(above, name)
        if found is None:
            ctx.fail(no_such_command(name))
        inner = found.context_class(found, info_name=name, parent=above)
        inner.meta.update({ALL: True} if every else {})
        text = found.get_help(inner)
    _render.lines(text.splitlines())
