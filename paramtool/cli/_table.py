"""Rows as lines of a terminal: columns are aligned, names are elided in the middle, words are never broken.

The last cell of a row reaches to the right edge and wraps there; only the cells before it make columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from paramtool.grouping import grouped

GAP = 3
"""Spaces between columns."""
LEAST = 12
"""No column gets narrower than this."""
LEAST_TEXT = 16
"""The same of a column of words, which wrap."""
LAST = 28
"""The last cell of a row gets at least this much, where it needs it."""
DOTS = "…"
DOT = "·"
"""Separates facts."""
SNAP = 6
"""An elided name is cut at a dot where one is this near."""


TOGETHER = {
    **dict.fromkeys(("shared", "equal", "slice", "transpose", "view", "cast", "constant", "calculated"), "shared"),
    "part": "tensor",
    **dict.fromkeys(("finding", "allowed"), "warning"),
}
"""{label: the label whose columns it shares}."""


class TableCell(str):
    """A text of a row, and how it may be shown."""

    __slots__ = ("kind", "whole")
    kind: str
    """`name`: elided in the middle; `whole`: never elided or wrapped, for what people copy; `text`: wrapped."""
    whole: str
    """What pipes and --wide show instead."""

    def __new__(cls, text: str, kind: str = "text", whole: str | None = None) -> TableCell:
        made = super().__new__(cls, text)
        made.kind = kind
        made.whole = text if whole is None else whole
        return made


class Line(NamedTuple):
    """One line of a terminal."""

    label: str
    """The label it belongs to, which gives it its colour."""
    head: str
    """The label as it is printed: empty on further lines."""
    text: str


def elidable(text: str, indent: int = 0) -> TableCell:
    """A name, elided in the middle where there is no room; in a pipe whole."""
    return TableCell(" " * indent + text, "name")


def whole(text: str) -> TableCell:
    """A path or a command, which is never changed."""
    return TableCell(text, "whole")


def brief(short: str, long: str) -> TableCell:
    """A few words on a terminal, and all of them with --wide and in a pipe."""
    return TableCell(short, "text", long)


def width(text: str) -> int:
    """The columns that a text takes: two for wide characters of East Asia, none for combining marks.

    >>> width("weight"), width("重み"), width("e\u0301")
    (6, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    from unicodedata import category, east_asian_width

    if category(character) in ("Mn", "Me"):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def elided(text: str, most: int) -> str:
    """A name in at most `most` columns: its beginning and, longer, its end.

    >>> elided("transformer.h.11.attn.c_proj.weight", 24), elided("a.weight", 24)
    ('transforme…c_proj.weight', 'a.weight')
    """
    if width(text) <= most:
        return text
    room = max(most - 1, 1)
    indent = len(text) - len(text.lstrip(" "))
    tail = _fitting(text[::-1], max((room - indent) * 2 // 3, 1))[::-1]
    if 0 <= (dot := _first_dot(tail)) <= SNAP and dot < len(tail) - 1:
        tail = tail[dot + 1 :]
    head = _fitting(text, room - width(tail))
    if 0 <= (dot := _first_dot(head[::-1])) < SNAP and len(head) - dot - 1 > indent + 2:
        head = head[: len(head) - dot - 1]
    parts = (text[at + 1 :] for at in range(len(head), len(text) - len(tail)) if text[at] in "./")
    return f"{head}{DOTS}{next((part for part in parts if width(part) <= room - width(head)), tail)}"


def elided_apart(names: Sequence[str], most: int) -> dict[str, str]:
    """Several names, each elided; where two would look the same, the part that differs stays in the middle.

    >>> list(elided_apart(["model.layers.0.self_attn.weight", "model.layers.1.self_attn.weight"], 18).values())
    ['mod…0…_attn.weight', 'mod…1…_attn.weight']
    """
    found = {name: elided(name, most) for name in names}
    alike = grouped((short, name) for name, short in found.items())
    for group in alike.values():
        if len(group) > 1:
            start = _common(group)
            stop = _common([name[::-1] for name in group])
            found.update({name: _around(name, start, len(name) - stop, most) for name in group})
    return found


def _common(names: Sequence[str]) -> int:
    """How many characters all names begin with."""
    first, last = min(names), max(names)
    return next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def _around(name: str, start: int, stop: int, most: int) -> str:
    """A name with the part from `start` to `stop` whole, from dot to dot, between its two ends."""
    start = 1 + max(name.rfind(sign, 0, start) for sign in "./")
    ends = [at for at in (name.find(sign, max(stop, start)) for sign in "./") if at >= 0]
    middle = name[start : min(ends, default=len(name))]
    room = most - width(middle) - 2
    head = _fitting(name, max(room // 4, 0))
    tail = _fitting(name[::-1], max(room - width(head), 0))[::-1]
    if room < 2 or len(head) >= start or len(tail) >= len(name) - start - len(middle):
        return elided(name, most)
    return f"{head}{DOTS}{middle}{DOTS}{tail}"


def _first_dot(text: str) -> int:
    return min((at for at in (text.find(sign) for sign in "./") if at >= 0), default=-1)


def _fitting(text: str, most: int) -> str:
    """As much of the beginning as fits."""
    if text.isascii():
        return text[:most]
    taken = 0
    for k, character in enumerate(text):
        taken += _columns(character)
        if taken > most:
            return text[:k]
    return text


def wrapped(text: str, most: int) -> list[str]:
    """A text in lines of at most `most` columns: broken between its facts, else at spaces; long words are elided.

    >>> wrapped("dedup leaves them behind", 12), wrapped("torch zip · 12 tensors", 14)
    (['dedup leaves', 'them behind'], ['torch zip ·', '12 tensors'])
    """
    if width(text) <= most:
        return [text]
    indent = " " * (len(text) - len(text.lstrip(" ")))
    facts = text.strip().split(f" {DOT} ")
    words = [*(f"{fact} {DOT}" for fact in facts[:-1]), facts[-1]]
    if max(map(width, words)) > most - len(indent):
        words = [elided(word, max(most - len(indent), 1)) for word in text.split()]
    lines = [indent + words[0]]
    for word in words[1:]:
        if width(lines[-1]) + 1 + width(word) <= most:
            lines[-1] += f" {word}"
        else:
            lines.append(indent + word)
    return lines


def laid_out(rows: Sequence[Sequence[str]], columns: int | None, sentences: frozenset[str]) -> Iterator[Line]:
    """The lines of rows at a width, or, without one, of any length.

    The first cell of a row is its label.  Rows of one label share their columns, those of TOGETHER with each other;
    rows with the labels `sentences` have none.
    """
    first = max((width(row[0]) for row in rows), default=0) + GAP
    for label, part in groupby(_labelled(rows), key=lambda row: TOGETHER.get(row[0], row[0])):
        block = [(label, head, _cells(cells, wide=columns is None)) for label, head, cells in part]
        edge = columns if columns is not None else 1 << 30
        starts = _starts([cells for _, _, cells in block], first, columns)
        short = _shortened([cells for _, _, cells in block], starts) if columns is not None else {}
        block = [
            (own, head, [TableCell(short.get((k, c), c), c.kind) for k, c in enumerate(row)])
            for own, head, row in block
        ]
        for own, head, cells in block:
            texts = _sentence(cells, edge - first) if label in sentences else _lines(cells, starts, edge)
            for number, text in enumerate(texts):
                shown = "" if number else head
                yield Line(own, shown + " " * (first - width(shown)), text)


def _labelled(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, Sequence[str]]]:
    """(the label that holds, the label of the row, the other cells)."""
    label = ""
    for row in rows:
        label = row[0] or label
        yield label, row[0], row[1:]


def _shortened(block: Sequence[Sequence[TableCell]], starts: Sequence[int]) -> dict[tuple[int, str], str]:
    """{(column, name): the name elided} of the names in columns; last cells have room of their own."""
    names: dict[int, dict[str, None]] = {}
    for cells in block:
        for k, cell in enumerate(cells[:-1]):
            if cell.kind == "name":
                names.setdefault(k, {})[cell] = None
    return {
        (k, name): short
        for k, column in names.items()
        for name, short in elided_apart(list(column), starts[k + 1] - GAP - starts[k]).items()
    }


def _cells(texts: Sequence[str], wide: bool) -> list[TableCell]:
    cells = [text if isinstance(text, TableCell) else TableCell(text) for text in texts]
    while cells and not cells[-1]:
        cells.pop()
    return [TableCell(cell.whole, cell.kind) for cell in cells] if wide else cells


def _sentence(cells: Sequence[TableCell], room: int) -> Iterator[str]:
    """One line, or, where there is no room, the first cell and the others below it."""
    line = (" " * GAP).join(filter(None, cells))
    if width(line) <= room:
        yield line
        return
    for number, cell in enumerate(filter(None, cells)):
        indent = " " * (2 if number else 0)
        yield from (indent + text for text in _shown(cell, room - len(indent)))


def _starts(block: Sequence[Sequence[TableCell]], first: int, columns: int | None) -> list[int]:
    """Where each column begins."""
    widths = [0] * max((len(cells) for cells in block), default=0)
    names = set()
    for cells in block:
        for k, cell in enumerate(cells[:-1]):
            widths[k] = max(widths[k], width(cell))
            names |= {k} if cell.kind == "name" else set()
    if columns is not None:
        _narrow(widths, block, names, columns - first)
    starts = [first]
    for one in widths:
        starts.append(starts[-1] + one + GAP)
    return starts


def _narrow(widths: list[int], block: Sequence[Sequence[TableCell]], names: set[int], room: int) -> None:
    """Take from the widest column until the last cell of each row has its least; names give way after words."""
    needs: dict[int, int] = {}
    for cells in block:
        if cells:
            needs[len(cells) - 1] = max(needs.get(len(cells) - 1, 0), min(width(cells[-1]), LAST))
    for k, need in sorted(needs.items()):
        before = list(widths)
        while sum(widths[:k]) + GAP * k + need > room:
            wide = [at for at in range(k) if widths[at] > (LEAST if at in names else LEAST_TEXT)]
            if not wide:  # the last cells go on lines below, and the others keep their room
                widths[:] = before
                while k and sum(widths[:k]) + GAP * (k - 1) > room:
                    widths[max(range(k), key=lambda at: widths[at])] -= 1
                break
            widths[max(wide, key=lambda at: (at not in names, widths[at]))] -= 1


def _lines(cells: Sequence[TableCell], starts: Sequence[int], edge: int) -> Iterator[str]:
    """The lines of one row, from the column of its first cell on."""
    beside: list[tuple[int, list[str]]] = []
    below: list[str] = []
    for k, cell in enumerate(cells):
        is_last = k == len(cells) - 1
        room = (edge if is_last else starts[k + 1] - GAP) - starts[k]
        is_crowded = cell.kind == "whole" and width(cell) > room
        if (is_last and room < min(LAST, width(cell)) and k) or (is_crowded and k):
            below += [" " * GAP + text for text in _shown(cell, edge - starts[0] - GAP)]
        else:
            beside.append((starts[k] - starts[0], _shown(cell, room)))
    yield from _joined(beside)
    yield from below


def _shown(cell: TableCell, room: int) -> list[str]:
    if cell.kind == "whole":
        return [cell]
    return [elided(cell, room)] if cell.kind == "name" else wrapped(cell, room)


def _joined(stacks: Sequence[tuple[int, list[str]]]) -> Iterator[str]:
    """Stacks of lines beside each other; what would begin before its neighbour's end goes on a line below."""
    if not stacks:
        yield ""
    for k in range(max((len(lines) for _, lines in stacks), default=0)):
        line = ""
        for start, lines in stacks:
            if k < len(lines) and lines[k]:
                if line and width(line) + GAP > start:
                    yield line
                    line = ""
                line += " " * (start - width(line)) + lines[k]
        yield line
