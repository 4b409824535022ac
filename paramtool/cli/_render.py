"""Printing: rows for people, JSON for machines, a progress bar where somebody watches.

On a terminal rows are a table; in a pipe they are plain lines, one a fact.  The words carry everything; colour only
helps.  rich is imported when a terminal is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

from paramtool.cli._text import shown
from paramtool.commands.progress import Advance

if TYPE_CHECKING:
    from rich.progress import ProgressColumn
    from rich.table import Table

Row = tuple[str, ...]
"""What it is, of what, and details; empty texts keep columns apart."""
WHOLE_LINES = {"file", "dedup", "dry run", "export", "size", "not done", "next", "load it"}
"""Rows of one sentence, a path or a command: they never fold into a column."""
GAP = 3
"""Columns of a terminal between columns of a table."""
NARROW = 60
"""Terminals with fewer columns get the lines of a pipe."""
PROGRESS_NBYTES = 64 << 20
"""Shorter work shows no bar."""


def _columns() -> int:
    """The width of the terminal; COLUMNS says otherwise, as for every program."""
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stdout.fileno()).columns or 80)
    except (OSError, ValueError):
        return 80


def rows(found: Iterable[Row]) -> None:
    """Print rows: aligned on a terminal, one plain line each in a pipe."""
    clean = (tuple(shown(text) for text in row) for row in found)
    if sys.stdout.isatty() and _columns() >= NARROW:
        _aligned(list(clean))
        return
    label = ""
    for row in clean:
        label = row[0] or label
        print("  ".join([label, *(text for text in row[1:] if text)]))


def _aligned(clean: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    label = max((len(row[0]) for row in clean), default=0)
    for whole, part in groupby(clean, key=lambda row: row[0] in WHOLE_LINES):
        if not whole:
            console.print(_table(list(part), label))
            continue
        for row in part:
            text = "   ".join(text for text in row[1:] if text)
            line = Text.assemble((row[0].ljust(label + GAP), "bold"), text)
            console.print(line, no_wrap=True, soft_wrap=True)


def _table(part: list[tuple[str, ...]], label: int) -> Table:
    """Rows under each other; the first column is `label` wide."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, GAP, 0, 0))
    width = max(len(row) for row in part)
    table.add_column(no_wrap=True, style="bold", min_width=label)
    for _ in range(width - 1):
        table.add_column(overflow="fold")
    for row in part:
        table.add_row(*(Text(text) for text in (*row, *[""] * (width - len(row)))))
    return table


def json_text(data: dict[str, Any]) -> None:
    """Print one JSON document, piece by piece where it has iterators."""
    from paramtool.cli._json_text import pieces

    text(pieces(data))


def text(pieces: Iterable[str]) -> None:
    """Print a text that comes in pieces, and end its last line."""
    from paramtool.cli._json_text import chunks

    sys.stdout.writelines(chunks(pieces))
    sys.stdout.write("\n")


def lines(found: Iterable[str]) -> None:
    """Print lines."""
    for line in found:
        print(shown(line))


def flush() -> None:
    """Put out what was printed, so that it stands before an error."""
    sys.stdout.flush()


def warn(*texts: str) -> None:
    """A line on standard error for each."""
    for text in texts:
        print(f"warning: {shown(text)}", file=sys.stderr)


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """A bar of bytes on standard error for long work, where a terminal is there."""
    if not sys.stderr.isatty() or 0 < total < PROGRESS_NBYTES:
        yield lambda nbytes: None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(label, total, DownloadColumn(), TransferSpeedColumn()) as advance:
        yield advance


@contextmanager
def counted(label: str, total: int) -> Iterator[Advance]:
    """The same for work that is counted in cases."""
    if not sys.stderr.isatty():
        yield lambda number: None
        return
    from rich.progress import MofNCompleteColumn

    with _bar(label, total, MofNCompleteColumn()) as advance:
        yield advance


@contextmanager
def _bar(label: str, total: int, *columns: ProgressColumn) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    every = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*every, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total or None)
        yield lambda number: bar.advance(task, number)
