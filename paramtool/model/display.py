"""What our values show of themselves: at most ten lines as text, and the same rows as a table in a notebook.

A class says its `_rows`, labels and texts; names of files and of tensors are strangers' words, so line breaks, control
characters and tags in them are shown as escapes, and long ones without their middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from paramtool.errors import leading

MAX_LINES = 10
"""The most lines of a value as text, its first line included."""
FEW, MANY = 4, 50
"""How many things of one kind are shown, as text and in a table."""
MAX_CELL = 160
"""Characters of one row."""

Row = tuple[str, str]
"""A label, and what it is about."""


def size(nbytes: int) -> str:
    """Bytes in decimal units with three digits.

    >>> size(999), size(154_389_504), size(1_000_000_000)
    ('999 B', '154 MB', '1.00 GB')
    """
    number = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if number < 999.5 or unit == "PB":
            break
        number /= 1000
    return f"{nbytes} B" if unit == "B" else f"{number:.{max(0, 2 - len(str(int(number))) + 1)}f} {unit}"


class Displayed:
    """A value that shows its rows."""

    __slots__ = ()
    _facts = ""
    """Of a report, the members that say what it found."""

    def __bool__(self) -> bool:
        """TypeError for a report: it is always there, so that `if report:` would pass whatever it says."""
        if self._facts:
            raise TypeError(f"{type(self).__name__} is neither true nor false; ask {self._facts}")
        return True

    def _rows(self, most: int) -> Iterator[Row]:
        """What it shows, the most important first; of many things of one kind the first `most`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        rows = list(self._rows(FEW))
        most = MAX_LINES - 1
        shown = rows if len(rows) <= most else rows[: most - 1]
        lines = [f"  {label:<9} {visible(text)}" for label, text in shown]
        lines += [f"  ... and {len(rows) - len(shown)} more rows"] if len(shown) < len(rows) else []
        return "\n".join([f"<{type(self).__name__}>", *lines])

    def _repr_html_(self) -> str:
        """The same as a table, with more rows."""
        from html import escape

        cells = ((escape(label), escape(visible(text))) for label, text in self._rows(MANY))
        lines = "".join(f"<tr><th>{label}</th><td>{text}</td></tr>" for label, text in cells)
        return f"{self._picture()}<table><caption>{type(self).__name__}</caption>{lines}</table>"

    def _picture(self) -> str:
        """A small picture above the table, as SVG; empty where there is none."""
        return ""


def visible(text: str) -> str:
    """A text on one line, without characters that would move a cursor, and without its middle where it is long.

    >>> print(visible("a\\nb"), visible("w" * 400) == "w" * 78 + "..." + "w" * 79)
    a\\nb True
    """
    if len(text) > MAX_CELL:
        text = f"{text[: (MAX_CELL - 3) // 2]}...{text[-((MAX_CELL - 2) // 2) :]}"
    return text if text.isprintable() else repr(text)[1:-1]


def some_rows(most: int, label: str, texts: Iterable[str], what: str = "") -> Iterator[Row]:
    """A row for each of the first texts, and one that counts the others."""
    texts = iter(texts)
    yield from ((label, text) for text in islice(texts, most))
    if more := sum(1 for _ in texts):
        yield label, f"and {more} more{f' {what}' if what else ''}"


def few(names: Sequence[str], most: int = 4) -> str:
    """The first names of several, and how many more there are.

    >>> few(["a", "b"]), few("abcdef", 2)
    ('a, b', 'a, b and 4 more')
    """
    return leading(names, most, short)


def short(name: str, most: int = 48) -> str:
    """A name without its middle where it is long."""
    return name if len(name) <= most else f"{name[: most // 2 - 2]}...{name[-(most // 2 - 1) :]}"
