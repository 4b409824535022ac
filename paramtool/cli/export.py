"""`paramtool export`: exactly the file that one variant needs, for programs without paramtool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from paramtool import jobs
from paramtool.cli import _render
from paramtool.cli._align import ALIGN, physical
from paramtool.cli._text import FILE, Size, plural, quoted, size
from paramtool.jobs._names import read_names
from paramtool.jobs.exporting import MAX_EXPANDED_NBYTES

if TYPE_CHECKING:
    from paramtool.jobs import Exported


@click.command("export", epilog="Exit codes: 0 fine, 2 a name is missing, 3 bad file, 6 no plain form, 7 output.")
@click.argument("path", metavar="FILE", type=FILE)
@click.option("--names", type=FILE, metavar="NAMES.txt", help="One name a line; - reads standard input.")
@click.option(
    "--like",
    type=FILE,
    metavar="OTHER_CKPT",
    help="Take the names, and check the shapes, of another.",
)
@click.option("--like-only", metavar="SECTION", help="The names of one section of OTHER_CKPT, its prefix stripped.")
@click.option("--only", metavar="SECTION", help="One section of FILE, its prefix stripped.")
@click.option("-o", "--output", required=True, type=FILE)
@click.option("--max-bytes", type=Size(), default=MAX_EXPANDED_NBYTES, show_default=True,
              help="What one expanded (stride 0) tensor may grow to.")  # fmt: skip
@ALIGN
@click.option("--json", "as_json", is_flag=True, help="One JSON document (docs/json.md has its schema).")
@click.option("--force", is_flag=True, help="Overwrite the output if it exists.")
def command(
    path: str, names: str | None, like: str | None, like_only: str | None, only: str | None, output: str,
    max_bytes: int, align: int, as_json: bool, force: bool,
) -> None:  # fmt: skip
    """Write a plain safetensors file with exactly the names that a variant wants, each stored for itself.

    \b
    $ paramtool export model.dedup.safetensors --names names.txt -o plain.safetensors
    $ paramtool export model.dedup.safetensors --like variant.pt -o plain.safetensors
    """
    wanted = read_names(names) if names is not None else None
    found = jobs.export(
        path,
        output,
        names=wanted,
        like=like,
        like_only=like_only,
        only=only,
        max_bytes=max_bytes,
        align=align,
        force=force,
        progress=_render.progress,
    )
    if as_json:
        from paramtool.cli import _json

        _render.json_text(_json.exported(found))
    else:
        _render.rows(_rows(found, path, like))


def _rows(found: Exported, path: str, like: str | None) -> Iterator[_render.Row]:
    whose = f"names of section {found.like_section} of {like}" if found.like_section is not None else ""
    yield ("export", f"{path} -> {found.output}", plural(len(found.names), "name"), size(found.nbytes), whose)
    yield from physical(found.nbytes, found.cloned_nbytes)
    section = f" --only {quoted(found.section)}" if found.section is not None else ""
    yield ("next", f"paramtool verify {quoted(found.output)} --against {quoted(path)}{section} --subset")
