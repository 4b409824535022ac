"""Printing: rows for people, JSON for machines, a progress bar where somebody watches.

On a terminal rows are a table; in a pipe they are plain lines, one a fact.  The words carry everything; colour only
helps.  rich is imported for progress bars.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paramtool.cli._display import current, is_colored, styled
from paramtool.cli._table import laid_out
from paramtool.cli._text import shown
from paramtool.commands.progress import Advance

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

Row = tuple[str, ...]
"""What it is, of what, and details; empty texts keep columns apart."""
NARROW = 40
"""Terminals with fewer columns get the lines of a pipe."""
PROGRESS_NBYTES = 64 << 20
"""Shorter work shows no bar."""
SHOWN_QUIETLY = frozenset(("finding", "difference", "unsafe"))
"""Labels of rows that --quiet leaves."""


def _columns() -> int:
    """The width of the terminal; COLUMNS says otherwise, as for every program."""
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stdout.fileno()).columns or 80)
    except (OSError, ValueError):
        return 80


def is_table() -> bool:
    """Whether rows become a table: on a terminal that is not too narrow."""
    return sys.stdout.isatty() and _columns() >= NARROW


def rows(found: Iterable[Row]) -> None:
    """Print rows: aligned on a terminal, one plain line each in a pipe.  With --quiet only those of SHOWN_QUIETLY."""
    if current.quiet:
        found = (row for row in _labelled(found) if row[0] in SHOWN_QUIETLY)
    if is_table():
        clean = [tuple(map(shown, row)) for row in found]
        for line in laid_out(clean, None if current.wide else _columns()):
            print((styled(line.head, line.label, sys.stdout) + line.text).rstrip())
        return
    for label, *texts in _plain(found):
        print("  ".join([styled(label, label, sys.stdout), *texts]))


def plain_lines(found: Iterable[Row]) -> Iterator[str]:
    """Rows as a pipe gets them, a line each."""
    return ("  ".join(texts) for texts in _plain(found))


def _plain(found: Iterable[Row]) -> Iterator[list[str]]:
    """The label of each row, and its texts that are not empty."""
    for row in _labelled(found):
        label, *texts = map(shown, row)
        yield [label, *filter(None, texts)]


def _labelled(found: Iterable[Row]) -> Iterator[Row]:
    """Rows, each with the label that applies to it."""
    label = ""
    for row in found:
        label = row[0] or label
        yield (label, *row[1:])


def brief(short: str, long: str) -> str:
    """A few words on a terminal; all of them with --wide or --verbose, and in a pipe."""
    return short if is_table() and not (current.wide or current.verbose) else long


def report(found: object, as_json: bool, made: Iterable[Row], warnings: Iterable[str] = ()) -> None:
    """Print a report: its warnings, and its document or its rows."""
    warn(*warnings)
    if as_json:
        json_document(found)
    else:
        rows(made)


def json_document(report: object) -> None:
    """Print the JSON document of a report, piece by piece."""
    from paramtool.cli._json_text import document, pieces

    text(pieces(document(report)))


def text(pieces: Iterable[str]) -> None:
    """Print a text that comes in pieces, and end its last line."""
    from paramtool.cli._json_text import chunks

    sys.stdout.writelines(chunks(pieces))
    sys.stdout.write("\n")


def lines(found: Iterable[str], label: str = "") -> None:
    """Print lines, each behind a label if there is one."""
    for line in found:
        print((styled(label, label, sys.stdout) + ": " if label else "") + shown(line))


def flush() -> None:
    """Flush standard output, so that it precedes an error."""
    sys.stdout.flush()


def warn(*texts: str) -> None:
    """A line on standard error for each."""
    for text in texts:
        print(styled("warning", "warning", sys.stderr) + f": {shown(text)}", file=sys.stderr)


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """A bar of bytes on standard error for long work, where a terminal is there."""
    if current.quiet or not sys.stderr.isatty() or 0 < total < PROGRESS_NBYTES:
        yield lambda nbytes: None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(label, total, DownloadColumn(), TransferSpeedColumn()) as advance:
        yield advance


@contextmanager
def counted(label: str, total: int) -> Iterator[Advance]:
    """The same for work that is counted in cases."""
    if current.quiet or not sys.stderr.isatty():
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
    with Progress(*every, console=Console(stderr=True, no_color=not is_colored(sys.stderr)), transient=True) as bar:
        task = bar.add_task(label, total=total or None)
        yield lambda number: bar.advance(task, number)
