"""`paramtool verify`: the comparison that dedup makes, later, by anyone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from paramtool.cli import _completion, _display, _render
from paramtool.cli._options import JSON, READING, Row, command_line
from paramtool.cli._text import FILE, plural
from paramtool.commands import verify as verify_command


@command_line(
    verify_command.verify,
    click.argument("out", type=FILE),
    click.argument("ckpt", required=False, type=FILE),
    common="only subset tensors_only into weights each config",
    codes="0 equal, 1 differences, 2 usage, 3 bad file, 4 unsafe file.",
    against=click.option(
        "--against", type=FILE, metavar="CKPT", help="The checkpoint that OUT was made from, in place of CKPT."
    ),
    only=Row("Compare with this section of CKPT, its prefix stripped.", "SECTION", _completion.sections_of("against")),
    subset=Row("Accept that OUT lacks names, objects and files, as an export does."),
    tensors_only=Row("Compare tensors and ties only, not other objects and files."),
    into=Row("The model that `convert` put the weights of CKPT into.", "MODEL"),
    map=Row("With --into: as it was given to `convert`.  Repeatable.", "A=B"),
    flatten=Row("With --into: as it was given to `convert`.", "ORDER"),
    partial=Row("With --into: as it was given to `convert`."),
    source=Row("With --into: as it was given to `convert`.", "LAYOUT", flag="--from"),
    spec=Row("With --into: as it was given to `convert`.", "WORDS"),
    new_config=Row("As it was given to the conversion of a folder.", "CONFIG.JSON"),
    weights=Row("Compare with this set of weights, where the folder CKPT has several.", "FILE"),
    each=Row("Compare every set of weights of two folders and of the folders inside them."),
    **READING,
    json=JSON,
)
def command(
    out: str, ckpt: str | None, *, against: str | None, subset: bool, tensors_only: bool, each: bool,
    allow_class: tuple[str, ...], allow_unknown: bool, **options: Any,
) -> int:  # fmt: skip
    """Compare two checkpoints: dtype, shape and bytes of each tensor, which names share memory, and all other objects.

    CKPT is the checkpoint that OUT was made from.  For two folders, the other files are compared as well.

    \b
    $ paramtool verify model.dedup.safetensors model.pt
    """
    if (ckpt is None) == (against is None):
        raise click.UsageError("say once which checkpoint OUT was made from, as in: paramtool verify OUT CKPT")
    if each and any(options[name] is not None for name in ("weights", "only", "into", "new_config")):
        raise click.UsageError(
            "--each compares all sets of weights, so it excludes --weights, --only, --into and --new-config"
        )
    run: Callable[..., verify_command.Verified] = verify_command.verify_each if each else verify_command.verify
    found = run(
        out, ckpt or against or "", subset=subset, tensors_only=tensors_only, allow_class=allow_class,
        allow_unknown=allow_unknown, progress=_render.progress, **({} if each else options),
    )  # fmt: skip
    if not _display.current.as_json:
        _render.lines(found.differences, "difference")
    _render.report(found, _rows(found), found.warnings)
    return 1 if found.differences else 0


def _rows(found: verify_command.Verified) -> _render.Rows:
    if found.differences:
        yield ("verdict", f"{plural(len(found.differences), 'difference')} from {found.against}")
        return
    what = f"compared: {', '.join(found.compared)}"
    label = "verified"
    if found.names:
        yield (label, f"{plural(found.names, 'name')} of {found.output}", f"equal to {found.against}", what)
        label = ""
    for number, how in (
        (found.rounded, "rounded to another type, as the record says"),
        (found.dequantised, "calculated from codes and scales, as the record says"),
        (found.remade, f"equal to what converting {found.against} again gives"),
    ):
        if number:
            yield (label, f"{plural(number, 'tensor')}: {how}")
            label = ""
