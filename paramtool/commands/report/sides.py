"""Two checkpoints on one page: what is the same of both once, what differs one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramtool.commands.report.page import SECTION_IDS
from paramtool.drawing.document import PageSection


def both(a: Iterable[PageSection], b: Iterable[PageSection]) -> Iterator[PageSection]:
    """The sections of two checkpoints: those of A, each followed by that of B where it says something else."""
    mine, theirs = ({one.id: one for one in side} for side in (a, b))
    for name in SECTION_IDS:
        first, second = mine.get(name), theirs.get(name)
        if first is not None and second is not None and first.body == second.body:
            yield first._replace(title=f"{first.title} (A and B)")
            continue
        if first is not None:
            yield first._replace(title=f"{first.title} (A{' only' if second is None else ''})")
        if second is not None:
            yield PageSection(f"{name}-b", f"{second.title} (B{' only' if first is None else ''})", second.body)
