"""Options of commands, each said once: the function of the library has its name, type and default, a row the rest.

A command is `@command_line(function, keep=Row("Which name owns ...", "GLOB"), ...)`.  The keyword `keep` of
the function becomes the flag `--keep` in the order of the rows, with the type of its annotation: a bool is a switch
(`--no-x` where it is on), an int a size, a path is looked at, a sequence may be repeated, and a mapping is NAME=OTHER,
repeated.  What the function does not know, such as how a report is printed, is a switch, or a text where
it has a metavar, or an option of click in place of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any, NamedTuple

import click

from paramtool.cli import _completion, _render
from paramtool.cli._completion import Completer
from paramtool.cli._display import OPTIONS, adding, json_option
from paramtool.cli._help import Command
from paramtool.cli._text import FILE, OUTPUT_FILE, Size
from paramtool.commands.name_lists import pairs
from paramtool.formats import files
from paramtool.model import inflating

ClickOption = Callable[[Any], Any]


class Row(NamedTuple):
    """What is said of an option beside its name, type and default."""

    help: str
    metavar: str | None = None
    """In brackets, where the flag may stand without a value."""
    complete: Completer | None = None
    """What the shell offers behind it."""
    flag: str = ""
    """Where it is not the keyword."""
    choices: Sequence[str] = ()
    type: Any = None
    """Where the annotation says too little."""


def command_line(
    function: Callable[..., Any],
    *arguments: ClickOption,
    codes: str,
    called: str = "",
    common: str = "",
    more: Callable[[], Sequence[tuple[str, str]]] = tuple,
    **rows: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """The command with the name of a function: its arguments, its options in their order, and those of all commands.

    `codes` are its exit codes, and `common` and `more` as of `Command`.
    """
    known = signature(function).parameters
    made = [
        option(known.get(name) or _unknown(name, row), row) if isinstance(row, Row) else row
        for name, row in rows.items()
    ]
    command = click.command(
        called or function.__name__, cls=Command, common=common, more=more, epilog=f"Exit codes: {codes}"
    )
    return lambda body: command(adding([*arguments, *made, *OPTIONS])(body))


def _unknown(name: str, row: Row) -> Parameter:
    """The keyword of an option that the function lacks."""
    kind, default = ("str | None", None) if row.metavar else ("bool", False)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def option(keyword: Parameter, row: Row) -> ClickOption:
    """The option of a keyword."""
    name, kind, default = keyword.name, keyword.annotation, keyword.default
    flag = row.flag or f"--{'no-' if default is True else ''}{name.replace('_', '-')}"
    more: dict[str, Any] = {"help": row.help, "metavar": row.metavar, "shell_complete": row.complete}
    if kind == "bool":
        return click.option(flag, name, is_flag=True, callback=_inverted if default else None, **more)
    if kind.startswith(("Sequence", "Iterable", "Mapping", "str | Mapping")):
        more |= {"multiple": True, "callback": _paired if kind.startswith("Mapping") else None}
    elif row.choices:
        more |= {"type": click.Choice(row.choices), "callback": _chosen if default == "" else None}
    elif default is Parameter.empty:
        more["required"] = True
    elif default is not None:
        more |= {"default": default, "show_default": default != "" and "[default" not in row.help}
    if row.type:
        more["type"] = row.type
    elif "Path" in kind and not row.choices:
        more["type"] = OUTPUT_FILE if name == "output" else FILE
    elif "int" in kind:
        more["type"] = Size()
    if row.metavar and row.metavar.startswith("[") and not more.get("multiple"):
        more |= {"is_flag": False, "flag_value": ""}
    return click.option(*(["-o"] if name == "output" else []), flag, name, **more)


def _inverted(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    return not value


def _paired(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    return pairs(words, param.opts[0])


def _chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return value or ""


def _limit(ctx: click.Context, param: click.Parameter, nbytes: int | None) -> None:
    inflating.set_limit(nbytes)
    files.watchers[:] = [_render.counted]


# --- What several commands have --------------------------------------------------------------------------------------

ALLOWING: dict[str, Any] = {
    "allow_class": Row("Accept pickles that call NAME or hold objects of a class that matches it; paramtool runs "
                       "none of them.  Repeatable.", "NAME", _completion.classes),
    "allow_unknown": Row("Accept pickles that call unknown names; paramtool runs nothing, so what they would make is "
                         "missing."),
    "max_inflated": click.option(
        "--max-inflated", type=Size(), metavar="SIZE", expose_value=False, callback=_limit,
        help="Inflate or calculate at most this many bytes of a checkpoint.  [default: 32GB, or 16 times the size of "
        "its files]"),
}  # fmt: skip
"""What of a checkpoint a person has looked at and allows; what is read keeps to the limit."""
READING: dict[str, Any] = {
    **ALLOWING,
    "config": Row("Read this config.json, or the one in this folder, in place of the one beside the checkpoint: it "
                  "says which names the model ties.  `none` reads none.", "PATH"),
}  # fmt: skip
"""The same, and the config of the model."""
JSON = json_option()
PATH = click.argument("path", metavar="FILE", type=FILE)
ONLY = Row("Read this section of a training checkpoint and strip its prefix.", "SECTION", _completion.sections)
MEMORY = Row("Use at most this much memory to compare tensors.  [default: 512MiB]")
MAX_SHARD_SIZE = Row("Write a folder of shards of at most this size, for example 5GB.")
OBJECTS: dict[str, Any] = {
    "skip_unsupported": Row("Leave out tensors and objects that the output format cannot hold."),
    "plain": Row("In a torch file, write objects as dicts, lists, numbers and strings, so that "
                 "torch.load(weights_only=True) opens it."),
    "strict": Row("Fail instead of leaving out objects that the output format cannot hold."),
}  # fmt: skip
"""What becomes of what is no tensor."""
WRITING: dict[str, Any] = {
    **READING,
    "verify": Row("Do not read the output back."),
    "dry_run": Row("Print what would be done and write nothing."),
    "json": JSON,
    "force": Row("Overwrite the output if it exists."),
}
"""What every command that writes a checkpoint ends with."""
ALIGN = Row("Align tensor data to a multiple of BYTES.  With 4096, tensors of whole pages come first.", "BYTES")
FAIL_ON = Row("Exit with code 1 if RULE finds something; `paramtool help inspect --all` lists the rules.  Repeatable.",
              "RULE", _completion.rules)  # fmt: skip
WEIGHTS = Row("Read this set of weights, where a folder has several.", "FILE")
EACH = Row("Write every set of weights of a folder and of the folders inside it.")
FORMAT = Row("Write a folder in this format; dcp is torch.distributed.checkpoint.", choices=("safetensors", "dcp"))
"""The format of an output folder."""
