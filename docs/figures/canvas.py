"""A picture as an SVG: a card of 480 units with text that can be read where a phone shows it 380 pixels wide.

Colours are classes with a light and a dark value (`paramtool.drawing.palette`), so that a picture follows the scheme of
the page that shows it; the card has a background of its own for pages whose scheme it cannot know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from paramtool.drawing.markup import Markup, joined, number, tag
from paramtool.drawing.palette import PAGE, TINTS

WIDTH = 480
SHOWN = 600
"""Pixels that a wide page shows the card in."""
LEFT, RIGHT = 20, WIDTH - 20
"""Between these is the picture."""
MONO = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
SANS = 'system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",Helvetica,Arial,sans-serif'
WORDS = {
    "text": f"font:13px {SANS}",
    ".m": f"font-family:{MONO}",
    ".b": "font-weight:600",
    ".h": "font-size:16px;font-weight:600",
    ".t": "font-size:12px",
    ".n": "fill:none",
    ".d": "stroke-dasharray:7 4",
    ".o": "stroke-dasharray:1.5 4;stroke-linecap:round",
}
"""Rules without colours: m code, b bold, h a heading, t small, n not filled, d dashed, o dotted."""
COLOURS = {**PAGE, **TINTS}


def text(x: float, y: float, words: str, style: str = "", anchor: str | None = None) -> Markup:
    """A line of words; `y` is its baseline."""
    has_colour = any(one.startswith("f-") for one in style.split())
    return tag("text", words, x=float(x), y=float(y), class_=style if has_colour else f"{style} f-ink".strip(),
               text_anchor=anchor)  # fmt: skip


def box(x: float, y: float, width: float, height: float, fill: str = "paper", stroke: str = "strong",
        round_: float = 4, more: str = "") -> Markup:  # fmt: skip
    """A rectangle."""
    return tag("rect", x=float(x), y=float(y), width=float(width), height=float(height), rx=float(round_),
               class_=f"f-{fill} k-{stroke} {more}".strip())  # fmt: skip


def path(d: str, style: str = "n k-strong", width: float = 1.5) -> Markup:
    """A line of any form."""
    return tag("path", d=d, class_=style, stroke_width=width)


def line(x: float, y: float, to_x: float, to_y: float, style: str = "n k-strong", width: float = 1.5) -> Markup:
    """A straight line."""
    return path(f"M{number(x)} {number(y)}L{number(to_x)} {number(to_y)}", style, width)


def arrow_down(x: float, y: float, to_y: float) -> Markup:
    """A line that ends in a point."""
    return joined((line(x, y, x, to_y - 7), path(f"M{number(x)} {number(to_y)}l-5 -9h10z", "f-strong", 0)))


def curve(x: float, y: float, to_x: float, to_y: float, style: str = "") -> Markup:
    """A line from left to right that leaves and arrives level."""
    middle = (x + to_x) / 2
    d = f"M{number(x)} {number(y)}C{number(middle)} {number(y)} {number(middle)} {number(to_y)} "
    return path(f"{d}{number(to_x)} {number(to_y)}", f"n k-strong {style}".strip(), 1.8)


def cell(x: float, y: float, width: float, height: float, fill: str, label: str = "", style: str = "t m") -> Markup:
    """A small box with a word in its middle."""
    word = text(x + width / 2, y + height / 2 + 4.3, label, style, "middle") if label else None
    return tag("g", box(x, y, width, height, fill, "strong", 0), word)


def paragraph(x: float, y: float, words: Iterable[str], style: str = "f-soft", step: float = 17) -> Markup:
    """Lines below each other."""
    return joined(text(x, y + k * step, line_, style) for k, line_ in enumerate(words))


def wrapped(words: Iterable[str], letters: int, between: str = ", ") -> list[str]:
    """Words in lines of at most `letters` letters."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(between) + len(word) <= letters:
            lines[-1] += between + word
        else:
            if lines:
                lines[-1] += between.rstrip()
            lines.append(word)
    return lines


def picture(title: str, description: str, height: float, parts: Iterable[Markup]) -> str:
    """The whole SVG; `title` and `description` are read aloud in its place."""
    card = box(0.5, 0.5, WIDTH - 1, height - 1, "panel", "line", 8)
    body = joined((card, *parts))
    made = tag(
        "svg", tag("title", title, id="title"), tag("desc", description, id="desc"), tag("style", Markup(_css(body))),
        Markup("\n"), Markup(body.replace("><", ">\n<")), Markup("\n"),
        xmlns="http://www.w3.org/2000/svg", width=SHOWN, height=round(height * SHOWN / WIDTH),
        viewBox=f"0 0 {WIDTH} {number(height)}", role="img", aria_labelledby="title desc",
    )  # fmt: skip
    return f"{made}\n"


def _css(body: str) -> str:
    """The rules of the classes that are used."""
    used = {name for classes in re.findall(r'class="([^"]*)"', body) for name in classes.split()}
    plain = "".join(f"{name}{{{rule}}}" for name, rule in WORDS.items() if name == "text" or name[1:] in used)
    return f"{plain}{_colours(used, 0)}@media(prefers-color-scheme:dark){{{_colours(used, 1)}}}"


def _colours(used: set[str], scheme: int) -> str:
    """The colours of the light scheme, or of the dark one."""
    kinds = (("f", "fill"), ("k", "stroke"))
    return "".join(
        f".{letter}-{name}{{{what}:{shades[scheme]}}}"
        for name, shades in COLOURS.items()
        for letter, what in kinds
        if f"{letter}-{name}" in used
    )
