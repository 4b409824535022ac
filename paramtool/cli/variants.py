"""`paramtool variants`: which variants of a model can load a file, before anyone loads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paramtool.cli import _render
from paramtool.cli._failures import failure
from paramtool.cli._options import Row, command_line
from paramtool.cli._paths import FILE_OR_STDIN
from paramtool.cli._render import MANY, NEXT, Rows, every, most
from paramtool.cli._streams import quoted
from paramtool.commands.variants import Variants, variants
from paramtool.engine.compare.changes import format_difference
from paramtool.errors import exit_code, plural


@command_line(
    variants,
    "FILE",
    common="against only config",
    codes="0 all can load, 1 one cannot, 2 usage, 3 bad file, 4 unsafe file.",
    against=Row(
        "A variant: a file of names, one a line (- reads standard input); a checkpoint; a transformers "
        "config; or a folder with one of these.  Repeatable.",
        "NAMES|CKPT|config.json",
        type=FILE_OR_STDIN,
    ),
    only=Row("Read this section of FILE and strip its prefix.", "SECTION"),
)
def command(file: str, against: tuple[str, ...], only: str | None, **allowed: Any) -> int:
    """Say which variants of a model can load a file, which names need aliases, and what prevents the others.

    Tensor data is read only where a variant ties names that the file stores twice.  For a config.json, the installed
    transformers builds the model without weights; nothing is downloaded.

    \b
    $ paramtool variants model.dedup.safetensors --against names.txt
    $ paramtool variants small.safetensors --against old.pt --against untied/
    """
    found = variants(file, against, only=only, progress=_render.progress, **allowed)
    warnings = dict.fromkeys(text for one in found for text in one.warnings)
    quietly = (f"finding: {one.against}: {one.verdict}" for one in found if not one.loads)
    _render.report(Variants(file, found), _rows, warnings, quietly)
    _render.flush()
    failed = [failure(one.error) for one in found if one.error]
    for one in filter(None, failed):
        one.complain()
    return exit_code([0 if all(one.loads for one in found) else 1, *(one.code for one in failed if one)])


def _rows(report: Variants) -> Rows:
    found = report.variants
    for one in found:
        section = [] if one.section is None else [f"section {one.section}"]
        counts = (text.format(len(names)) for kind, (text, _, _) in _KINDS.items() if (names := getattr(one, kind)))
        yield "variant", one.against, one.verdict, " · ".join([plural(one.names, "name"), *section, *counts])
    for one in found:
        for kind, (_, label, line) in _KINDS.items():
            lines = [*map(line, getattr(one, kind))]
            lines[most(MANY) :] = [f"and {len(lines) - most(MANY)} more"] * (len(lines) > most(MANY))
            yield from every(label, ((one.against, text) for text in lines))
        if one.advice:
            yield "hint", one.against, one.advice
    # How the first that loads through aliases does so, with paramtool and for programs without it.
    for one in [one for one in found if one.loads and one.through and not one.advice][:1]:
        strict = ", strict=False" if one.unused else ""
        yield "load it", f"paramtool.torch.load_model(model, {report.path!r}{strict})"
        if one.against != "-":
            only = "" if one.section is None else f" --only {quoted(one.section)}"
            names = f"{_FLAGS[one.kind]} {quoted(one.against)}{only}"
            yield NEXT, f"paramtool export {quoted(report.path)} {names}", "for programs without paramtool"


_RELATIONS = {
    "same": "the bytes of", "slice": "a slice of", "transpose": "the transpose of", "view": "a view of",
    "overlap": "a window on", "cast": "calculated from", "constant": "one value, stored as such",
}  # fmt: skip
_KINDS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "lacks": ("lacks {}", "lacks", str),
    "shapes": ("{} of another shape", "shape",
               lambda one: f"{one.name}: {list(one.found)} in the file, {list(one.wanted)} wanted"),
    "types": ("{} of another type", "type", lambda one: f"{one.name}: {one.found} in the file, {one.wanted} wanted"),
    "rows": ("{} with other rows", "rows", lambda one: f"{one.name}: {one.found}; {one.wanted} wanted"),
    "apart": ("{} tied here and apart in the file", "apart",
              lambda one: f"{one.name} and {one.other}: tied in the variant, "
              f"{format_difference(one.difference) or 'different bytes'}"),
    "through": ("{} through aliases", "alias",
                lambda one: f"{one.name}: {_RELATIONS[one.relation]} {one.owner}".rstrip()),
    "filled": ("{} filled by a tied name", "filled", lambda one: f"{one.name}: lacking, and tied to {one.by}"),
    "unused": ("leaves {} unused", "unused", str),
}  # fmt: skip
"""{what a variant has of names: a count of it, the label of one, and its line}, what matters most first."""


_FLAGS = {"names": "--names", "checkpoint": "--like", "config": "--config"}
"""How `export` is told of the same variant."""
