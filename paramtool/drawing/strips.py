"""Strips: stacked bars of shares, rulers of a storage's bytes, rows of heat, and a bar of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paramtool.drawing.markup import EMPTY, Markup, joined, number, readable, short, tag
from paramtool.drawing.treemap import LETTER

WIDTH = 1040.0
TALL = 30.0
MIN_LETTERS = 9
"""Fewer letters of a name say nothing."""
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


class HeatBin(NamedTuple):
    """Some rows that follow each other."""

    level: int
    """From 0, nothing differs, to the last of the palette's."""
    words: str


def ruler(
    segments: Sequence[Segment], total: int, label: str, ticks: Sequence[tuple[int, str]] = (), *, class_: str = "strip"
) -> Markup:
    """Parts of a storage in the order of their bytes, to scale; below are `ticks`, positions and their words."""
    scale = WIDTH / max(1, total)
    parts = [_segment(one, scale) for one in sorted(segments, key=lambda one: one.stop - one.start, reverse=True)]
    marks = joined(_tick(at * scale, words) for at, words in ticks)
    height = TALL + (22 if ticks else 2)
    frame = tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=TALL, class_="frame")
    return tag(
        "svg", tag("title", label), frame, joined(parts), marks, viewBox=f"0 0 {number(WIDTH)} {number(height)}",
        role="img", aria_label=label, class_=class_,
    )  # fmt: skip


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


def _tick(x: float, words: str) -> Markup:
    anchor = "start" if x < 60 else "end" if x > WIDTH - 60 else "middle"
    at = min(max(x, 0.5), WIDTH - 0.5)
    return joined(
        (tag("path", d=f"M{number(at)} {number(TALL)}v6", class_="tick"),
         tag("text", words, x=at, y=TALL + 18, text_anchor=anchor, class_="soft"))
    )  # fmt: skip


def shares(parts: Sequence[Segment], label: str) -> Markup:
    """A stacked bar: the parts of a whole behind each other."""
    return ruler(parts, max((one.stop for one in parts), default=0), label, class_="bar")


def stacked(values: Iterable[tuple[str, int, str, str, str]]) -> list[Segment]:
    """(label, value, tint, marks, words) behind each other, those of 0 left out."""
    found, place = [], 0
    for label, value, tint, marks, words in values:
        if value > 0:
            found.append(Segment(place, place + value, label, tint, marks, words))
            place += value
    return found


def heat(bins: Sequence[HeatBin], label: str, *, width: float = 520.0, height: float = 20.0) -> Markup:
    """A strip of rows, coloured by how far they are apart; neighbours of one colour are one shape."""
    step = width / max(1, len(bins))
    levels: dict[int, list[str]] = {}
    start = 0
    for k in range(1, len(bins) + 1):
        if k == len(bins) or bins[k].level != bins[start].level:
            run = f"M{number(start * step)} 0h{number((k - start) * step)}v{number(height)}H{number(start * step)}z"
            levels.setdefault(bins[start].level, []).append(run)
            start = k
    paths = (tag("path", d="".join(runs), class_=f"h{level}") for level, runs in sorted(levels.items()))
    return tag(
        "svg", tag("title", label), joined(paths), viewBox=f"0 0 {number(width)} {number(height)}", role="img",
        aria_label=label, class_="heat", preserveAspectRatio="none",
    )  # fmt: skip


def text_bar(share: float, width: int = 20) -> str:
    """A bar of text, for pages that hold no figures; something is never drawn as nothing, nor as all.

    >>> text_bar(0.5, 4), text_bar(0.001, 4), text_bar(0.999, 4), text_bar(0, 4)
    ('██░░', '█░░░', '███░', '░░░░')
    """
    filled = round(max(0.0, min(1.0, share)) * width)
    if 0 < share < 1:
        filled = min(max(filled, 1), width - 1)
    return "█" * filled + "░" * (width - filled)
