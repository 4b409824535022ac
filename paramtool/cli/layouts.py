"""`paramtool layouts`: which layouts there are, what each can hold, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from paramtool.cli import _completion, _display, _layout_parts, _render
from paramtool.cli._display import current
from paramtool.cli._help import Command
from paramtool.cli._table import brief, whole
from paramtool.cli._text import FILE, evidence_in_short, plural
from paramtool.commands import layouts as layouts_command
from paramtool.layouts import evidence

if TYPE_CHECKING:
    from paramtool.commands.layouts import EveryLayout
    from paramtool.layouts.layout import Layout


@click.command(
    "layouts", cls=Command, epilog="Exit codes: 0 fine, 2 there is no such layout, 5 a --layout-file is wrong."
)
@click.argument("name", required=False, shell_complete=_completion.layouts)
@click.option(
    "--layout-file",
    multiple=True,
    type=FILE,
    metavar="MY.toml",
    help="Your own layouts (docs/add-a-layout.md).  Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (schema: docs/json.md).")
@_display.options
def command(name: str | None, layout_file: tuple[str, ...], as_json: bool) -> None:
    """List the layouts and dialects, or show one: its tensors, its options or facts, and the evidence for it.

    Layouts are of recurrent networks, or of attention, gated MLPs and experts.  A dialect is the names and forms of one
    program: convert --to DIALECT.

    \b
    $ paramtool layouts
    $ paramtool layouts mxnet.gates
    $ paramtool layouts qkv-per-head
    $ paramtool layouts vllm
    """
    found = layouts_command.every_layout(name, layout_files=layout_file)
    _render.warn(*evidence.broken())
    if as_json:
        from paramtool.cli import _json_layouts

        _render.json_text(_json_layouts.layouts(found))
    elif current.quiet:
        _render.lines(found.names())
    elif name is None:
        _render.rows(_list(found))
    elif found.networks:
        _render.rows(_show(found.networks[0]))
    elif found.parts:
        _render.rows(_layout_parts.show(found.parts[0]))
    else:
        _render.rows(_layout_parts.show_dialect(found.dialects[0]))


def _list(found: EveryLayout) -> Iterator[_render.Row]:
    label = "layout"
    for layout in found.networks:
        # The kinds of networks, and in the long form what each can be.
        kinds = dict.fromkeys(form.kind for form in layout.forms)
        yield (label, layout.name, layout.title, brief(", ".join(kinds), ", ".join(layout.holds())), _evidence(layout))
        label = ""
    yield from _layout_parts.listed(found)
    name = found.networks[0].name
    yield ("next", whole(f"paramtool layouts {name}"), "shows its tensors, options, sources and evidence")


def _evidence(layout: Layout) -> str:
    found = evidence.evidence(layout)
    return brief(evidence_in_short(found), "; ".join(found))


def _show(layout: Layout) -> Iterator[_render.Row]:
    yield ("layout", layout.name, layout.title)
    for form in layout.forms:
        when = " ".join(f"{key}={value}" for key, value in form.when.items())
        reset = f"reset={form.reset}" if form.reset else ""
        yield (form.kind, " ".join(word for word in (reset, when) if word) or "any", f"gates {' '.join(form.gates)}")
        for row in form.tensors:
            along = f"blocks along axis {row.along}" if row.along else ""
            yield ("", row.name, row.content, along)
    yield ("names", f"module {layout.separator} tensor", plural(layout.max_directions, "direction"))
    if layout.always_biases:
        yield ("biases", "always stored: zeros where the network has none")
    for option in layout.options:
        yield ("option", f"{layout.name}:{option.name}={option.default}", option.what)
    if layout.note:
        yield ("note", layout.note)
    yield from (("note", text) for text in layout.outside)
    yield ("source", layout.source)
    yield from (("proof", proof) for proof in evidence.evidence(layout))
    for record, why in evidence.judged(layout):
        yield ("record", record.name, record.words(), record.data["date"], f"does not count: {why}" if why else "")
