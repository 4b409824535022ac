"""`paramtool`: the commands, loaded when they are asked for, and the one place where an error is printed."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from typing import NoReturn

import click

from paramtool import __version__
from paramtool.cli._text import shown
from paramtool.errors import ParamtoolError

COMMANDS = {
    "inspect": "look",
    "dedup": "shrink",
    "export": "load elsewhere",
    "verify": "prove",
}
"""Every command, and what a person wants from it."""
EXAMPLES = {
    "inspect": ("what is in a checkpoint: shared, fused, unused", "paramtool inspect model.pt"),
    "dedup": ("write every byte once, keep every name", "paramtool dedup model.pt"),
    "export": (
        "write just the names that one variant wants",
        "paramtool export model.dedup.safetensors --names names.txt -o plain.safetensors",
    ),
    "verify": (
        "compare an output with its source",
        "paramtool verify model.dedup.safetensors --against model.pt",
    ),
}
INTERNAL_ERROR = 70
"""A defect of ours; EX_SOFTWARE of sysexits.h."""


class ClosedPipe(Exception):
    """Whoever read standard output has stopped."""


class Lazy(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"paramtool.cli.{name}").command
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; click itself would turn a closed pipe into exit code 1, which means findings here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ClosedPipe from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, grouped by what a person wants, each with one example; imports none of them."""
        for want in dict.fromkeys(COMMANDS.values()):
            with formatter.section(want.capitalize()):
                for name in (name for name, wish in COMMANDS.items() if wish == want):
                    what, example = EXAMPLES[name]
                    formatter.write_text(f"{name} - {what}")
                    formatter.write_text(f"    $ {example}")


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="paramtool")
def cli() -> None:
    """Read checkpoints, see which parameters are shared, and write each byte once under every name.

    No checkpoint is ever unpickled or run.  Exit codes: 0 fine, 1 findings, 2 usage, 3 bad file, 4 unsafe file,
    6 cannot be planned, 7 output.
    """


def main() -> NoReturn:
    """Run a command; print its error, if any, and exit with the code of its class."""
    signal.signal(signal.SIGTERM, _terminate)
    gc.disable()  # one command is many objects that stay until its end
    try:
        code = cli.main(prog_name="paramtool", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ParamtoolError as error:
        _complain(str(error), error.hint)
        sys.exit(error.exit_code)
    except (ClosedPipe, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (MemoryError, RecursionError) as error:
        _complain(f"out of {'memory' if isinstance(error, MemoryError) else 'stack'}", "the file may be a bomb")
        sys.exit(3)
    except Exception as error:
        if os.environ.get("PARAMTOOL_DEBUG"):
            raise
        _complain(
            f"internal error: {type(error).__name__}: {error}",
            "this is a defect of paramtool; PARAMTOOL_DEBUG=1 shows where. Please report it",
        )
        sys.exit(INTERNAL_ERROR)


def _complain(message: str, hint: str) -> None:
    click.echo(f"error: {shown(message, lines=True)}", err=True)
    if hint:
        click.echo(f"hint: {shown(hint, lines=True)}", err=True)


def _terminate(number: int, frame: object) -> NoReturn:
    """SIGTERM unwinds like an exception, so that temporary files are removed."""
    sys.exit(128 + number)
