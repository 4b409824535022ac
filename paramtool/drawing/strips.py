"""Strips: stacked bars of shares, rulers of a storage's bytes, rows of heat, and a stacked bar as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paramtool.drawing.markup import EMPTY, Markup, joined, number, readable, short, tag
from paramtool.drawing.treemap import LETTER

WIDTH = 1040.0
TALL = 30.0
MIN_LETTERS = 9
"""Fewer letters of a name say nothing."""
SHADES = {"green": "█", "red": "░", "blank": "▒"}
"""{tint: its shade in a strip of text}"""
THIN = 2.0
"""Pixels that a part has at least, however few its bytes are."""


class Segment(NamedTuple):
    """A part of a strip."""

    start: int
    stop: int
    label: str
    tint: str
    marks: str = ""
    words: str = ""
    """What is said of it, behind its label."""


def ruler(segments: Sequence[Segment], total: int, label: str) -> Markup:
    """Parts of a whole in the order of their bytes, to scale."""
    scale = WIDTH / max(1, total)
    parts = [_segment(one, scale) for one in sorted(segments, key=lambda one: one.stop - one.start, reverse=True)]
    frame = tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=TALL, class_="frame")
    return tag(
        "svg", tag("title", label), frame, joined(parts), viewBox=f"0 0 {number(WIDTH)} {number(TALL + 1)}",
        role="img", aria_label=label, class_="strip", preserveAspectRatio="none",
    )  # fmt: skip


def ticks(words: Sequence[str]) -> Markup:
    """What is below a strip: at its start, at its end, and evenly between them."""
    return tag("div", *(tag("span", one) for one in words), class_="ticks")


def _segment(one: Segment, scale: float) -> Markup:
    width = max(THIN, (one.stop - one.start) * scale)
    x = min(one.start * scale, WIDTH - width)
    place = {"x": x, "y": 0.5, "width": max(1.0, width - (1 if width > 4 else 0)), "height": TALL}
    mark = tag("rect", **place, class_=f"m-{one.marks}") if one.marks else EMPTY
    letters = int((width - 6) / LETTER)
    text = short(one.label, letters) if letters >= min(len(one.label), MIN_LETTERS) else ""
    title = tag("title", f"{readable(one.label)}: {one.words}" if one.words else readable(one.label))
    halo = f"k-{one.tint}" if one.marks else None
    word = tag("text", text, x=x + 3, y=TALL / 2 + 4.5, class_=halo) if text else EMPTY
    kind = "box" if width > 4 else "band"
    return tag("g", title, tag("rect", **place, class_=f"{kind} t-{one.tint}"), mark, word)


def shares(parts: Sequence[Segment], label: str) -> Markup:
    """A stacked bar: the parts of a whole behind each other."""
    return ruler(parts, max((one.stop for one in parts), default=0), label)


def stacked(values: Iterable[tuple[str, int, str, str, str]]) -> list[Segment]:
    """(label, value, tint, marks, words) behind each other, those of 0 left out."""
    found, place = [], 0
    for label, value, tint, marks, words in values:
        if value > 0:
            found.append(Segment(place, place + value, label, tint, marks, words))
            place += value
    return found


def heat(rows: Sequence[Sequence[int]], label: str) -> Markup:
    """Cells coloured by their level; neighbours of one colour in a row are one shape."""
    wide = max(map(len, rows), default=0)
    levels: dict[int, list[str]] = {}
    for y, row in enumerate(rows):
        start = 0
        for x in range(1, len(row) + 1):
            if x == len(row) or row[x] != row[start]:
                levels.setdefault(row[start], []).append(f"M{start} {y}h{x - start}v1h-{x - start}z")
                start = x
    nothing = tag("rect", width=wide, height=len(rows), class_="h0") if levels.pop(0, []) else None
    paths = (tag("path", d=Markup("".join(runs)), class_=f"h{level}") for level, runs in sorted(levels.items()))
    return tag(
        "svg", tag("title", label), nothing, joined(paths), viewBox=f"0 0 {wide} {len(rows)}", role="img",
        aria_label=label, class_="heat" if len(rows) < 2 else "heat cells", preserveAspectRatio="none",
    )  # fmt: skip


def text_strip(parts: Sequence[Segment], width: int = 20) -> str:
    """The parts that `shares` draws as a line of text, for pages without figures: a shade for each tint.

    Each part has at least one character, so some are longer than their share.

    >>> few = stacked([("pass", 1, "green", "", ""), ("fail", 999, "red", "", "")])
    >>> text_strip(few, 4), text_strip(few[:1], 4), text_strip([], 4)
    ('█░░░', '████', '')
    """
    sizes = [one.stop - one.start for one in parts]
    lengths = [1] * len(parts)
    while sum(lengths) < width and parts:  # to the part that is the furthest below its share
        lacks = [size * width / sum(sizes) - length for size, length in zip(sizes, lengths, strict=True)]
        lengths[lacks.index(max(lacks))] += 1
    return "".join(SHADES.get(one.tint, "▓") * length for one, length in zip(parts, lengths, strict=True))
