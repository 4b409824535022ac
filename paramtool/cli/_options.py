"""Options of commands, each said once: the function of the library has its name, type and default, a row the rest.

A command is `@command_line(function, "FILE [OTHER]", keep=Row("Which name owns ...", "GLOB"), ...)`: what it takes as
people write it, and its own options.  The keyword `keep` of the function becomes the flag `--keep` in the order of the
rows, with the type of its annotation: a bool is a switch (`--no-x` where it is on), an int a size, a path is looked at,
a sequence may be repeated, and a mapping is NAME=OTHER, repeated.  A keyword without a row that SHARED has is an option
in its words.  What the function does not know, such as how a report is printed, is a switch, or a text where it has a
metavar or choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import Parameter, cleandoc, signature
from typing import Any, NamedTuple, TypeVar

import click

from paramtool.cli import _completion, _render
from paramtool.cli._paths import FILE, OUTPUT_FILE
from paramtool.cli._streams import quoted
from paramtool.errors import REPLACED, UsageError
from paramtool.grouping import grouped

F = TypeVar("F", bound=Callable[..., Any])
SHORT = {"output": "-o", "quiet": "-q", "verbose": "-v"}


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """A number of bytes on the command line."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """5GB to 5000000000."""
        from paramtool.commands.sizes import parse_size

        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Row(NamedTuple):
    """What is said of an option beside its name, type and default."""

    help: str
    metavar: str | None = None
    """In brackets, where the flag may stand without a value."""
    complete: _completion.Completer | None = None
    """What the shell offers behind it, where the metavar does not say it."""
    flag: str = ""
    """Where it is not the keyword."""
    choices: Sequence[str] = ()
    type: Any = None
    """Where the annotation says too little."""
    taken: Callable[[click.Context, click.Parameter, Any], None] | None = None
    """What takes the value; the command does not see it."""


def command_line(
    function: Callable[..., Any],
    words: str,
    *,
    codes: str,
    called: str = "",
    common: str = "",
    paths: Any = FILE,
    **rows: Row,
) -> Callable[[Callable[..., Any]], click.Command]:
    """The command with the name of a function: its arguments, its options in their order, and those of all commands.

    `words` are its arguments, such as `PATH...` or `A [B]`, of the type `paths`, or `paths=A B` for several that people
    know as A and B; `codes` are its exit codes, and `common` as of `Command`.
    """
    known = signature(function).parameters
    every = {**rows, **{name: row for name, row in SHARED.items() if name in known}, **EVERYWHERE, **rows}
    made = [option(known.get(name) or _unknown(name, row), row) for name, row in every.items()]
    command = click.command(called or function.__name__, cls=Command, common=common, epilog=f"Exit codes: {codes}")
    arguments = [_argument(word, paths) for word in ([words] if "=" in words else words.split())]
    return lambda body: command(adding([*arguments, *made])(body))


def adding(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    """What adds options to a command, in their order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _argument(word: str, kind: Any) -> Callable[[Any], Any]:
    """An argument as people write it: `[CKPT]` may be left out, `PATH...` are several."""
    said, _, metavar = word.rpartition("=")
    is_many, name = bool(said) or "..." in word, metavar.strip("[].").lower()
    return click.argument(
        said or (f"{name}s" if is_many else name), nargs=-1 if is_many else 1,
        required=not (said or metavar.startswith("[")), metavar=metavar,
        type=None if name == "layout" else kind, shell_complete=_completion.OFFERED.get(name.upper()),
    )  # fmt: skip


def _unknown(name: str, row: Row) -> Parameter:
    """The keyword of an option that the function lacks."""
    kind, default = ("str | None", None) if row.metavar or row.choices else ("bool", False)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def option(keyword: Parameter, row: Row) -> Callable[[Any], Any]:
    """The option of a keyword."""
    name, kind, default = keyword.name, keyword.annotation, keyword.default
    flag = row.flag or f"--{'no-' if default is True else ''}{name.replace('_', '-')}"
    flags = [*filter(None, [SHORT.get(name)]), flag, name]
    offered = row.complete or _completion.OFFERED.get(row.metavar or "")
    more: dict[str, Any] = {"help": row.help, "metavar": row.metavar, "shell_complete": offered}
    if row.taken:
        more |= {"callback": row.taken, "expose_value": False}
    if kind == "bool":
        return click.option(
            *flags, is_flag=True, **{"callback": (lambda ctx, param, value: not value) if default else None, **more}
        )
    if kind.startswith(("Sequence", "Iterable", "Mapping", "str | Mapping")):
        more |= {"multiple": True, "callback": _paired if kind.startswith("Mapping") else None}
    elif row.choices:
        more |= {"callback": (lambda ctx, param, value: value or default), **more, "type": click.Choice(row.choices)}
    elif default is Parameter.empty:
        more["required"] = keyword.kind is Parameter.KEYWORD_ONLY
    elif default is not None:
        more |= {"default": default, "show_default": bool(default) and "[default" not in row.help}
    if row.type:
        more["type"] = row.type
    elif name == "output" or ("Path" in kind and not row.choices):
        more["type"] = OUTPUT_FILE if name == "output" else FILE
    elif "int" in kind:
        more["type"] = Size()
    if row.metavar and row.metavar.startswith("[") and not more.get("multiple"):
        more |= {"is_flag": False, "flag_value": ""}
    return click.option(*flags, **more)


def _paired(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    from paramtool.commands.name_lists import pairs

    return pairs(words, param.opts[0], param.metavar or "")


def _limit(ctx: click.Context, param: click.Parameter, nbytes: int | None) -> None:
    from paramtool.formats import files
    from paramtool.model import inflating

    inflating.set_limit(nbytes)
    files.watchers[:] = [_render.counted]


def _display(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and param.name:
        setattr(_render.current, param.name, value)
    if _render.current.quiet and _render.current.verbose:
        raise UsageError("--quiet and --verbose exclude each other", hint="give one of the two")


def given(*names: str) -> Iterator[str]:
    """Some flags of the command that runs, as the user gave them, for a line to type."""
    if context := click.get_current_context(silent=True):
        for one in context.command.params:
            value = context.params.get(one.name or "") if one.name in names else None
            for word in value if isinstance(value, tuple) else [value] if value else []:
                yield one.opts[0] if word is True else f"{one.opts[0]} {quoted(word)}"


# --- What several commands have --------------------------------------------------------------------------------------

_FOLDER = "a folder becomes a folder"
OUTPUT = f"The suffix is the format: .safetensors, .h5, or .pt, .pth, .bin, .ckpt of torch; {_FOLDER}."
"""What `dedup` says of its output."""
OUTPUT_ANY = f"The suffix is the format: .safetensors, .pt, .npz, .params, .msgpack, .h5, .onnx; {_FOLDER}."
"""What the commands say whose output need not store shared tensors once."""
BESIDE = "; of a file in a model's folder, beside that folder"
EACH = Row("Write every set of weights of a folder and of the folders inside it.")
FAIL_ON = Row("Exit with code 1 if RULE finds something; `paramtool help inspect --all` lists the rules.  Repeatable.",
              "RULE")  # fmt: skip
SHARED = {
    "weights": Row("Read this set of weights, where a folder has several.", "FILE"),
    "only": Row("Read this section of a training checkpoint and strip its prefix.", "SECTION"),
    "max_shard_size": Row("Write a folder of shards of at most this size, for example 5GB."),
    "format": Row("Write a folder in this format; dcp is torch.distributed.checkpoint.",
                  choices=("safetensors", "dcp")),
    "align": Row("Align tensor data to a multiple of BYTES.  With 4096, tensors of whole pages come first.", "BYTES"),
    "memory": Row("Use at most this much memory to compare tensors.  [default: 512MiB]"),
    "skip_unsupported": Row("Leave out tensors and objects that the output format cannot hold."),
    "plain": Row("In a torch file, write objects as dicts, lists, numbers and strings, so that "
                 "torch.load(weights_only=True) opens it."),
    "strict": Row("Fail instead of leaving out objects that the output format cannot hold."),
    "allow_class": Row("Accept pickles that call NAME or hold objects of a class that matches it; paramtool runs "
                       "none of them.  Repeatable.", "NAME", _completion.classes),
    "allow_unknown": Row("Accept pickles that call unknown names; paramtool runs nothing, so what they would make is "
                         "missing."),
    "max_inflated": Row("Inflate or calculate at most this many bytes of a checkpoint.  [default: 32GB, or 16 times "
                        "the size of its files]", "SIZE", taken=_limit),
    "config": Row("Read this config.json, or the one in this folder, in place of the one beside the checkpoint: it "
                  "says which names the model ties.  `none` reads none.", "PATH"),
    "verify": Row("Do not read the output back."),
    "dry_run": Row("Print what would be done and write nothing."),
    "force": Row("Overwrite the output if it exists."),
}  # fmt: skip
"""{keyword: the same in every command whose function has it}."""
DISPLAY = {
    "quiet": Row("Print only findings, differences and other results that need attention.  Errors stay on standard "
                 "error.", taken=_display),
    "verbose": Row("List what a report cuts short, with the long form of the evidence.", taken=_display),
    "wide": Row("Print names and digests whole, however wide the terminal is.", taken=_display),
    "color": Row("Use colour: auto (on a terminal), always or never.  NO_COLOR and FORCE_COLOR set the default.",
                 "WHEN", choices=("auto", "always", "never"), taken=_display),
}  # fmt: skip
"""How much is printed, and how; it changes `_render.current`."""
EVERYWHERE = {
    "as_json": Row("Print one JSON document (schema: docs/json.md).", flag="--json", taken=_display), **DISPLAY
}  # fmt: skip
"""What every command with a document has."""
displayed = adding([option(_unknown(name, row), row) for name, row in DISPLAY.items()])
"""Add what changes how much is printed."""


# --- The help of a command opens with its examples, and fits a screen; `help --all` has the rest ----------------------


BREAK = "\n\n\b\n"
"""The text before the examples in a command's docstring: click keeps the lines that follow."""
ALL = "paramtool.all"
"""The key of a context's `meta` that asks for every option."""
LIKENESS = 0.75
"""How alike two flags are of which one may be meant: `--merge` is no `--verbose`."""
KINDS = ("allow_class", "dry_run")
"""What all commands have that read a checkpoint, and all that write one."""


class Command(click.Command):
    """A command whose docstring ends with lines to type, `$ paramtool ...`; --help shows them first.

    `common` names the options of a short help; the others, and the rules of --fail-on, are in the long one.
    """

    def __init__(self, *args: Any, common: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.common = common.split()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As of click; a flag that was removed is answered with what replaces it, one that is missing with its help."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if isinstance(error.param, click.Option):
                raise click.UsageError(f"Missing option {error.param.opts[0]}.  {error.param.help}", ctx) from None
            raise
        except click.NoSuchOption as error:
            if said := REPLACED.get(error.option_name.lstrip("-").replace("-", "_")):
                raise click.UsageError(f"{error.option_name} is replaced: {said}", ctx) from None
            from difflib import get_close_matches

            near = get_close_matches(error.option_name, error.possibilities or (), 3, LIKENESS)
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples, usage, text, options, exit codes."""
        for line in _parts(self.help)[1].splitlines():
            formatter.write(f"{line}\n")
        formatter.write_paragraph()
        super().format_help(ctx, formatter)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The text without the examples."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_parts(self.help)[0])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options that people ask for most, or all of them."""
        every = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        common = [one for name in self.common for one in every if one.name == name]
        shown = every if ALL in ctx.meta else common or every
        write_options(formatter, "Options", shown, ctx)
        if left := len(every) - len(shown):
            formatter.write_paragraph()
            formatter.write_text(f"{left} more: `paramtool help {ctx.info_name} --all`.")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The exit codes; in the long help also the rules."""
        super().format_epilog(ctx, formatter)
        if ALL in ctx.meta and "fail_on" in self.common:
            from paramtool.commands.rules import KINDS

            with formatter.section("Rules, and what each finds"):
                formatter.write_dl([(kind.id + kind.form, kind.words) for kind in KINDS])


def write_options(
    formatter: click.HelpFormatter, title: str, options: Iterable[click.Option], ctx: click.Context
) -> None:
    """A section of options with what they do."""
    records = [record for one in options if (record := one.get_help_record(ctx))]
    with formatter.section(title):
        formatter.write_dl(records)


def shared(commands: Iterable[click.Command]) -> list[click.Option]:
    """What two thirds of all commands have, or of those that have one of KINDS, in the same words but for defaults."""
    from copy import copy

    every = [[one for one in command.params if isinstance(one, click.Option)] for command in commands]
    groups = [every, *([of for of in every if kind in {one.name for one in of}] for kind in KINDS)]
    alike = grouped(((one.name, _words(one)), one) for of in every for one in of)
    found = []
    for options in alike.values():
        if any(3 * sum(one in of for of in group for one in options) >= 2 * len(group) for group in groups):
            one = copy(options[0])
            one.help = one.help if all(one.help == other.help for other in options) else _words(one)
            found.append(one)
    return found


def _words(one: click.Option) -> str:
    return (one.help or "").partition("  [default")[0]


def _parts(text: str | None) -> tuple[str, str]:
    """The text and the examples of a docstring."""
    said, _, examples = cleandoc(text or "").partition(BREAK)
    return said, examples
