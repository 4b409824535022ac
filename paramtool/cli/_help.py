"""A command whose help opens with its examples, and fits a screen: what is asked for less often is in `help --all`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from inspect import cleandoc
from typing import Any

import click

from paramtool.model.config import REPLACED

BREAK = "\n\n\b\n"
"""The text before the examples in a command's docstring: click keeps the lines that follow."""
ALL = "paramtool.all"
"""The key of a context's `meta` that asks for every option."""
LIKENESS = 0.75
"""How alike two flags are of which one may be meant: `--merge` is no `--verbose`."""
SHARED = 3
"""An option that as many commands have is described once, by `help options`."""


class Command(click.Command):
    """A command whose docstring ends with lines to type, `$ paramtool ...`; --help shows them first.

    `common` names the options of a short help; the others, and the rules `more`, are in the long one.
    """

    def __init__(
        self, *args: Any, common: str = "", more: Callable[[], Sequence[tuple[str, str]]] = tuple, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.common, self.more = common.split(), more

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As of click; a flag that was removed is answered with what replaces it."""
        try:
            return super().parse_args(ctx, args)
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
        shown = every if ALL in ctx.meta else [one for one in every if one.name in self.common] or every
        write_options(formatter, "Options", shown, ctx)
        if left := len(every) - len(shown):
            formatter.write_paragraph()
            formatter.write_text(f"{left} more: `paramtool help {ctx.info_name} --all`.")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The exit codes; in the long help what else there is to know."""
        super().format_epilog(ctx, formatter)
        if ALL in ctx.meta and (more := self.more()):
            with formatter.section("Rules, and what each finds"):
                formatter.write_dl(more)


def write_options(
    formatter: click.HelpFormatter, title: str, options: Iterable[click.Option], ctx: click.Context
) -> None:
    """A section of options with what they do."""
    records = [record for one in options if (record := one.get_help_record(ctx))]
    with formatter.section(title):
        formatter.write_dl(records)


def shared(commands: Iterable[click.Command]) -> list[click.Option]:
    """Options that many commands have in the same words."""
    every = [one for command in commands for one in command.params if isinstance(one, click.Option)]
    words = Counter((one.name, one.help) for one in every)
    return [*{one.name: one for one in every if words[one.name, one.help] >= SHARED}.values()]


def _parts(text: str | None) -> tuple[str, str]:
    """The text and the examples of a docstring."""
    said, _, examples = cleandoc(text or "").partition(BREAK)
    return said, examples
