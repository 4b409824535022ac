"""Rows as lines of a terminal: columns where they fit, else what a row is about and its details below.

A text breaks between words and nowhere else, so every name, path and digest can be copied; the first text of the rows
that COPIED names is a line to type, and never breaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

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


def wrapped(text: str, most: int) -> list[str]:
    """A text in lines of at most `most` columns, with the spaces that it begins with; a longer word has its own line.

    >>> wrapped("dedup leaves them behind", 12), wrapped("  model.layers.0.weight (same)", 12)
    (['dedup leaves', 'them behind'], ['  model.layers.0.weight', '  (same)'])
    """
    if width(text) <= most:
        return [text]
    indent = " " * (len(text) - len(text.lstrip(" ")))
    lines: list[str] = []
    *facts, last = text.strip().split(FACTS)
    words = [*(f"{fact} ·" for fact in facts), last]
    for word in words if len(indent) + max(map(width, words)) <= most else text.split():
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


def _labelled(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """(the label that holds, the label of the row, its other texts)."""
    label = ""
    for row in rows:
        label, texts = row[0] or label, [*row[1:]]
        while texts and not texts[-1]:
            texts.pop()
        yield label, row[0], texts


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
    if start and details:
        lines[-1] += " " * (start - width(first)) + details.pop(0)
    return [*lines, *(" " * behind + text for text in details)]
