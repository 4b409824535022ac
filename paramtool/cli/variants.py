"""`paramtool variants`: which variants of a model can load a file, before anyone loads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import paramtool
from paramtool.cli import _completion, _render
from paramtool.cli._display import current, most
from paramtool.cli._failures import failure
from paramtool.cli._options import JSON, PATH, READING, Row, command_line
from paramtool.cli._text import FILE_OR_STDIN, plural, quoted
from paramtool.engine.compare.difference import format_difference
from paramtool.errors import UsageError, exit_code

if TYPE_CHECKING:
    from paramtool.commands.variants import Variant

MANY = 8
"""How many names of a kind a report lists."""


@command_line(
    paramtool.variants,
    PATH,
    common="against only config",
    codes="0 all can load, 1 one cannot, 2 usage, 3 bad file, 4 unsafe file.",
    against=Row(
        "A variant: a file of names, one a line (- reads standard input); a checkpoint; a transformers "
        "config; or a folder with one of these.  Repeatable.",
        "NAMES|CKPT|config.json",
        type=FILE_OR_STDIN,
    ),
    only=Row("Read this section of FILE and strip its prefix.", "SECTION", _completion.sections),
    **READING,
    json=JSON,
)
def command(path: str, against: tuple[str, ...], only: str | None, **allowed: Any) -> int:
    """Say which variants of a model can load a file, which names need aliases, and what prevents the others.

    Tensor data is read only where a variant ties names that the file stores twice.  For a config.json, the installed
    transformers builds the model without weights; nothing is downloaded.

    \b
    $ paramtool variants model.dedup.safetensors --against names.txt
    $ paramtool variants small.safetensors --against old.pt --against untied/
    """
    if not against:
        raise UsageError(
            "nothing says which variants: a file of names, a checkpoint, a config.json, or a folder with one of these",
            hint=f"paramtool variants {quoted(path)} --against OTHER",
        )
    found = paramtool.variants(path, against, only=only, progress=_render.progress, **allowed)
    _render.warn(*dict.fromkeys(text for one in found for text in one.warnings))
    if current.quiet and not current.as_json:
        _render.lines((f"{one.against}: {one.verdict}" for one in found if not one.loads), "finding")
    else:
        from paramtool.commands.variants import Variants

        _render.report(Variants(path, found), _rows(path, found))
    _render.flush()
    failed = [failure(one.error) for one in found if one.error]
    for one in filter(None, failed):
        one.complain()
    return exit_code([0 if all(one.loads for one in found) else 1, *(one.code for one in failed if one)])


def _rows(path: str, found: Sequence[Variant]) -> _render.Rows:
    for variant in found:
        # What there is of each kind, in the order of what matters.
        counts = (
            ("lacks {}", variant.lacks),
            ("{} of another shape", variant.shapes),
            ("{} of another type", variant.types),
            ("{} with other rows", variant.rows),
            ("{} tied here and apart in the file", variant.apart),
            ("{} through aliases", variant.through),
            ("{} filled by a tied name", variant.filled),
            ("leaves {} unused", variant.unused),
        )
        section = [] if variant.section is None else [f"section {variant.section}"]
        yield (
            "variant",
            variant.against,
            variant.verdict,
            " · ".join(
                [plural(variant.names, "name"), *section, *(text.format(len(names)) for text, names in counts if names)]
            ),
        )
    for variant in found:
        for label, lines in _details(variant):
            more = [f"and {len(lines) - most(MANY)} more"] if len(lines) > most(MANY) else []
            yield from ((label, variant.against, line) for line in (*lines[: most(MANY)], *more))
        if variant.advice:
            yield ("hint", variant.against, variant.advice)
    yield from _next(path, found)


def _details(variant: Variant) -> Iterator[tuple[str, list[str]]]:
    yield "lacks", list(variant.lacks)
    yield "shape", [f"{c.name}: {list(c.found)} in the file, {list(c.wanted)} wanted" for c in variant.shapes]
    yield "type", [f"{c.name}: {c.found} in the file, {c.wanted} wanted" for c in variant.types]
    yield "rows", [f"{c.name}: {c.found}; {c.wanted} wanted" for c in variant.rows]
    yield (
        "apart",
        [
            f"{a.name} and {a.other}: tied in the variant, {format_difference(a.difference) or 'different bytes'}"
            for a in variant.apart
        ],
    )
    yield "alias", [f"{t.name}: {_RELATIONS[t.relation]} {t.owner}".rstrip() for t in variant.through]
    yield "filled", [f"{f.name}: lacking, and tied to {f.by}" for f in variant.filled]
    yield "unused", list(variant.unused)


_RELATIONS = {
    "same": "the bytes of", "slice": "a slice of", "transpose": "the transpose of", "view": "a view of",
    "overlap": "a window on", "cast": "calculated from", "constant": "one value, stored as such",
}  # fmt: skip


def _next(path: str, found: Sequence[Variant]) -> _render.Rows:
    """How the first variant that loads through aliases does so, with paramtool and for programs without it."""
    variant = next((v for v in found if v.loads and v.through and not v.advice), None)
    if variant is None:
        return
    strict = ", strict=False" if variant.unused else ""
    yield ("load it", f"paramtool.torch.load_model(model, {path!r}{strict})")
    if variant.against != "-":
        section = "" if variant.section is None else f" --only {quoted(variant.section)}"
        names = f"{_FLAGS[variant.kind]} {quoted(variant.against)}{section}"
        yield (
            "next",
            f"paramtool export {quoted(path)} {names} -o plain.safetensors",
            "for programs without paramtool",
        )


_FLAGS = {"names": "--names", "checkpoint": "--like", "config": "--config"}
"""How `export` is told of the same variant."""
