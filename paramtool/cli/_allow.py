"""The options that several commands have: what of a checkpoint a person has looked at and allows, and others."""

from __future__ import annotations

from collections.abc import Iterator

import click

from paramtool.cli import _completion, _render
from paramtool.cli._display import adding
from paramtool.cli._text import Size, size
from paramtool.commands.progress import MEMORY_NBYTES
from paramtool.formats import files
from paramtool.model import inflating


def _limit(ctx: click.Context, param: click.Parameter, nbytes: int | None) -> None:
    inflating.set_limit(nbytes)
    files.watchers[:] = [_render.counted]


OPTIONS = (
    click.option("--allow-class", multiple=True, metavar="NAME", shell_complete=_completion.classes,
                 help="Accept pickles that call NAME or hold objects of a class that matches it; paramtool runs "
                 "none of them.  Repeatable."),
    click.option("--allow-unknown", is_flag=True,
                 help="Accept pickles that call unknown names; paramtool runs nothing, so what they would make is "
                 "missing."),
    click.option("--max-inflated", type=Size(), metavar="SIZE", expose_value=False, callback=_limit,
                 help="Inflate or calculate at most this many bytes of a checkpoint.  [default: 32GB, or 16 times "
                 "the size of its files]"),
)  # fmt: skip


allowing = adding(OPTIONS)
"""Add the options; the command gets `allow_class` and `allow_unknown`, and what it reads keeps to the limit."""


JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document (schema: docs/json.md).")
ONLY = click.option("--only", metavar="SECTION", shell_complete=_completion.sections,
                    help="Read this section of a training checkpoint and strip its prefix.")  # fmt: skip
MEMORY = click.option("--memory", type=Size(), default=MEMORY_NBYTES,
                      help="Use at most this much memory to compare tensors.  [default: 512MiB]")  # fmt: skip
MAX_SHARD_SIZE = click.option(
    "--max-shard-size", type=Size(), help="Write a folder of shards of at most this size, for example 5GB."
)
SKIP_UNSUPPORTED = click.option("--skip-unsupported", is_flag=True,
                                help="Leave out tensors and objects that the output format cannot hold.")  # fmt: skip
PLAIN = click.option("--plain", is_flag=True, help="In a torch file, write objects as dicts, lists, numbers and "
                     "strings, so that torch.load(weights_only=True) opens it.")  # fmt: skip
STRICT = click.option(
    "--strict", is_flag=True, help="Fail instead of leaving out objects that the output format cannot hold."
)
NO_VERIFY = click.option("--no-verify", is_flag=True, help="Do not read the output back.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Print what would be done and write nothing.")
FORCE = click.option("--force", is_flag=True, help="Overwrite the output if it exists.")
ALIGN = click.option(
    "--align",
    type=Size(),
    default=8,
    show_default=True,
    metavar="BYTES",
    help="Align tensor data to a multiple of BYTES.  With 4096, tensors of whole pages come first.",
)


def physical(nbytes: int, cloned: int) -> Iterator[_render.Row]:
    """How much of an output is new on the disk, where some of it shares its blocks with what was read."""
    if cloned:
        yield ("on disk", f"{size(nbytes - cloned)} new", f"{size(cloned)} in blocks that the input has too")
