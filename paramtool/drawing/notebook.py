"""Small pictures for notebooks: without a style, a script or an id, since they stand in somebody else's page.

Their tints and ink are those of a light page, which can be read on any background: the ink is on the tints only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from paramtool.drawing.markup import EMPTY, Markup, readable, short, svg, tag
from paramtool.drawing.palette import PAGE, TINTS
from paramtool.drawing.strips import Segment
from paramtool.drawing.treemap import LETTER, DrawnNode, TreemapNode, boxes

WIDTH, HEIGHT, BAR = 640.0, 240.0, 22.0
MOST = 80
"""Rectangles of a picture."""


def small_treemap(root: TreemapNode, label: str) -> Markup:
    """A treemap's upper levels."""
    drawn = [one for one in islice(boxes(root, WIDTH, HEIGHT), 8 * MOST) if one.depth <= 2][:MOST]
    return svg(label, WIDTH, HEIGHT, *map(_node, drawn), width=WIDTH, height=HEIGHT)


def small_bar(parts: Sequence[Segment], label: str) -> Markup:
    """A stacked bar."""
    scale = WIDTH / max(1, max((one.stop for one in parts), default=1))
    boxes_ = (
        _labelled(
            (one.start * scale, 0.0, max(1.0, (one.stop - one.start) * scale), BAR), one.tint, one.label, one.words
        )
        for one in parts
    )
    return svg(label, WIDTH, BAR, *boxes_, width=WIDTH, height=BAR)


def _node(one: DrawnNode) -> Markup:
    tint = "grey" if one.is_open and one.depth == 1 else one.node.tint
    return _labelled((one.x, one.y, one.width, one.height), tint, one.node.name, one.node.words)


def _labelled(place: tuple[float, float, float, float], tint: str, name: str, words: str) -> Markup:
    """A rectangle with its name, where that has room."""
    x, y, width, height = place
    text = short(name, int((width - 6) / LETTER)) if height >= 14 else ""
    word = tag("text", text, x=x + 3, y=y + 12, fill=PAGE["ink"].light, font_size=11, font_family="monospace")
    box = tag(
        "rect", x=x, y=y, width=max(0.5, width - 1), height=max(0.5, height - 1), fill=TINTS[tint].light,
        stroke=PAGE["strong"].light, stroke_width=0.5,
    )  # fmt: skip
    return tag("g", tag("title", f"{readable(name)}: {words}"), box, word if text else EMPTY)
