"""`paramtool verify`: the comparison that dedup makes, later, by anyone."""

from __future__ import annotations

from typing import Any

import click

from paramtool import jobs
from paramtool.cli import _render
from paramtool.cli._allow import allowing
from paramtool.cli._text import FILE, plural


@click.command("verify", epilog="Exit codes: 0 equal, 1 differences, 2 usage, 3 bad file, 4 unsafe file.")
@click.argument("out", type=FILE)
@click.option("--against", required=True, type=FILE, metavar="CKPT", help="What it was made from.")
@click.option("--only", metavar="SECTION", help="Compare with one section of CKPT, its prefix stripped.")
@click.option("--subset", is_flag=True, help="OUT may lack names and objects, as an export does.")
@click.option("--tensors-only", is_flag=True, help="Compare tensors and ties, and no other objects.")
@allowing
@click.option("--json", "as_json", is_flag=True, help="One JSON document (docs/json.md has its schema).")
def command(
    out: str, against: str, only: str | None, subset: bool, tensors_only: bool, as_json: bool, **allowed: Any
) -> int:
    """Compare two checkpoints: each tensor's dtype, shape and bytes, which names share memory, and all other objects.

    \b
    $ paramtool verify model.dedup.safetensors --against model.pt
    """
    found = jobs.verify(
        out, against, only=only, subset=subset, tensors_only=tensors_only, progress=_render.progress, **allowed
    )
    _render.warn(*found.warnings)
    if as_json:
        from paramtool.cli import _json

        _render.json_text(_json.verified(found))
    elif found.differences:
        _render.lines(f"difference: {text}" for text in found.differences)
    else:
        what = ", ".join(found.compared)
        names = plural(found.names, "name")
        _render.rows([("verified", f"{names} of {found.output}", f"equal to {found.against}", f"compared: {what}")])
    return 1 if found.differences else 0
