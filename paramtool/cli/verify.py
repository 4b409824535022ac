"""`paramtool verify`: the comparison that dedup makes, later, by anyone."""

from __future__ import annotations

from inspect import signature
from typing import Any

import click

from paramtool.cli import _render
from paramtool.cli._options import Row, command_line
from paramtool.cli._paths import FILE
from paramtool.cli._render import Rows, once
from paramtool.commands import verify as verify_command
from paramtool.errors import plural


@command_line(
    verify_command.verify,
    "OUT [CKPT]",
    common="only subset tensors_only into weights each config",
    codes="0 equal, 1 differences, 2 usage, 3 bad file, 4 unsafe file.",
    against=Row("The checkpoint that OUT was made from, in place of CKPT.", "CKPT", type=FILE),
    only=Row("Compare with this section of CKPT, its prefix stripped.", "SECTION"),
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
)
def command(out: str, ckpt: str | None, *, against: str | None, each: bool, **options: Any) -> int:
    """Compare two checkpoints: dtype, shape and bytes of each tensor, which names share memory, and all other objects.

    CKPT is the checkpoint that OUT was made from.  For two folders, the other files are compared as well.

    \b
    $ paramtool verify model.dedup.safetensors model.pt
    """
    if (ckpt is None) == (against is None):
        raise click.UsageError("say once which checkpoint OUT was made from, as in: paramtool verify OUT CKPT")
    run: Any = verify_command.verify_each if each else verify_command.verify
    known = signature(run).parameters
    if any(given and name not in known for name, given in options.items()):
        raise click.UsageError(
            "--each compares all sets of weights, so it excludes --weights, --only, --into and --new-config"
        )
    options = {name: given for name, given in options.items() if name in known}
    found = run(out, ckpt or against, progress=_render.progress, **options)
    if not _render.current.as_json:
        _render.lines(found.differences, "difference")
    _render.report(found, _rows)
    return int(bool(found.differences))


def _rows(found: verify_command.Verified) -> Rows:
    if found.differences:
        yield "verdict", f"{plural(found.differences, 'difference')} from {found.against}"
        return
    counts = (
        (found.names, f"equal to {found.against}"),
        (found.rounded, "rounded to another type, as the record says"),
        (found.dequantised, "calculated from codes and scales, as the record says"),
        (found.remade, f"equal to what converting {found.against} again gives"),
    )
    said = ((f"{plural(number, 'name')} of {found.output}", how) for number, how in counts if number)
    yield from once("verified", [*said, (f"compared: {', '.join(found.compared)}",)])
