"""Printing: rows for people, JSON for machines, a progress bar where somebody watches.

On a terminal rows are a table; in a pipe they are plain lines, one a fact.  The words carry everything; colour only
helps.  rich is imported for progress bars.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypeVar

from paramtool.cli._streams import shown
from paramtool.errors import leading, plural

if TYPE_CHECKING:
    from paramtool.commands.progress import Advance

R = TypeVar("R")
Texts = tuple[Sequence[str] | None, ...]
"""A row of a report: its label, then the text of each column; an empty text leaves its column blank.

Of a column with several names the first three are shown, and with --verbose all.  A row is left out if one of its
columns is None or has no names, or if all of them are empty below a label.
"""
Rows = Iterator[Texts]
"""The rows of a report, in order."""
NARROW = 40
"""Terminals with fewer columns get the lines of a pipe."""
PROGRESS_NBYTES = 64 << 20
"""Shorter work shows no bar."""
MANY = 8
"""How many things of one kind a report lists; --verbose and --json list all."""
NEXT = "next"
"""The row with the command that comes next."""
LISTED = "--verbose and --json list them"
"""Where everything is that a report counts only."""
SHOWN_QUIETLY = frozenset(("finding", "difference", "unsafe"))
"""Labels of rows that --quiet leaves."""


def _columns(stream: TextIO | None = None) -> int:
    """The width of a terminal, that of standard output; COLUMNS says otherwise, as for every program."""
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size((stream or sys.stdout).fileno()).columns or 80)
    except (OSError, ValueError):
        return 80


def is_table() -> bool:
    """Whether rows become a table: on a terminal that is not too narrow."""
    return sys.stdout.isatty() and _columns() >= NARROW


def rows(found: Iterable[Texts], *, always: bool = False) -> None:
    """Print rows: aligned on a terminal, one plain line each in a pipe.

    With --quiet only those of SHOWN_QUIETLY, unless they are printed `always`.
    """
    made: Iterable[Sequence[str]] = _texts(found)
    if current.quiet and not always:
        made = ([label, *texts] for label, _, texts in _labelled(made) if label in SHOWN_QUIETLY)
    if is_table():
        for line in laid_out([*made], None if current.wide else _columns()):
            print((styled(line.head, line.label, sys.stdout) + line.text).rstrip())
        return
    for label, _, texts in _labelled(made):
        print("  ".join([styled(label, label, sys.stdout), *filter(None, texts)]))


def plain_lines(found: Iterable[Texts]) -> Iterator[str]:
    """Rows as a pipe gets them, a line each."""
    return ("  ".join([label, *filter(None, texts)]) for label, _, texts in _labelled(_texts(found)))


def _texts(found: Iterable[Texts]) -> Iterator[list[str]]:
    """The texts of rows, as they are shown."""
    for row in found:
        if all(one or one == "" for one in row[1:]) and (any(row[1:]) or not row[0]):
            yield [shown(one if isinstance(one, str) else leading(one or (), most(3), named)) for one in row]


def _labelled(found: Iterable[Sequence[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """(the label that applies to a row, its own label, its other texts up to the last that is not empty)."""
    label = ""
    for own, *texts in found:
        label = own or label
        while texts and not texts[-1]:
            texts.pop()
        yield label, own, texts


def brief(short: str, long: str) -> str:
    """A few words on a terminal; all of them with --wide or --verbose, and in a pipe."""
    return short if is_table() and not (current.wide or current.verbose) else long


def proof(evidence: Sequence[str]) -> str:
    """The evidence for a layout; on a terminal the strongest, in one word or two.

    >>> proof(["oracle: torch", "not verified on a GPU"])
    'oracle: torch; not verified on a GPU'
    """
    short = (words for begin, words in EVIDENCE.items() if any(one.startswith(begin) for one in evidence))
    return brief(next(short, "".join(evidence[:1]).partition(":")[0]), "; ".join(evidence))


EVIDENCE = {"verified on ": "verified on GPU", "asked: cuDNN": "asked cuDNN", "oracle": "oracle"}
"""{how evidence begins: the same in short}, the strongest first."""


def named(name: str) -> str:
    """A tensor's name as a report shows it: an empty one would not be seen.

    >>> print(named("w"), named(""))
    w ''
    """
    return name or "''"


def every(label: str, found: Iterable[str | Texts]) -> Rows:
    """Rows of one label, without it, or their only text."""
    return ((label, one) if isinstance(one, str) else (label, *one) for one in found)


def once(label: str, found: Iterable[Texts]) -> Rows:
    """Rows below one label."""
    return (("" if k else label, *row) for k, row in enumerate(found))


def listed(label: str, found: Iterable[Texts], what: str = "", number: int = MANY) -> Rows:
    """The first rows of one label, without it, and how many more there are of `what`; all of them with --verbose."""
    rows = list(found)
    yield from every(label, rows[: most(number)])
    yield from rest(label, rows, what, number)


def rest(label: str, things: Sized, what: str = "", number: int = MANY) -> Rows:
    """The row that counts what is left of some things, where more than `number` of them are there."""
    if (more := len(things) - most(number)) > 0:
        yield label, f"{'' if label else '  '}and {plural(more, f'more {what}') if what else f'{more} more'}", LISTED


def report(
    found: R, made: Callable[[R], Iterable[Texts]], warnings: Iterable[str] = (), quietly: Iterable[str] | None = None
) -> None:
    """Print a report: its warnings, and its document or its rows; with --quiet the lines `quietly`, if it has them."""
    warn(*warnings, *getattr(found, "warnings", ()))
    if current.as_json:
        json_document(found)
    elif current.quiet and quietly is not None:
        lines(quietly)
    else:
        rows(made(found))


def json_document(report: object) -> None:
    """Print the JSON document of a report, piece by piece."""
    from paramtool.cli._json_text import document, pieces

    text(pieces(document(report)))


def text(pieces: Iterable[str]) -> None:
    """Print a text that comes in pieces, and end its last line."""
    sys.stdout.writelines(pieces)
    sys.stdout.write("\n")


def lines(found: Iterable[str], label: str = "") -> None:
    """Print lines, each behind a label if there is one."""
    for line in found:
        print((styled(label, label, sys.stdout) + ": " if label else "") + shown(line))


def flush() -> None:
    """Flush standard output, so that it precedes an error."""
    sys.stdout.flush()


def warn(*texts: str) -> None:
    """Each on standard error."""
    for text in texts:
        print(told("warning", shown(text)), file=sys.stderr)


def told(label: str, text: str) -> str:
    """A text of standard error behind its label; on a terminal it wraps at the edge."""
    begin = styled(label, label, sys.stderr) + ": "
    if not sys.stderr.isatty() or current.wide:
        return begin + text
    start = len(label) + 2
    room = max(NARROW, _columns(sys.stderr)) - start
    lines = (part for line in text.split("\n") for part in wrapped(line, room))
    return begin + f"\n{' ' * start}".join(lines)


@contextmanager
def progress(label: str, total: int, is_count: bool = False) -> Iterator[Advance]:
    """A bar on standard error where a terminal is there: of bytes, for long work, or of cases."""
    if current.quiet or not sys.stderr.isatty() or (total < PROGRESS_NBYTES and not is_count):
        yield lambda number: None
        return
    from rich import progress as bars
    from rich.console import Console

    counts = [bars.MofNCompleteColumn()] if is_count else [bars.DownloadColumn(), bars.TransferSpeedColumn()]
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), *counts, bars.TimeRemainingColumn())
    console = Console(stderr=True, no_color=not is_colored(sys.stderr))
    with bars.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total or None)
        yield lambda number: bar.advance(task, number)


counted = partial(progress, is_count=True)
"""The bar of work that is counted in cases."""


# --- Rows as lines of a terminal: columns where they fit, else what a row is about and its details below --------------
#
# A text breaks between words and nowhere else, so every name, path and digest can be copied; the first text of the rows
# that COPIED names is a line to type, and never breaks.


GAP = 3
"""Spaces between columns."""
LAST = 28
"""Columns are for rows whose last text gets this much of the line, or all that it needs."""
TOGETHER = {
    **dict.fromkeys(("shared", "equal", "slice", "transpose", "view", "cast", "constant", "calculated"), "shared"),
    "part": "tensor",
    **dict.fromkeys(("finding", "allowed", "fine", "unsafe", "error"), "warning"),
}
"""{label: the label whose columns it shares}."""
COPIED = frozenset(("file", "dedup", "dry run", "export", "next", "load it", "candidate"))
"""Rows that begin with a path or a command."""

FACTS = " · "
"""Between facts, where a text breaks first."""


class Line(NamedTuple):
    """One line of a terminal."""

    label: str
    """The label it belongs to, which gives it its colour."""
    head: str
    """The label as it is printed: empty on further lines."""
    text: str


def width(text: str) -> int:
    """The columns that a text takes: two for wide characters of East Asia, none for combining marks.

    >>> width("weight"), width("重み"), width("e\u0301")
    (6, 4, 1)
    """
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    marks = ("Mn", "Me")
    return sum(0 if category(one) in marks else 1 + (east_asian_width(one) in "WF") for one in text)


WORDS = (
    r"(?:^|(?<=: ))paramtool (?!reads|writes)[a-z].*|"
    r"""(?:--[\w-]+ (?=["']))?(?:(?<!\w)(?:`[^`]*`|'[^']*'|"[^"]*")|\S)+"""
)
"""The words of a text: a line to type is one, and so is what is in quotes, with its flag."""


def wrapped(text: str, most: int) -> list[str]:
    """A text in lines of at most `most` columns, with the spaces that it begins with; a longer word has its own line.

    >>> wrapped("dedup leaves them behind", 12), wrapped("  model.layers.0.weight (same)", 12)
    (['dedup leaves', 'them behind'], ['  model.layers.0.weight', '  (same)'])
    >>> wrapped("to look: paramtool inspect a.pt", 12)
    ['to look:', 'paramtool inspect a.pt']
    >>> wrapped("my model.pt: has 'a b c d'", 12)
    ['my model.pt:', 'has', "'a b c d'"]
    """
    if width(text) <= most:
        return [text]
    indent = " " * (len(text) - len(text.lstrip(" ")))
    lines: list[str] = []
    *facts, last = text.strip().split(FACTS)
    words = [*(f"{fact} ·" for fact in facts), last]
    if len(indent) + max(map(width, words)) > most:
        path, colon, said = text.strip().partition(": ")  # in front of what is said of it
        is_whole = colon and ("/" in path or width(path) < most)
        words = [f"{path}:", *re.findall(WORDS, said)] if is_whole else re.findall(WORDS, text)
    for word in words:
        if lines and width(lines[-1]) + 1 + width(word) <= most:
            lines[-1] += f" {word}"
        else:
            lines.append(indent + word)
    return lines


def laid_out(rows: Sequence[Sequence[str]], columns: int | None) -> Iterator[Line]:
    """The lines of rows at a width, or, without one, of any length.

    The first text of a row is its label.  Rows of one label, and those that are TOGETHER, share their columns.
    """
    first = max((width(row[0]) for row in rows), default=0) + GAP
    room = columns - first if columns is not None else 1 << 30
    for _, part in groupby(_labelled(rows), key=lambda row: TOGETHER.get(row[0], row[0])):
        block = list(part)
        widths = [0] * max(len(texts) for _, _, texts in block)
        for _, _, texts in block:
            for k, text in enumerate(texts[:-1]):
                widths[k] = max(widths[k], width(text))
        has_columns = all(
            sum(widths[: len(texts) - 1]) + GAP * (len(texts) - 1) + min(width(texts[-1]), LAST) <= room
            for label, _, texts in block
            if texts and label not in COPIED
        )
        start = widths[0] + GAP if 0 < widths[0] <= room // 3 else 0  # of what stands behind the first texts
        for label, head, texts in block:
            if has_columns and label not in COPIED:
                lines = _beside(texts, widths, room)
            else:
                is_alone = len(block) == 1 or label in COPIED
                lines = _apart(label, texts, 0 if label in COPIED else start, room, is_alone=is_alone)
            for number, text in enumerate(lines or [""]):
                shown = "" if number else head
                yield Line(label, shown + " " * (first - width(shown)), text)


def _beside(texts: Sequence[str], widths: Sequence[int], room: int) -> list[str]:
    """A row in columns; its last text wraps at the edge."""
    if not texts:
        return []
    before = "".join(text + " " * (widths[k] + GAP - width(text)) for k, text in enumerate(texts[:-1]))
    start = width(before)
    first, *others = wrapped(texts[-1], room - start)
    return [before + first, *(" " * start + text for text in others)]


def _apart(label: str, texts: Sequence[str], start: int, room: int, *, is_alone: bool) -> list[str]:
    """A row whose details begin at `start` in its first line, or, at 0, are below its first text.

    One that `is_alone` is one line where there is room for it.
    """
    first, *others = filter(None, texts)
    line = (" " * GAP).join([first, *others])
    if is_alone and width(line) <= room:
        return [line]
    behind = start or len(first) - len(first.lstrip(" ")) + 2
    details: list[str] = []
    for text in others:
        if details and width(details[-1]) + GAP + width(text) <= room - behind:
            details[-1] += " " * GAP + text
        else:
            details += wrapped(text.lstrip(" "), room - behind)
    lines = [first] if label in COPIED else wrapped(first, room)
    if details and width(first) < start <= room - width(details[0]):
        lines[-1] += " " * (start - width(first)) + details.pop(0)
    return [*lines, *(" " * behind + text for text in details)]


# --- How much is printed, and in which colour ------------------------------------------------------------------------


class Display:
    """What the command line says of printing."""

    quiet = verbose = wide = as_json = False
    color = "auto"


current = Display()
"""Of the command that runs; `reset` begins anew."""


def reset() -> None:
    """Forget what an earlier command line said: one process may run several."""
    vars(current).clear()


def most(number: int) -> int:
    """How many rows of one kind a report lists: `number`, or all with --verbose.

    >>> most(8)
    8
    """
    return sys.maxsize if current.verbose else number


def is_colored(stream: TextIO) -> bool:
    """Whether a stream gets colour: --color, then NO_COLOR, then FORCE_COLOR and CLICOLOR_FORCE, then the terminal.

    NO_COLOR is defined by https://no-color.org, the two others by https://force-color.org and
    https://bixense.com/clicolors.
    """
    if current.color != "auto":
        return current.color == "always"
    said = os.environ.get
    if said("NO_COLOR"):
        return False
    if any(said(name, "") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return stream.isatty() and said("TERM") != "dumb" and said("CLICOLOR") != "0"


STYLES = {"label": "1", "bad": "1;31", "warn": "1;33", "good": "1;32", "next": "1;36"}
"""Select Graphic Rendition parameters (ECMA-48): bold, with red, yellow, green or cyan."""
LABELS = {
    **dict.fromkeys(("finding", "unsafe", "difference", "error", "unsupported", "lacks", "apart"), "bad"),
    **dict.fromkeys(("warning", "unknown", "not done", "left out", "unused", "decide"), "warn"),
    **dict.fromkeys(("verified",), "good"),
    **dict.fromkeys(("next", "hint"), "next"),
}
"""The style of a label; the others are bold.  The words say the same without it."""


def styled(text: str, label: str, stream: TextIO) -> str:
    """Text in the style of a label, where the stream has colour."""
    if not text.strip() or not is_colored(stream):
        return text
    return f"\x1b[{STYLES[LABELS.get(label, 'label')]}m{text}\x1b[0m"
