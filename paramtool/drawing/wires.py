"""Wires: a stored tensor, the names that are views of it, and which part of it each is.

The lines are borders of a list, drawn by the page's style, so names can be read, searched, and wrapped where the window
is narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paramtool.drawing.markup import EMPTY, Markup, breakable, joined, number, readable, tag

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
    return tag(
        "li",
        tag(
            "svg",
            frame,
            part,
            arrow,
            viewBox=f"0 0 {number(width)} {number(height)}",
            width=width,
            height=height,
            aria_hidden="true",
        ),
        text,
        class_=f"w-{one.kind} marked" if one.mark else f"w-{one.kind}",
    )


def _name(name: str) -> Markup:
    return tag("b", breakable(readable(name, MAX_LETTERS) or "''"), class_="name")
