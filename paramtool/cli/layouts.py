"""`paramtool layouts`: which layouts there are, what each can hold, and what is known of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from paramtool.cli import _completion, _render
from paramtool.cli._display import most
from paramtool.cli._options import JSON, Row, command_line
from paramtool.cli._render import every
from paramtool.cli._text import evidence_in_short, plural
from paramtool.commands import layouts as layouts_command
from paramtool.errors import leading
from paramtool.layouts import evidence

if TYPE_CHECKING:
    from paramtool.commands.layouts import EveryLayout
    from paramtool.dialects.template import DialectTable
    from paramtool.layouts.layout import Layout
    from paramtool.parts.layout import PartLayout


@command_line(
    layouts_command.every_layout,
    click.argument("name", required=False, shell_complete=_completion.layouts),
    called="layouts",
    codes="0 fine, 2 there is no such layout, 5 a --layout-file is wrong.",
    layout_files=Row("Your own layouts (docs/add-a-layout.md).  Repeatable.", "MY.toml", flag="--layout-file"),
    json=JSON,
)
def command(name: str | None, layout_files: tuple[str, ...]) -> None:
    """List the layouts and dialects, or show one: its tensors, its options or facts, and the evidence for it.

    Layouts are of recurrent networks, or of attention, gated MLPs and experts.  A dialect is the names and forms of one
    program: convert --to DIALECT.

    \b
    $ paramtool layouts
    $ paramtool layouts mxnet.gates
    $ paramtool layouts qkv-per-head
    $ paramtool layouts vllm
    """
    found = layouts_command.every_layout(name, layout_files=layout_files)
    made = (*map(_show, found.networks), *map(show, found.parts), *map(show_dialect, found.dialects))
    _render.report(found, _list(found) if name is None else made[0], evidence.broken(), found.names())


def _list(found: EveryLayout) -> _render.Rows:
    label = "layout"
    for layout in found.networks:
        # The kinds of networks, and in the long form what each can be.
        kinds = dict.fromkeys(form.kind for form in layout.forms)
        yield (
            label,
            layout.name,
            layout.title,
            _render.brief(", ".join(kinds), ", ".join(layout.holds())),
            _evidence(layout),
        )
        label = ""
    yield from listed(found)
    name = found.networks[0].name
    yield ("next", f"paramtool layouts {name}", "shows its tensors, options, sources and evidence")


def _evidence(layout: Layout) -> str:
    found = evidence.evidence(layout)
    return _render.brief(evidence_in_short(found), "; ".join(found))


def _show(layout: Layout) -> _render.Rows:
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
    yield from every("note", layout.outside)
    yield ("source", layout.source)
    yield from every("proof", evidence.evidence(layout))
    for record, why in evidence.judged(layout):
        yield ("record", record.name, record.words(), record.data["date"], f"does not count: {why}" if why else "")


# --- Rows of `paramtool layouts` for attention, gated MLPs and experts, and for dialects -----------------------------


MANY_MODELS = 12
"""How many models of a dialect are shown; --verbose and --json list all."""


def listed(found: EveryLayout) -> _render.Rows:
    """A row for each layout of parts, and for each dialect."""
    label = "parts"
    for layout in found.parts:
        yield (label, layout.name, layout.title, layout.group)
        label = ""
    label = "dialect"
    for one in found.dialects:
        yield (label, one.name, one.title, one.version, _count(one))
        label = ""


def _count(one: DialectTable) -> str:
    return plural(len(one.models), "model") if one.models else "every model"


def show(layout: PartLayout) -> _render.Rows:
    """One layout of parts: its tensors, the facts that it needs, who has it, and what it is mistaken for."""
    from paramtool.parts.layout import group, proofs
    from paramtool.parts.sizes import MEANINGS

    yield ("layout", layout.name, layout.title)
    kind = group(layout.group)
    yield ("group", kind.kind, kind.title, f"parts are called {', '.join(kind.parts.values())}")
    for row in layout.tensors:
        along = f"blocks along axis {row.along}" if row.along else ""
        yield ("tensor", row.name, row.content, along)
    facts = layout.facts()
    for fact in facts:
        yield ("fact", fact, MEANINGS.get(fact, ""), "from the record, config.json or --spec")
    if not facts:
        yield ("fact", "none", "the shapes show all sizes")
    if layout.models:
        yield ("models", layout.models)
    if layout.source:
        yield ("source", layout.source)
    yield from every("proof", proofs(layout.name))
    if layout.like:
        yield ("mistaken", ", ".join(layout.like), "the same shapes and other rows: no shape tells them apart")


def show_dialect(one: DialectTable) -> _render.Rows:
    """One dialect: its version, its models, what is refused, and what a reader should know."""
    yield ("dialect", one.name, one.title)
    yield ("version", one.version)
    if one.layouts:
        yield ("layouts", ", ".join(one.layouts))
    yield ("models", _count(one), _render.brief(leading(one.models, most(MANY_MODELS)), ", ".join(one.models)))
    reasons: dict[str, dict[str, str]] = {}
    for name, why in one.refused.items():
        reasons.setdefault(why.partition(": ")[0], {})[name] = why
    for head, names in reasons.items():
        yield ("refused", leading([*names], most(MANY_MODELS)), head if len(names) > 1 else next(iter(names.values())))
    yield from every("note", one.notes)
