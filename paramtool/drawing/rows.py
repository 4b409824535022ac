"""Tensors as rectangles of rows and columns, with what each band of them holds in colour: gates, or heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paramtool.drawing.markup import EMPTY, Markup, joined, number, readable, short, tag
from paramtool.drawing.treemap import LETTER

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
    bands = joined(_band(band, width, height) for band in one.bands)
    return tag(
        "svg", tag("title", label), frame, bands, viewBox=f"0 0 {number(width + 1)} {number(height + 1)}",
        role="img", aria_label=label, class_="grid", width=width + 1, height=height + 1,
    )  # fmt: skip


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
