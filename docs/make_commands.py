"""Writes docs/commands.md from the command line itself: `python docs/make_commands.py`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc

import click

from paramtool.cli._options import BREAK
from paramtool.cli.main import COMMANDS, cli

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "commands.md")
GUIDES = {
    "inspect": "[guide](inspect.md), [rules](rules.md), [what is printed](terminal.md)",
    "variants": "[guide](variants.md)",
    "report": "[guide](report.md)",
    "dedup": "[guide](dedup.md), [several inputs](dedup.md#several-inputs)",
    "export": "[guide](export.md)",
    "convert": "[recurrent networks](recurrent-networks.md), [dialects](dialects.md), [types](types.md), "
    "[formats](formats.md)",
    "fuse": "[dialects](dialects.md), [recurrent networks](recurrent-networks.md)",
    "unfuse": "[dialects](dialects.md), [recurrent networks](recurrent-networks.md)",
    "guess": "[guide](guess.md)",
    "layouts": "[every layout and dialect](layouts.md)",
    "diff": "[guide](diff.md), [an example of each verdict](how-to/read-a-diff.md)",
    "lock": "[guide](lock.md)",
    "check": "[guide](check.md), [in CI](ci.md)",
    "verify": "[guide](verify.md)",
}
"""The pages that explain a command."""
HEAD = """# Commands

<!-- below tested by: tests/site/test_help_examples.py -->

Written by `docs/make_commands.py` from the command line itself; `paramtool COMMAND --help` prints the same.  The
examples name files of yours; those of the [tutorial](tutorials/tied-model.md) run as they are.

Terminals get tables.  Output is plain lines when piped, one fact a line ([terminal](terminal.md)).  With `--json`,
every command prints one JSON document ([JSON](json.md)).

"""
EVERYWHERE = """
## Options of every command

They may be given before the command, too.  `paramtool help COMMAND` prints what `--help` prints.

"""
FOOT = """
## Every other ending

Every command also ends with 70 after an internal error, with 129, 130 or 143 after a signal, and with 141 if the reader
of its output stops reading ([exit codes](exit-codes.md)).
[Terminal](terminal.md#completion) says how a shell completes commands and options.
"""


def document() -> str:
    """The whole page."""
    above = click.Context(cli, info_name="paramtool", **cli.context_settings)
    common = _options(cli, above)
    parts = [HEAD, *_contents(), EVERYWHERE, *_table(common)]
    for name in COMMANDS:
        command = cli.get_command(above, name)
        assert command is not None
        context = command.context_class(command, info_name=name, parent=above)
        parts += _section(command, context, without=common)
    return "".join((*parts, FOOT))


def _contents() -> Iterator[str]:
    """Every command in a row, by what a person wants."""
    yield "| to | command | what it does |\n|---|---|---|\n"
    wants = [(name, want) for name, (want, *_) in COMMANDS.items()]
    for k, (name, want) in enumerate(wants):
        first = want if k == 0 or wants[k - 1][1] != want else ""
        yield f"| {first} | [`{name}`](#{name}) | {COMMANDS[name][1]} |\n"


def _section(command: click.Command, context: click.Context, without: Iterable[tuple[str, str]]) -> Iterator[str]:
    """One command: usage, what it does, examples, options, exit codes."""
    name = str(context.info_name)
    said, _, examples = cleandoc(command.help or "").partition(BREAK)
    rest, _, codes = (command.epilog or "").replace("\b", "").partition("Exit codes: ")
    yield f"\n## {name}\n\n```\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n\n"
    yield "\n\n".join(_marked(" ".join(text.split("\n"))) for text in said.split("\n\n")) + "\n\n"
    yield f"More: {GUIDES[name]}.\n\nExamples:\n\n```\n"
    yield "".join(f"{line.removeprefix('$ ')}\n" for line in examples.splitlines() if line) + "```\n\n"
    yield from _table(record for record in _options(command, context) if record not in without)
    yield from _listed(rest.strip())
    yield from _codes(codes)


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """(spellings, help) of each option, as --help prints them."""
    options = (one for one in command.get_params(context) if isinstance(one, click.Option))
    return [record for one in options if (record := one.get_help_record(context))]


def _table(records: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Options and their help."""
    yield "| option | what it does |\n|---|---|\n"
    for names, text in records:
        yield f"| {_code(names)} | {_marked(' '.join(text.split()))} |\n"


def _code(names: str) -> str:
    """`-o, --output DST`, each spelling as code."""
    return ", ".join(f"`{name}`".replace("|", r"\|") for name in names.split(", "))


def _marked(text: str) -> str:
    """A help text as Markdown: flags and what is quoted by backticks are code, and nothing else has a meaning."""
    pieces = re.split(r"(`[^`]*`|(?<![\w-])--?[a-z][\w-]*)", text)
    marked = "".join(
        re.sub(r"[\\*<|]", r"\\\g<0>", piece) if k % 2 == 0 else f"`{piece.strip('`')}`".replace("|", r"\|")
        for k, piece in enumerate(pieces)
    )
    return re.sub(r"\bdocs/([\w-]+)\.md", _link, marked)


def _link(page: re.Match[str]) -> str:
    """A page as a link with its name as words: JSON, add a layout."""
    words = page[1].replace("-", " ")
    return f"[{'JSON' if words == 'json' else words}]({page[1]}.md)"


def _listed(text: str) -> Iterator[str]:
    """What an epilog lists: a title, and pairs of a line and a deeper one."""
    if not text:
        return
    title, *lines = text.splitlines()
    yield f"\n{title}\n\n| rule | what it finds |\n|---|---|\n"
    for rule, words in zip(lines[::2], lines[1::2], strict=True):
        yield f"| `{rule.strip()}` | {_marked(words.strip())} |\n"


def _codes(text: str) -> Iterator[str]:
    """The exit codes of an epilog, a row each."""
    told, _, more = text.rstrip(".").partition(".  ")
    yield "\n| exit code | when |\n|---|---|\n"
    for one in re.split(r"[,;] (?=\d)", told):
        code, _, words = one.partition(" ")
        yield f"| {code} | {_marked(words)} |\n"
    if more:
        yield f"\n{_marked(more)}.\n"


if __name__ == "__main__":
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(document())
