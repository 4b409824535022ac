"""The report of `convert --into`: what went where in a model, and what was left on both sides."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _render
from paramtool.cli._display import most
from paramtool.cli._text import NEXT, plural, quoted, size, verify_line
from paramtool.cli._written import checked
from paramtool.errors import leading

if TYPE_CHECKING:
    from paramtool.commands.relayouted import Relayouted
    from paramtool.passes.into.plan import FilledLayer, Into

MANY = 24
"""How many layers a report lists."""
FEW = 8
"""How many names of tensors it lists."""
HOW = {
    "name": "by name",
    "shape": "by shape: only one fits",
    "order": "by number",
    "equal": "any of equal ones",
    "map": "by --map",
}


def rows(found: Relayouted, into: Into) -> _render.Rows:
    """The report as rows."""
    yield ("convert" if found.written else "dry run", f"{found.input} into {found.model} -> {found.output}")
    shown = most(MANY)
    for one in into.networks[:shown]:
        source, pair = one.converted.source, one.pair
        layouts = f"{source.layout.name} -> {one.converted.layout.name}"
        yield ("network", _arrow(pair.source.name, pair.model.name), layouts, str(one.converted.spec), HOW[pair.how])
        for change in one.converted.changes:
            yield (change.kind, pair.source.name or "(top)", change.what)
    for layer in into.layers[: max(0, shown - len(into.networks))]:
        kind = layer.kind or "of no known kind"
        yield ("layer", _arrow(layer.source, layer.model), kind, _tensors(layer), HOW[layer.how])
    yield from _render.rest("layers", (*into.networks, *into.layers), "layer", MANY)
    yield from _names("not filled", into.unfilled, "of the model with old values")
    yield from _names("not used", into.unused, "of the input without a place in the model")
    before = "as before" if found.nbytes_after == found.nbytes_before else f"{size(found.nbytes_before)} before"
    yield ("size", f"{size(found.nbytes_after)}, {before}: all else of the model is kept byte for byte")
    read_back, seconds = checked(found)
    judge = f", by {found.judge} too" if found.judge and found.verified else ""
    yield ("filled", plural(len(into.targets), "tensor"), f"{read_back}{judge}", seconds)
    if found.written:
        yield (NEXT, _verify_line(found))


def _verify_line(found: Relayouted) -> str:
    """The command that compares the output with both inputs, or one that looks at it where that is not all said."""
    context = click.get_current_context(silent=True)
    given = context.params if context else {}
    if any(given.get(name) for name in ("at", "ignore", "stack", "layout_file")):
        return f"paramtool inspect {quoted(found.output)}"
    words = ["--into", quoted(found.model)]
    words += [word for one in given.get("map", ()) for word in ("--map", shlex.quote(one))]
    flags = ("source", "--from"), ("spec", "--spec"), ("flatten", "--flatten")
    words += [word for key, flag in flags if given.get(key)
              for word in (flag, shlex.quote(given[key]))]  # fmt: skip
    words += ["--partial"] * bool(given.get("partial"))
    return verify_line(found.output, found.input, found.section, " ".join(words))


def _arrow(source: str, model: str) -> Any:
    return f"{source or '(top)'} -> {model or '(top)'}"


def _tensors(layer: FilledLayer) -> str:
    """How many tensors, and what happens to them."""
    moved = [one.piece.own for one in layer.fillings if one.is_moved]
    wide = sorted({one.widened for one in layer.fillings} - {""})
    return (
        plural(len(layer.fillings), "tensor")
        + (f", {' and '.join(moved)} transposed" if moved else "")
        + (f", from {' and '.join(wide)}" if wide else "")
    )


def _names(label: str, names: Sequence[str], what: str) -> _render.Rows:
    """A row for what is left over."""
    if names:
        yield (label, f"{plural(len(names), 'tensor')} {what}", leading(names, most(FEW)))
