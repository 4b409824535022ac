"""A command whose help opens with its examples."""

from __future__ import annotations

from inspect import cleandoc

import click

from paramtool.model.config import REPLACED

BREAK = "\n\n\b\n"
"""The text before the examples in a command's docstring: click keeps the lines that follow."""


class Command(click.Command):
    """A command whose docstring ends with lines to type, `$ paramtool ...`; --help shows them first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As of click; a flag that was removed is answered with what replaces it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if said := REPLACED.get(error.option_name.lstrip("-").replace("-", "_")):
                raise click.UsageError(f"{error.option_name} is replaced: {said}", ctx) from None
            raise

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


def _parts(text: str | None) -> tuple[str, str]:
    """The text and the examples of a docstring."""
    said, _, examples = cleandoc(text or "").partition(BREAK)
    return said, examples
