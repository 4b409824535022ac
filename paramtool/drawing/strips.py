"""Strips: stacked bars of shares, rulers of a storage's bytes, rows of heat, and a stacked bar as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paramtool.drawing.markup import EMPTY, Markup, breakable, joined, number, readable, short, svg, tag
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
    return svg(label, WIDTH, TALL + 1, frame, *parts, class_="strip", preserveAspectRatio="none")


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
    kind = "heat" if len(rows) < 2 else "heat cells"
    return svg(label, wide, len(rows), nothing, *paths, class_=kind, preserveAspectRatio="none")


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


# --- Ribbons: rows of some tensors above, the tensors that they became below, and a band from each to its place -------


HIGH, BETWEEN = 26.0, 64.0
"""Pixels of a tensor, and between those above and below."""
GAP = 10.0
"""Pixels between tensors beside each other; many have less."""
FEW_LETTERS = 3


class Ribbon(NamedTuple):
    """Lines that follow each other above and below."""

    here: tuple[int, int]
    """Which of the tensors above, and the first of its lines."""
    there: tuple[int, int]
    """The same below."""
    length: int
    tint: str
    above: str
    """What is written on its upper end."""
    below: str
    words: str


class _Strips(NamedTuple):
    """Tensors beside each other."""

    lefts: tuple[float, ...]
    widths: tuple[float, ...]
    scale: float
    """Pixels of a line."""

    def place(self, at: tuple[int, int], length: int) -> tuple[float, float]:
        """Left and width of some lines."""
        return self.lefts[at[0]] + at[1] * self.scale, length * self.scale


def ribbons(above: Sequence[int], below: Sequence[int], found: Sequence[Ribbon], label: str) -> Markup:
    """Tensors above and below, to scale, each as its number of rows or columns."""
    upper, lower = _strips(above), _strips(below)
    bottom = HIGH + BETWEEN
    frames = (
        tag("rect", x=left, y=y, width=width, height=HIGH, class_="frame")
        for strips, y in ((upper, 0.5), (lower, bottom))
        for left, width in zip(strips.lefts, strips.widths, strict=True)
    )
    drawn = (_ribbon(one, upper.place(one.here, one.length), lower.place(one.there, one.length)) for one in found)
    return svg(label, WIDTH, bottom + HIGH + 1, *frames, *drawn, class_="ribbons", preserveAspectRatio="none")


def _strips(lines: Sequence[int]) -> _Strips:
    gap = min(GAP, WIDTH / 4 / max(1, len(lines)))
    scale = (WIDTH - gap * (len(lines) - 1)) / max(1, sum(lines))
    lefts, left = [], 0.0
    for one in lines:
        lefts.append(left)
        left += one * scale + gap
    return _Strips(tuple(lefts), tuple(one * scale for one in lines), scale)


def _ribbon(one: Ribbon, here: tuple[float, float], there: tuple[float, float]) -> Markup:
    """(left, width) above and below."""
    (x, wide), (to, broad) = here, there
    bend = HIGH + BETWEEN / 2
    top, bottom = HIGH, HIGH + BETWEEN
    band = (
        f"M{number(x)} {number(top)}C{number(x)} {number(bend)} {number(to)} {number(bend)} {number(to)} "
        f"{number(bottom)}h{number(broad)}C{number(to + broad)} {number(bend)} {number(x + wide)} {number(bend)} "
        f"{number(x + wide)} {number(top)}z"
    )
    return tag(
        "g", tag("title", readable(one.words)), tag("path", d=band, class_=f"ribbon t-{one.tint}"),
        _end(one.above, one.tint, x, wide, y=0.0), _end(one.below, one.tint, to, broad, y=bottom),
    )  # fmt: skip


def _end(label: str, tint: str, x: float, width: float, *, y: float) -> Markup:
    letters = int((width - 6) / LETTER)
    text = short(label, letters) if letters >= min(FEW_LETTERS, len(label)) else ""
    word = tag("text", text, x=x + 3, y=y + HIGH / 2 + 4.5) if text else EMPTY
    kind = "box" if width > 4 else "band"
    return joined((tag("rect", x=x, y=y + 0.5, width=max(0.5, width), height=HIGH, class_=f"{kind} t-{tint}"), word))


# --- Wires: a stored tensor, the names that are views of it, and which part of it each is -----------------------------
#
# The lines are borders of a list, drawn by the page's style, so names can be read, searched, and wrapped where the
# window is narrow.


ICON = (44.0, 28.0)
KINDS = ("storage", "declared", "content")
"""How a line is drawn: whole, dashed, dotted."""
MAX_LETTERS = 120


class Wire(NamedTuple):
    """One name."""

    name: str
    words: str
    """How it relates to the stored tensor, its type and shape."""
    kind: str
    """One of KINDS."""
    window: tuple[float, float, float, float]
    """Which part of the stored tensor it is: left, top, right and bottom, each from 0 to 1."""
    is_turned: bool = False
    """Whether it is transposed."""
    mark: str = ""
    """What is different elsewhere, in a word or two."""


def wired(owner: str, words: str, wires: Sequence[Wire], *, is_narrow: bool = False) -> Markup:
    """The stored tensor on the left, its names on the right; below it if that is narrow.

    A stored tensor without wires is drawn alone.
    """
    kind = "owner" if wires else "owner alone"
    head = tag("div", _name(owner), tag("small", words), class_=kind)
    names = tag("ul", joined(map(_wire, wires))) if wires else EMPTY
    return tag("div", head, names, class_="graph narrow" if is_narrow else "graph")


def _wire(one: Wire) -> Markup:
    mark = tag("em", one.mark) if one.mark else EMPTY
    text = tag("div", _name(one.name), mark, tag("small", one.words))
    # The stored tensor in small, with the part of it that a name is.
    left, top, right, bottom = one.window
    width, height = ICON
    frame = tag("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, class_="frame")
    part = tag(
        "rect", x=left * width, y=top * height, width=max(2.0, (right - left) * width),
        height=max(2.0, (bottom - top) * height), class_="part",
    )  # fmt: skip
    arrow = tag("path", d="M13 20L31 8m-7 0h7v6", class_="turn") if one.is_turned else EMPTY
    box = f"0 0 {number(width)} {number(height)}"
    icon = tag("svg", frame, part, arrow, viewBox=box, width=width, height=height, aria_hidden="true")
    return tag("li", icon, text, class_=f"w-{one.kind} marked" if one.mark else f"w-{one.kind}")


def _name(name: str) -> Markup:
    return tag("b", breakable(readable(name, MAX_LETTERS) or "''"), class_="name")


# --- Tensors as rectangles of rows and columns, with what each band of them holds in colour: gates, or heads ----------


SIDE = 132.0
"""Pixels of the longer side of a matrix."""
MIN_BAND = 11.0
"""A lower band has no word in it."""


class Band(NamedTuple):
    """A part of a tensor: rows and columns from 0 to 1, of its height and width."""

    left: float
    top: float
    right: float
    bottom: float
    label: str
    tint: str


class Grid(NamedTuple):
    """A tensor."""

    name: str
    words: str
    """Its shape."""
    rows: int
    columns: int
    bands: tuple[Band, ...]


def grid(one: Grid, label: str) -> Markup:
    """The tensor, with its bands; its sides are not in the ratio of its shape where that would be too thin."""
    wide = one.columns > 4 * one.rows
    width, height = (2.4 * SIDE, 30.0) if wide else _sides(one)
    frame = tag("rect", x=0.5, y=0.5, width=width, height=height, class_="frame")
    bands = (_band(band, width, height) for band in one.bands)
    return svg(label, width + 1, height + 1, frame, *bands, class_="grid", width=width + 1, height=height + 1)


def _sides(one: Grid) -> tuple[float, float]:
    ratio = one.columns / max(1, one.rows)
    return max(76.0, min(SIDE, SIDE * ratio)), max(64.0, min(SIDE, SIDE / max(ratio, 1e-9)))


def _band(one: Band, width: float, height: float) -> Markup:
    place = {
        "x": 0.5 + one.left * width, "y": 0.5 + one.top * height, "width": max(0.8, (one.right - one.left) * width),
        "height": max(0.8, (one.bottom - one.top) * height),
    }  # fmt: skip
    has_room = place["height"] >= MIN_BAND
    text = short(one.label, int((place["width"] - 4) / LETTER)) if has_room else ""
    word = tag("text", text, x=place["x"] + 4, y=place["y"] + place["height"] / 2 + 4) if text else EMPTY
    kind = "band" if place["height"] < 4 or place["width"] < 4 else "box"
    return tag("g", tag("title", readable(one.label)), tag("rect", **place, class_=f"{kind} t-{one.tint}"), word)


def key(items: Sequence[tuple[str, str, str]]) -> Markup:
    """What tints and patterns mean: (tint, marks, words)."""
    return tag(
        "ul",
        joined(tag("li", _swatch(tint, marks), " ", words) for tint, marks, words in items),
        class_="key",
    )


def _swatch(tint: str, marks: str) -> Markup:
    mark = tag("rect", x=1.0, y=1.0, width=16.0, height=11.0, class_=f"m-{marks}") if marks else EMPTY
    box = tag("rect", x=1.0, y=1.0, width=16.0, height=11.0, class_=f"box {tint if tint[0] == 'h' else 't-' + tint}")
    return tag("svg", box, mark, width=18, height=13, aria_hidden="true", class_="swatch")
