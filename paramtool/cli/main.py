"""`paramtool`: the commands, loaded on first use, and the one place where an error is printed."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import warnings
from contextlib import suppress
from itertools import pairwise
from typing import Any, NoReturn

import click

from paramtool import __version__
from paramtool.cli import _render
from paramtool.cli._failures import ClosedPipe, Failure, Interrupted, caught, failure
from paramtool.cli._options import displayed
from paramtool.cli._streams import prepare_streams, quoted
from paramtool.grouping import grouped

COMMANDS = {
    "inspect": ("look", "show what a checkpoint holds: shared, fused and unused memory", "paramtool inspect model.pt"),
    "variants": (
        "look",
        "say which variants of a model can load a file",
        "paramtool variants small.safetensors --against names.txt",
    ),
    "report": (
        "look",
        "write one page about a checkpoint, or about how another differs",
        "paramtool report base/ finetuned/ -o change.html",
    ),
    "dedup": ("shrink", "write every byte once and keep every name", "paramtool dedup model.pt"),
    "export": (
        "load elsewhere",
        "write exactly the names that one variant wants",
        "paramtool export small.safetensors --names names.txt",
    ),
    "convert": (
        "convert networks, attention and experts",
        "write another format, layout, type or dialect",
        "paramtool convert model/ --to vllm -o out/",
    ),
    "fuse": (
        "convert networks, attention and experts",
        "store parts of attention, MLPs or networks as one tensor",
        "paramtool fuse model/ --layout qkv",
    ),
    "unfuse": (
        "convert networks, attention and experts",
        "split fused tensors and flat vectors into named ones",
        "paramtool unfuse model/",
    ),
    "guess": (
        "convert networks, attention and experts",
        "list what tensors could be, and the command for each",
        "paramtool guess flat.pt",
    ),
    "layouts": (
        "convert networks, attention and experts",
        "list the layouts and dialects, and what each can hold",
        "paramtool layouts qkv-per-head",
    ),
    "diff": (
        "prove",
        "say how two checkpoints differ, also across layouts and dialects",
        "paramtool diff base/ finetuned/",
    ),
    "lock": (
        "prove",
        "pin checkpoints in git: a line for each tensor, with its digest",
        "paramtool lock model.safetensors",
    ),
    "check": (
        "prove",
        "check checkpoints by rules and a lock, for CI",
        "paramtool check models/*.safetensors --lock paramtool.lock",
    ),
    "verify": ("prove", "compare an output with its source", "paramtool verify model.dedup.safetensors model.pt"),
}
"""{a command: what a person wants from it, what it does, and an example}"""
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Windows has no SIGHUP."""


class Lazy(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in COMMANDS and name != "help":
            return None
        home, attribute = ("relayout", name) if name in ("convert", "fuse", "unfuse") else (name, "command")
        command: click.Command = getattr(importlib.import_module(f"paramtool.cli.{home}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Look a command up; an unknown one is a usage error that suggests others."""
        word = args[0]
        if word in COMMANDS or word in ("help", "") or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise click.UsageError(no_such_command(word), ctx)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; click itself would turn a closed pipe into exit code 1, which means findings here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ClosedPipe from None

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the arguments; `--help` and `--version` print here, and their reader may have stopped, too."""
        _render.reset()
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise ClosedPipe from None
        except click.NoSuchOption as error:
            if error.option_name in (*COMMANDS, "") or parent is not None:
                raise
            raise click.UsageError(
                f"No such option: {error.option_name}.  Options of a command follow it: "
                f"paramtool inspect FILE {error.option_name}"
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, grouped by what a person wants, each with one example; imports none of them."""
        for want, group in grouped((want, (name, *said)) for name, (want, *said) in COMMANDS.items()).items():
            with formatter.section(want.capitalize()):
                for name, what, example in group:
                    formatter.write_text(f"{name} - {what}")
                    formatter.write(f"      $ {example}\n")
        formatter.write_paragraph()
        text = (
            "`paramtool help COMMAND` explains a command, with --all all of it; `help options` what many of them have."
        )
        formatter.write_text(text)


def no_such_command(word: str) -> str:
    """The message for an unknown command: the nearest commands, or the one that takes a file."""
    from difflib import get_close_matches

    near = get_close_matches(word.lower(), COMMANDS, 2, 0.6)
    if near:
        return f"No such command {word!r}.  Did you mean {' or '.join(map(repr, near))}?"
    if os.path.exists(word):
        return f"No such command {word!r}.  To look at that file: paramtool inspect {quoted(word)}"
    return f"No such command {word!r}.  The commands are {', '.join(COMMANDS)}."


@click.group("paramtool", cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="paramtool")
@displayed
def cli() -> None:
    """Read checkpoints, see which parameters share memory, and write each byte once under every name.

    paramtool never unpickles a checkpoint and never runs code from it.

    Exit codes: 0 fine, 1 findings, 2 usage, 3 bad file, 4 unsafe file, 5 does not fit a layout, 6 cannot be
    written exactly, 7 output, 70 internal error, 130/143 interrupted, 141 closed pipe.
    """


def main(program: click.Command = cli) -> NoReturn:
    """Run a command; print its error, if any, and exit with the code of its class."""
    code = 0
    try:
        code = _code(program)
        _note_signals()
    except Interrupted:  # while an error was said, or at the end
        _note_signals()
    try:  # a signal also counts where Python ignored its exception, as in a callback of the garbage collector
        sys.exit(128 + caught[0] if caught else code)
    except MemoryError:  # to exit is an exception, which needs memory
        sys.exit(128 + caught[0] if caught else code)


def _code(program: click.Command) -> int:
    """The exit code of a command, whose error is printed."""
    try:
        prepare_streams()
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        sys.unraisablehook = _show_ignored
        caught.clear()
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's choice stays
                signal.signal(number, _interrupt)
        gc.disable()  # one command is many objects that stay until its end
        code = program.main(prog_name=program.name, standalone_mode=False)
        sys.stdout.flush()
    except (MemoryError, SystemError) as error:  # the latter where CPython had no memory for the former
        _forget(error)
        return _code_of(error)
    except BaseException as error:
        return _code_of(error)
    return code if isinstance(code, int) else 0


def _note_signals() -> None:
    """Signals end nothing any more, since the command is done, but for its exit code."""
    for number in SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, lambda number, frame: caught.append(number))


PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_python_shows = warnings.showwarning


def _show_ignored(ignored: sys.UnraisableHookArgs) -> None:
    """Print what Python ignores, but that it had no memory to close a generator, which frees what it holds anyway."""
    if not isinstance(ignored.exc_value, MemoryError):
        sys.__unraisablehook__(ignored)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
    """Print a warning of paramtool as the commands print theirs, and one of a library as Python prints it."""
    if filename.startswith(PACKAGE):
        _render.warn(str(message))
    else:
        _python_shows(message, category, filename, lineno, *rest)


def _interrupt(number: int, frame: object) -> NoReturn:
    """SIGINT, SIGTERM and SIGHUP unwind like an exception, so that temporary files are removed."""
    caught.append(number)
    raise Interrupted(number)


def _code_of(error: BaseException) -> int:
    """The exit code of what ended a command, once it is said; what is nobody's error is raised again."""
    if caught:
        return 128 + caught[0]
    if (failed := failure(error)) is not None:
        failed.complain()
        # Whether the command line has --json or --format json, also where it is wrong in another place.
        words = sys.argv[1:]
        words = words[: words.index("--") if "--" in words else None]
        if "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words):
            # The error as the one document of a command that printed none; nobody may listen any more.
            try:
                _render.json_document(failed)
                _render.flush()
            except (OSError, ValueError):
                _silence()
        return failed.code
    match error:
        case click.exceptions.Abort() | KeyboardInterrupt():
            return 128 + signal.SIGINT
        case Interrupted(number=number):
            return 128 + number
        case ClosedPipe() | BrokenPipeError():
            _silence()
            return 141  # what a shell shows for a program that SIGPIPE ended
        case OSError(filename=None):
            _silence()
            Failure(7, f"standard output: {error.strerror or type(error).__name__}").complain()
            return 7
    raise error


def _forget(error: BaseException | None) -> None:
    """Release what the functions held that an error went through: there may be no other memory to describe it in."""
    while error is not None:
        entry = error.__traceback__
        while entry is not None:
            with suppress(RuntimeError):  # of a function that still runs
                entry.tb_frame.clear()
            entry = entry.tb_next
        error = error.__context__


def _silence() -> None:
    """Send what is left of standard output to nowhere: Python would try again at its end, and complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
