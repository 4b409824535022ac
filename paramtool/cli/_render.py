"""Printing: rows for people, JSON for machines, a progress bar where somebody watches.

On a terminal rows are a table; in a pipe they are plain lines, one a fact.  The words carry everything; colour only
helps.  rich is imported when a terminal is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paramtool.cli._text import shown
from paramtool.jobs._progress import Advance

Row = tuple[str, ...]
"""What it is, of what, and details; empty texts keep columns apart."""
PROGRESS_NBYTES = 64 << 20
"""Shorter work shows no bar."""


def rows(found: Iterable[Row]) -> None:
    """Print rows: aligned on a terminal, one plain line each in a pipe."""
    clean = [tuple(shown(text) for text in row) for row in found]
    if sys.stdout.isatty():
        _table(clean)
        return
    label = ""
    for row in clean:
        label = row[0] or label
        print("  ".join([label, *(text for text in row[1:] if text)]))


def _table(clean: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3, 0, 0))
    width = max((len(row) for row in clean), default=1)
    table.add_column(no_wrap=True, style="bold")
    for _ in range(width - 1):
        table.add_column(overflow="fold")
    for row in clean:
        table.add_row(*(Text(text) for text in (*row, *[""] * (width - len(row)))))
    Console(highlight=False).print(table)


def json_text(data: dict[str, Any]) -> None:
    """Print one JSON document."""
    import json

    print(json.dumps(data, indent=2, ensure_ascii=True))


def lines(found: Iterable[str]) -> None:
    """Print lines."""
    for line in found:
        print(shown(line))


def warn(text: str) -> None:
    """A line on standard error."""
    print(f"warning: {shown(text)}", file=sys.stderr)


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """A bar on standard error for long work, where a terminal is there."""
    if not sys.stderr.isatty() or 0 < total < PROGRESS_NBYTES:
        yield lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total or None)
        yield lambda nbytes: bar.advance(task, nbytes)
