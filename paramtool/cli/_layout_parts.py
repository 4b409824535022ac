"""Rows of `paramtool layouts` for attention, gated MLPs and experts, and for dialects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from paramtool.cli import _render
from paramtool.cli._display import most
from paramtool.cli._table import brief
from paramtool.cli._text import plural

if TYPE_CHECKING:
    from paramtool.commands.layouts import EveryLayout
    from paramtool.dialects.listing import DialectSummary
    from paramtool.parts.layout import PartLayout

MANY_MODELS = 12
"""How many models of a dialect are shown; --verbose and --json list all."""


def listed(found: EveryLayout) -> Iterator[_render.Row]:
    """A row for each layout of parts, and for each dialect."""
    label = "parts"
    for layout in found.parts:
        yield (label, layout.name, layout.title, layout.group)
        label = ""
    label = "dialect"
    for one in found.dialects:
        yield (label, one.name, one.title, one.version, _count(one))
        label = ""


def _count(one: DialectSummary) -> str:
    return plural(len(one.models), "model") if one.models else "every model"


def show(layout: PartLayout) -> Iterator[_render.Row]:
    """One layout of parts: its tensors, the facts that it needs, who has it, and what it is mistaken for."""
    from paramtool.parts.layout import group
    from paramtool.parts.proofs import proofs
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
    yield from (("proof", proof) for proof in proofs(layout.name))
    if layout.like:
        yield ("mistaken", ", ".join(layout.like), "the same shapes and other rows: no shape tells them apart")


def show_dialect(one: DialectSummary) -> Iterator[_render.Row]:
    """One dialect: its version, its models, what is refused, and what a reader should know."""
    yield ("dialect", one.name, one.title)
    yield ("version", one.version)
    if one.layouts:
        yield ("layouts", ", ".join(one.layouts))
    yield ("models", _count(one), brief(_few(one.models), ", ".join(one.models)))
    reasons: dict[str, dict[str, str]] = {}
    for name, why in (one.refused or {}).items():
        reasons.setdefault(why.partition(": ")[0], {})[name] = why
    for head, names in reasons.items():
        yield ("refused", _few(names), head if len(names) > 1 else next(iter(names.values())))
    yield from (("note", text) for text in one.caveats)


def _few(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    every = list(names)
    few = every[: most(MANY_MODELS)]
    more = f" and {len(every) - len(few)} more" if len(few) < len(every) else ""
    return ", ".join(few) + more
