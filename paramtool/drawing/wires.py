"""Wires: a stored tensor, the names that are views of it, and where on it each view is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paramtool.drawing.markup import EMPTY, Markup, joined, number, readable, short, tag
from paramtool.drawing.treemap import LETTER

WIDTH = 1040.0
STEP = 40.0
"""Pixels from one name to the next."""
OWNER = 300.0
"""Pixels of the stored tensor's side."""
ICON = (44.0, 28.0)
KINDS = ("storage", "declared", "content")
"""How a line is drawn: whole, dashed, dotted."""


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


def wired(owner: str, words: str, wires: Sequence[Wire], label: str) -> Markup:
    """The stored tensor on the left, its names on the right."""
    height = max(2.2 * STEP, STEP * len(wires) + 8)
    middle = height / 2
    box = tag("rect", x=1.0, y=middle - 30, width=OWNER - 2, height=60.0, rx=4.0, class_="box t-blue")
    head = tag("text", short(owner, int((OWNER - 20) / LETTER)), x=10.0, y=middle - 6, class_="strong")
    under = tag("text", short(words, int((OWNER - 20) / LETTER)), x=10.0, y=middle + 14)
    lines = joined(_wire(one, k * STEP + STEP / 2 + 4, middle) for k, one in enumerate(wires))
    return tag(
        "svg", tag("title", label), lines, tag("g", tag("title", readable(owner)), box, head, under),
        viewBox=f"0 0 {number(WIDTH)} {number(height)}", role="img", aria_label=label, class_="wires",
    )  # fmt: skip


def _wire(one: Wire, y: float, middle: float) -> Markup:
    to = OWNER + 110
    line = f"M{number(OWNER)} {number(middle)}C{number(OWNER + 60)} {number(middle)} {number(to - 60)} {number(y)} "
    path = tag("path", d=f"{line}{number(to)} {number(y)}", class_=f"wire w-{one.kind}")
    x = to + ICON[0] + 14
    letters = int((WIDTH - x) / LETTER)
    return tag(
        "g", tag("title", f"{readable(one.name)}: {one.words}"), path, _icon(one, to + 2, y - ICON[1] / 2),
        tag("text", short(one.name, letters), x=x, y=y - 2, class_="strong"),
        tag("text", short(one.words, letters), x=x, y=y + 13, class_="soft"),
    )  # fmt: skip


def _icon(one: Wire, x: float, y: float) -> Markup:
    """The stored tensor in small, with the part of it that a name is."""
    left, top, right, bottom = one.window
    width, height = ICON
    frame = tag("rect", x=x, y=y, width=width, height=height, class_="frame")
    part = tag(
        "rect", x=x + left * width, y=y + top * height, width=max(2.0, (right - left) * width),
        height=max(2.0, (bottom - top) * height), class_="part",
    )  # fmt: skip
    arrow = (
        tag("path", d=f"M{number(x + 13)} {number(y + 20)}L{number(x + 31)} {number(y + 8)}m-7 0h7v6", class_="turn")
        if one.is_turned
        else EMPTY
    )
    return joined((frame, part, arrow))
