"""What our values show of themselves: at most ten lines as text, and the same rows as a table in a notebook.

The rows are the members that a class says (`model.document`) and that hold something, each called as its attribute.
Names of files and of tensors are strangers' words, so line breaks, control characters and tags in them are shown as
escapes, and long ones without their middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from paramtool.errors import leading

if TYPE_CHECKING:
    from paramtool.model.document import Member

MAX_LINES = 10
"""The most lines of a value as text, its first line included."""
FEW, MANY = 4, 50
"""How many things of one kind are shown, as text and in a table."""
MAX_CELL = 160
"""Characters of one row."""
MAX_JOINED = 100
"""Things of one kind are in one row up to this many characters."""

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


def span(what: str, start: int, stop: int) -> str:
    """Rows or columns that follow each other, in words.

    >>> span("row", 3, 5), span("column", 3, 4)
    ('rows 3 to 4', 'column 3')
    """
    return f"{what} {start}" if stop - start == 1 else f"{what}s {start} to {stop - 1}"


class Displayed:
    """A value that shows its rows."""

    __slots__ = ()
    _facts = ""
    """Of a report, the members that say what it found."""
    _members = ""
    """What it shows and what its JSON document holds, the most important first; see `model.document`."""
    _schema = ""
    """The name and the version of the document: `inspect/4`."""

    def __bool__(self) -> bool:
        """TypeError for a report: it is always there, so that `if report:` would pass whatever it says."""
        if self._facts:
            raise TypeError(f"{type(self).__name__} is neither true nor false; ask {self._facts}")
        return True

    def _rows(self, most: int) -> Iterator[Row]:
        """What it shows, the most important first; of many things of one kind the first `most`."""
        from paramtool.model.document import members, taken

        for one, value in taken(self, members(self._members)):
            label = ".".join(one.path).removesuffix(".__len__")
            items = _items(value)
            texts = [_text(item, one.inside, "nbytes" in one.name) for item in items[:MANY]]
            if len(items) > MANY or (len(joined := ", ".join(texts)) > MAX_JOINED and len(texts) > 1):
                yield from ((label, text) for text in texts[:most])
                if more := len(items[most:]):
                    yield label, f"and {more} more"
            elif joined or f"`{label}`" in self._facts:
                yield label, joined or "none"

    def __repr__(self) -> str:
        rows = list(self._rows(FEW))
        most = MAX_LINES - 1
        shown = rows if len(rows) <= most else rows[: most - 1]
        width = max((len(label) for label, _ in shown), default=0)
        lines = [f"  {label:<{width}}  {visible(text)}" for label, text in shown]
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


def _items(value: Any) -> list[Any]:
    """The things that a value is: the items of a list, the pairs of a mapping, nothing, or itself."""
    from paramtool.model.document import LISTS

    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, LISTS) and not hasattr(value, "_fields"):
        return list(value)
    return [] if value is None or value == "" else [value]


def _text(value: Any, inside: tuple[Member, ...], is_size: bool = False) -> str:
    """The first words that are said of one thing."""
    from paramtool.model.document import members_of, taken

    if isinstance(value, int) and not isinstance(value, bool):
        return size(value) if is_size else f"{value:,}"
    if found := inside or members_of(type(value)):
        words = ((one, part) for one, part in taken(value, found) if not isinstance(part, (int, bytes)))
        parts = (few([_text(item, one.inside) for item in _items(part)]) for one, part in words)
        return ": ".join(islice(filter(None, parts), 3))
    return ": ".join(_text(part, ()) for part in value) if isinstance(value, tuple) else str(value)


def visible(text: str) -> str:
    """A text on one line, without characters that would move a cursor, and without its middle where it is long.

    >>> print(visible("a\\nb"), visible("w" * 400) == "w" * 78 + "..." + "w" * 79)
    a\\nb True
    """
    if len(text) > MAX_CELL:
        text = f"{text[: (MAX_CELL - 3) // 2]}...{text[-((MAX_CELL - 2) // 2) :]}"
    return text if text.isprintable() else repr(text)[1:-1]


def few(names: Sequence[str], most: int = 4) -> str:
    """The first names of several, and how many more there are.

    >>> few(["a", "b"]), few("abcdef", 2)
    ('a, b', 'a, b and 4 more')
    """
    return leading(names, most, short)


def short(name: str, most: int = 48) -> str:
    """A name without its middle where it is long."""
    return name if len(name) <= most else f"{name[: most // 2 - 2]}...{name[-(most // 2 - 1) :]}"
