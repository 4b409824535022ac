"""`paramtool verify`: the comparison that dedup makes, later, by anyone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from paramtool.cli import _completion, _display, _render
from paramtool.cli._allow import JSON, allowing
from paramtool.cli._help import Command
from paramtool.cli._table import whole
from paramtool.cli._text import FILE, plural
from paramtool.commands import verify as verify_command


@click.command("verify", cls=Command, epilog="Exit codes: 0 equal, 1 differences, 2 usage, 3 bad file, 4 unsafe file.")
@click.argument("out", type=FILE)
@click.option("--against", required=True, type=FILE, metavar="CKPT", help="The checkpoint that OUT was made from.")
@click.option(
    "--only",
    metavar="SECTION",
    shell_complete=_completion.sections_of("against"),
    help="Compare with this section of CKPT, its prefix stripped.",
)
@click.option("--subset", is_flag=True, help="Accept that OUT lacks names, objects and files, as an export does.")
@click.option("--tensors-only", is_flag=True, help="Compare tensors and ties only, not other objects and files.")
@click.option("--into", metavar="MODEL", type=FILE, help="The model that `convert` put the weights of CKPT into.")
@click.option("--map", multiple=True, metavar="A=B", help="With --into: as it was given to `convert`.  Repeatable.")
@click.option("--flatten", default="", metavar="ORDER", help="With --into: as it was given to `convert`.")
@click.option("--partial", is_flag=True, help="With --into: as it was given to `convert`.")
@click.option("--from", "source", metavar="LAYOUT", help="With --into: as it was given to `convert`.")
@click.option("--spec", default="", metavar="WORDS", help="With --into: as it was given to `convert`.")
@click.option("--new-config", type=FILE, metavar="CONFIG.JSON", help="As it was given to the conversion of a folder.")
@click.option("--weights", metavar="FILE", help="Compare with this set of weights, where the folder CKPT has several.")
@click.option(
    "--each", is_flag=True, help="Compare every set of weights of two folders and of the folders inside them."
)
@allowing
@JSON
@_display.options
def command(
    out: str, against: str, *, subset: bool, tensors_only: bool, each: bool, as_json: bool,
    allow_class: tuple[str, ...], allow_unknown: bool, **options: Any,
) -> int:  # fmt: skip
    """Compare two checkpoints: dtype, shape and bytes of each tensor, which names share memory, and all other objects.

    For two folders, the other files are compared as well.

    \b
    $ paramtool verify model.dedup.safetensors --against model.pt
    """
    if each and any(options[name] is not None for name in ("weights", "only", "into", "new_config")):
        raise click.UsageError(
            "--each compares all sets of weights, so it excludes --weights, --only, --into and --new-config"
        )
    run: Callable[..., verify_command.Verified] = verify_command.verify_each if each else verify_command.verify
    found = run(
        out, against, subset=subset, tensors_only=tensors_only, allow_class=allow_class, allow_unknown=allow_unknown,
        progress=_render.progress, **({} if each else options),
    )  # fmt: skip
    _render.warn(*found.warnings)
    if as_json:
        _render.json_document(found)
    elif found.differences:
        _render.lines(found.differences, "difference")
    else:
        what = ", ".join(found.compared)
        names = plural(found.names, "name")
        notes = [f"{plural(found.rounded, 'tensor')} rounded as recorded"] * bool(found.rounded)
        notes += [f"{plural(found.dequantised, 'tensor')} dequantised as recorded"] * bool(found.dequantised)
        notes += [f"{plural(found.remade, 'converted tensor')} as converting again gives"] * bool(found.remade)
        notes += [f"not {plural(found.converted, 'converted tensor')}"] * bool(found.converted)
        names = ", ".join([names, *notes]) + "," * bool(notes)
        _render.rows(
            [("verified", whole(f"{names} of {found.output}"), whole(f"equal to {found.against}"), f"compared: {what}")]
        )
    return 1 if found.differences else 0
