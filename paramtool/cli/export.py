"""`paramtool export`: exactly the file that one variant needs, for programs without paramtool."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from paramtool.cli import _completion, _render
from paramtool.cli._options import BESIDE, EACH, OUTPUT_ANY, Row, command_line
from paramtool.cli._paths import FILE_OR_STDIN
from paramtool.cli._render import NEXT, Rows, listed, named
from paramtool.cli._written import beside, head, physical, report, verify_line
from paramtool.commands import export as export_command
from paramtool.errors import UsageError, plural
from paramtool.model.display import size

if TYPE_CHECKING:
    from paramtool.commands.export import Exported


@command_line(
    export_command.export,
    "FILE",
    common="output names like all_names only prefix rename config dry_run force",
    codes="0 fine, 2 name missing, 3 bad file, 4 unsafe file, 6 the format cannot hold it, 7 output.",
    names=Row("Write the names in this file, one a line; - reads standard input.", "NAMES.txt", type=FILE_OR_STDIN),
    like=Row("Write the names of another checkpoint, and check its shapes.", "OTHER_CKPT"),
    all_names=Row("Write every name, aliases included."),
    like_only=Row(
        "Take the names of this section of OTHER_CKPT and strip its prefix.", "SECTION", _completion.sections_of("like")
    ),
    each=EACH,
    only=Row(
        "Read this section of FILE and strip its prefix; `model` is the model, whatever its section is called.",
        "SECTION",
    ),
    prefix=Row("Keep the names in FILE that begin with P, and strip it.", "P"),
    rename=Row("Rename a name or a pattern, such as 'bert.*=*'.  Repeatable; rules apply in order.", "FROM=TO"),
    ties=Row("Where FILE omits NAME, write the tensor OTHER under it.  Repeatable.", "NAME=OTHER"),
    output=Row(f"Where to write.  {OUTPUT_ANY}  [default: <stem>.plain.safetensors beside FILE{BESIDE}]"),
    dry_run=Row("Print what would be written and write nothing."),
)
def command(file: str, names: str | None, output: str | None, *, each: bool, **flags: Any) -> None:
    """Write a plain file with exactly the names that a variant wants.  Each name is stored separately.

    The names are those of --names or --like, else of the model of --config (transformers builds it), else all.  --only
    applies first, then --prefix, then --rename; the names are looked up in the result.  --only alone writes the model
    of a training checkpoint, as from_pretrained opens it: names and ties as config.json wants them, without the state
    of the training.

    \b
    $ paramtool export CHECKPOINT --only model -o OUTFOLDER
    $ paramtool export small.safetensors --like variant.pt -o plain.pt
    $ paramtool export FOLDER --config OTHER/config.json -o OUTFOLDER
    $ paramtool export PIPELINE --all-names --each -o OUTFOLDER
    $ paramtool export bert.pt --prefix bert. --rename '*.gamma=*.weight'
    """
    if each:
        if names or not flags.pop("all_names") or flags.pop("like"):
            raise UsageError("--each writes every name of each set: it needs --all-names, and no --names or --like")
        options = export_command.ExportOptions(**flags)
        found: Any = export_command.export_each(file, output, options=options, progress=_render.progress)
    else:
        from pathlib import Path

        listed = None if names is None else Path(names)
        found = export_command.export(file, output, names=listed, progress=_render.progress, **flags)
    report(found, partial(_rows, like=flags.get("like")), lambda found: "--subset")


def _rows(found: Exported, like: str | None) -> Rows:
    whose = f"names of section {found.like_section} of {like}" if found.like_section is not None else ""
    yield head(found, "export", plural(found.names, "name"), size(found.nbytes), whose)
    yield from physical(found, found.nbytes)
    if not found.written:
        yield from (
            ("name", named(name), (f"was {found.renamed[name]}" if name in found.renamed else ""))
            for name in found.names
        )
    else:
        yield from listed("renamed", ((name, f"was {old}") for name, old in found.renamed.items()))
    tied = ((name, f"written from {other}, which FILE has") for name, other in found.tied.items())
    yield from listed("tied", tied, "name")
    yield from beside(found)
    if not found.written:
        return
    yield ("verified", "all read back and equal") if found.verified else ("not done", "not verified (--no-verify)")
    if not found.renamed and not found.tied:
        yield NEXT, verify_line(found, "--subset")
