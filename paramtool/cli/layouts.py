"""`paramtool layouts`: which layouts there are, what each can hold, and what is known of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paramtool.cli import _render
from paramtool.cli._options import Row, command_line
from paramtool.cli._render import NEXT, Rows, Texts, brief, every, most, once, proof
from paramtool.commands import layouts as layouts_command
from paramtool.errors import leading, plural
from paramtool.grouping import grouped
from paramtool.layouts import evidence

if TYPE_CHECKING:
    from paramtool.commands.layouts import EveryLayout
    from paramtool.dialects.template import DialectTable
    from paramtool.layouts.layout import TensorRule
    from paramtool.parts.layout import FusedRow

MANY_MODELS = 12
"""How many models of a dialect are shown; --verbose and --json list all."""


@command_line(
    layouts_command.every_layout,
    "[LAYOUT]",
    called="layouts",
    codes="0 fine, 2 there is no such layout, 5 a --layout-file is wrong.",
    layout_files=Row("Your own layouts (docs/add-a-layout.md).  Repeatable.", "MY.toml", flag="--layout-file"),
)
def command(layout: str | None, layout_files: tuple[str, ...]) -> None:
    """List the layouts and dialects, or show one: its tensors, its options or facts, and the evidence for it.

    Layouts are of recurrent networks, or of attention, gated MLPs and experts.  A dialect is the names and forms of one
    program: convert --to DIALECT.

    \b
    $ paramtool layouts
    $ paramtool layouts mxnet.gates
    $ paramtool layouts qkv-per-head
    $ paramtool layouts vllm
    """
    found = layouts_command.every_layout(layout, layout_files=layout_files)
    _render.report(found, _rows if layout else _list, evidence.broken(), found.names())


def _rows(found: EveryLayout) -> Rows:
    """The one that was asked for."""
    for layout in found.networks:  # what it can hold, its tensors, its options, and the evidence for it
        yield "layout", layout.name, layout.title
        for form in layout.forms:
            when = " ".join(f"{key}={value}" for key, value in form.when.items())
            reset = f"reset={form.reset}" if form.reset else ""
            yield form.kind, " ".join(word for word in (reset, when) if word) or "any", f"gates {' '.join(form.gates)}"
            yield from map(_tensor, form.tensors)
        yield "names", f"module {layout.separator} tensor", plural(layout.max_directions, "direction")
        if layout.always_biases:
            yield "biases", "always stored: zeros where the network has none"
        for option in layout.options:
            yield "option", f"{layout.name}:{option.name}={option.default}", option.what
        yield "note", layout.note
        yield from every("note", layout.outside)
        yield "source", layout.source
        yield from every("proof", evidence.evidence(layout))
        for record, why in evidence.judged(layout):
            yield "record", record.name, record.words(), record.data["date"], f"does not count: {why}" if why else ""
    for parts in found.parts:  # the tensors, the facts that it needs, who has it, and what it is mistaken for
        from paramtool.parts.layout import group, proofs
        from paramtool.parts.sizes import MEANINGS

        yield "layout", parts.name, parts.title
        kind = group(parts.group)
        yield "group", kind.kind, kind.title, f"parts are called {', '.join(kind.parts.values())}"
        yield from (_tensor(row, "tensor") for row in parts.tensors)
        facts = parts.facts
        for fact in facts:
            yield "fact", fact, MEANINGS.get(fact, ""), "from the record, config.json or --spec"
        if not facts:
            yield "fact", "none", "the shapes show all sizes"
        yield "models", parts.models
        yield "source", parts.source
        yield from every("proof", proofs(parts.name))
        like = ", ".join(parts.like) or None
        yield "mistaken", like, "the same shapes and other rows: no shape tells them apart"
    for dialect in found.dialects:  # its version, its models, what is refused, and what a reader should know
        yield "dialect", dialect.name, dialect.title
        yield "version", dialect.version
        yield "layouts", ", ".join(dialect.layouts)
        yield "models", _count(dialect), brief(leading(dialect.models, most(MANY_MODELS)), ", ".join(dialect.models))
        for head, names in grouped((why.partition(": ")[0], name) for name, why in dialect.refused.items()).items():
            yield "refused", leading(names, most(MANY_MODELS)), head if len(names) > 1 else dialect.refused[names[0]]
        yield from every("note", dialect.notes)


def _list(found: EveryLayout) -> Rows:
    # The kinds of networks, and in the long form what each can be.
    kinds = {one.name: ", ".join(dict.fromkeys(form.kind for form in one.forms)) for one in found.networks}
    yield from once("layout", ((one.name, one.title, brief(kinds[one.name], ", ".join(one.holds())),
                                proof(evidence.evidence(one))) for one in found.networks))  # fmt: skip
    yield from once("parts", ((one.name, one.title, one.group) for one in found.parts))
    yield from once("dialect", ((one.name, one.title, one.version, _count(one)) for one in found.dialects))
    yield NEXT, f"paramtool layouts {found.networks[0].name}", "shows its tensors, options, sources and evidence"


def _tensor(row: TensorRule | FusedRow, label: str = "") -> Texts:
    return label, row.name, row.content, f"blocks along axis {row.along}" if row.along else ""


def _count(one: DialectTable) -> str:
    return plural(one.models, "model") if one.models else "every model"
