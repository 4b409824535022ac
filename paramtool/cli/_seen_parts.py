"""The rows of attention, gated MLPs and experts, as `inspect` and `guess` show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paramtool.cli import _render
from paramtool.cli._display import most
from paramtool.cli._text import plural

if TYPE_CHECKING:
    from paramtool.passes.parts.seen_groups import SeenParts

MANY = 8
"""How many towers a report lists."""


def rows(found: SeenParts) -> Iterator[_render.Row]:
    """A row for each tower, the first with the dialect whose names these are."""
    from paramtool.passes.parts.groups import words

    names = f"names of {found.dialect}" if found.dialect else ""
    for k, tower in enumerate(found.towers[: most(MANY)]):
        yield ("parts", tower.at, words(tower), names if k == 0 else "")
    if (more := len(found.towers) - most(MANY)) > 0:
        yield ("parts", f"and {plural(more, 'more tower')}", "--verbose and --json list them")
