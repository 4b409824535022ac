"""Ribbons: rows of some tensors above, the tensors that they became below, and a band from each to its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paramtool.drawing.markup import EMPTY, Markup, joined, number, readable, short, tag
from paramtool.drawing.treemap import LETTER

WIDTH, TALL, BETWEEN = 1040.0, 26.0, 64.0
"""Pixels of the figure, of a tensor and between those above and below."""
GAP = 10.0
"""Pixels between tensors beside each other; many have less."""
MIN_LETTERS = 3


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
    bottom = TALL + BETWEEN
    frames = (
        tag("rect", x=left, y=y, width=width, height=TALL, class_="frame")
        for strips, y in ((upper, 0.5), (lower, bottom))
        for left, width in zip(strips.lefts, strips.widths, strict=True)
    )
    drawn = (_ribbon(one, upper.place(one.here, one.length), lower.place(one.there, one.length)) for one in found)
    return tag(
        "svg", tag("title", label), joined(frames), joined(drawn),
        viewBox=f"0 0 {number(WIDTH)} {number(bottom + TALL + 1)}", role="img", aria_label=label, class_="ribbons",
        preserveAspectRatio="none",
    )  # fmt: skip


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
    bend = TALL + BETWEEN / 2
    top, bottom = TALL, TALL + BETWEEN
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
    text = short(label, letters) if letters >= min(MIN_LETTERS, len(label)) else ""
    word = tag("text", text, x=x + 3, y=y + TALL / 2 + 4.5) if text else EMPTY
    kind = "box" if width > 4 else "band"
    return joined((tag("rect", x=x, y=y + 0.5, width=max(0.5, width), height=TALL, class_=f"{kind} t-{tint}"), word))
