"""`paramtool export`: exactly the file that one variant needs, for programs without paramtool."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _each, _render
from paramtool.cli._allow import ALIGN, allowing, physical
from paramtool.cli._text import FILE, NEXT, OUTPUT, Size, came_along, named, plural, size, verify_line
from paramtool.commands import export as export_command
from paramtool.commands.export import MAX_EXPANDED_NBYTES

if TYPE_CHECKING:
    from paramtool.commands.export import Exported

MANY = 8
"""So many names are listed; --json lists all."""


@click.command("export", epilog="Exit codes: 0 fine, 2 name missing, 3 bad file, 4 unsafe file, 6 no form, 7 output.")
@click.argument("path", metavar="FILE", type=FILE)
@click.option("--names", type=FILE, metavar="NAMES.txt", help="One name a line; - reads standard input.")
@click.option("--like", type=FILE, metavar="OTHER_CKPT", help="Take the names, and check the shapes, of another.")
@click.option("--keys-from-config", "config", type=FILE, is_flag=False, flag_value="", metavar="[CONFIG.JSON]",
              help="Names and shapes of the model of a config of transformers, or of the one beside FILE.")  # fmt: skip
@click.option("--all-names", is_flag=True, help="Every name, aliases too.")
@click.option("--like-only", metavar="SECTION", help="The names of one section of OTHER_CKPT, its prefix stripped.")
@_each.WEIGHTS
@_each.EACH
@click.option("--only", metavar="SECTION", help="One section of FILE, its prefix stripped.")
@click.option("--prefix", default="", metavar="P", help="Of FILE the names that begin with P, without it.")
@click.option("--rename", multiple=True, metavar="FROM=TO",
              help="A name or a pattern, 'bert.*=*'; again for more, which see what it made.")  # fmt: skip
@click.option("-o", "--output", required=True, type=FILE, help=OUTPUT)
@click.option("--max-shard-size", type=Size(), help="Write a folder of shards of at most this size, such as 5GB.")
@click.option("--max-bytes", type=Size(), default=MAX_EXPANDED_NBYTES, show_default=True,
              help="What one expanded (stride 0) tensor may grow to.")  # fmt: skip
@ALIGN
@allowing
@click.option("--no-verify", is_flag=True, help="Do not read the result back.")
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document (docs/json.md has its schema).")
@click.option("--force", is_flag=True, help="Overwrite the output if it exists.")
def command(
    path: str, names: str | None, like: str | None, config: str | None, *, all_names: bool, output: str,
    max_shard_size: int | None, no_verify: bool, as_json: bool, each: bool, **options: Any,
) -> None:  # fmt: skip
    """Write a plain file with exactly the names that a variant wants, each stored for itself.

    Say which names in one way.  They are looked for in the section of --only, after --prefix, after --rename.

    \b
    $ paramtool export model.dedup.safetensors --like variant.pt -o plain.safetensors
    $ paramtool export FOLDER --keys-from-config -o OUTFOLDER
    $ paramtool export PIPELINE --all-names --each -o OUTFOLDER
    $ paramtool export bert.pt --all-names --prefix bert. --rename '*.gamma=*.weight' -o encoder.safetensors
    """
    options |= {"max_shard_size": max_shard_size, "verify": not no_verify, "progress": _render.progress}
    if each:
        if not all_names or options["like_only"] is not None:
            raise click.BadParameter("writes every name of each set, so it goes with --all-names", param_hint="--each")
        from paramtool.cli import _json

        del options["like_only"]
        progress = options.pop("progress")
        _each.report(
            export_command.export_each(
                path, output, options=export_command.ExportOptions(**options), progress=progress
            ),
            as_json,
            _json.exported,
            partial(_rows, like=None),
            flag=lambda found: "--subset",
        )
        return
    from pathlib import Path

    found = export_command.export(
        path,
        output,
        names=None if names is None else Path(names),
        like=like,
        keys_from_config=config,
        all_names=all_names,
        **options,
    )
    _render.warn(*found.warnings)
    if as_json:
        from paramtool.cli import _json

        _render.json_text(_json.exported(found))
    else:
        _render.rows(_rows(found, like))


def _rows(found: Exported, like: str | None) -> Iterator[_render.Row]:
    whose = f"names of section {found.like_section} of {like}" if found.like_section is not None else ""
    what = "export" if found.written else "dry run"
    yield (what, f"{found.input} -> {found.output}", plural(len(found.names), "name"), size(found.nbytes), whose)
    yield from physical(found.nbytes, found.cloned_nbytes)
    if not found.written:
        yield from (("name", named(name), _was(name, found)) for name in found.names)
    elif found.renamed:
        yield from (("renamed", name, f"was {old}") for name, old in list(found.renamed.items())[:MANY])
        if len(found.renamed) > MANY:
            yield ("renamed", f"and {len(found.renamed) - MANY} more", "--json lists them")
    yield from came_along(found.sidecars)
    yield from (("left out", text) for text in found.left_out)
    if not found.written:
        return
    yield ("verified", "all read back and equal") if found.verified else ("not done", "not verified (--no-verify)")
    if not found.renamed:
        yield (NEXT, verify_line(found.output, found.input, found.section, "--subset"))


def _was(name: str, found: Exported) -> str:
    return f"was {found.renamed[name]}" if name in found.renamed else ""
