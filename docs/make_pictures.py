"""Draws docs/pictures/one-file.svg, the picture of the README: `python docs/make_pictures.py`.

The picture has a light background of its own, so that it can be read on light and on dark pages.
"""

from __future__ import annotations

import os
from html import escape

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pictures", "one-file.svg")
WIDTH, HEIGHT = 960, 332
INK, SOFT, LINE, PAPER, PANEL = "#1f2328", "#57606a", "#8c959f", "#ffffff", "#f6f8fa"
MONO = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
SANS = "Helvetica, Arial, DejaVu Sans, sans-serif"
BLUE, GREEN, ORANGE = "#0969da", "#1a7f37", "#bc4c00"
NAMES = (
    ("wte.weight", "[50257, 768]", BLUE),
    ("lm_head.weight", "[50257, 768]", GREEN),
    ("unembed.weight", "[768, 50257]", ORANGE),
)
RECORD = (
    ("lm_head.weight", "same view", GREEN),
    ("unembed.weight", "transpose", ORANGE),
)
VARIANTS = (
    ("model with a tied head", "three names, one memory"),
    ("model without a head", "one name is enough"),
    ("model with an untied head", "each name has its own copy"),
)


def text(
    x: float, y: float, words: str, *, size: int = 13, fill: str = INK, bold: bool = False, mono: bool = False,
    anchor: str = "start",
) -> str:  # fmt: skip
    """A line of words; `y` is its baseline."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-family="{MONO if mono else SANS}" font-size="{size}" fill="{fill}"{weight}'
        f' text-anchor="{anchor}">{escape(words)}</text>'
    )


def box(
    x: float, y: float, width: float, height: float, *, fill: str = PAPER, stroke: str = LINE, heavy: float = 1.2
) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" fill="{fill}"'
        f' stroke="{stroke}" stroke-width="{heavy:g}"/>'
    )


def arrow(x: float, y: float, to_x: float, to_y: float, colour: str = SOFT) -> str:
    """A curve that ends in a point to the right."""
    middle = (x + to_x) / 2
    return (f'<path d="M{x:g} {y:g} C{middle:g} {y:g} {middle:g} {to_y:g} {to_x - 7:g} {to_y:g}" fill="none"'
            f' stroke="{colour}" stroke-width="1.8"/>'
            f'<path d="M{to_x:g} {to_y:g} l-9 -4.5 v9 z" fill="{colour}"/>')  # fmt: skip


def storage(x: float, y: float, width: float, height: float) -> str:
    """A box with rows, as the bytes of a tensor."""
    lines = "".join(f'<path d="M{x:g} {y + height * k / 6:g} h{width:g}" stroke="{LINE}" stroke-width="0.7"/>'
                    for k in range(1, 6))  # fmt: skip
    return box(x, y, width, height, fill="#ddf4ff", stroke=BLUE, heavy=1.6) + lines


def model() -> list[str]:
    """On the left: names, each an arrow into one storage."""
    parts = [text(24, 36, "A model in memory", size=16, bold=True)]
    parts += [text(24, 56, "three names are views of one storage", fill=SOFT)]
    for k, (name, shape, colour) in enumerate(NAMES):
        y = 84 + 84 * k
        parts += [box(24, y, 154, 56, stroke=colour, heavy=1.6), arrow(178, y + 28, 222, 178 + 18 * k, colour)]
        parts += [text(36, y + 24, name, fill=colour, bold=True, mono=True)]
        parts += [text(36, y + 43, f"view {shape}", size=11, fill=SOFT, mono=True)]
    parts += [storage(222, 146, 76, 100), text(260, 268, "one storage", anchor="middle")]
    parts += [text(260, 285, "154 MB", fill=SOFT, anchor="middle")]
    return [*parts, arrow(306, 196, 372, 196), text(338, 184, "dedup", fill=SOFT, mono=True, anchor="middle")]


def output() -> list[str]:
    """In the middle: the file, with the bytes and the record."""
    parts = [text(380, 36, "model.dedup.safetensors", size=16, bold=True)]
    parts += [text(380, 56, "the bytes once, every name", fill=SOFT), box(380, 84, 254, 224)]
    parts += [text(394, 106, "stored tensor", size=11, fill=SOFT), storage(394, 116, 50, 64)]
    parts += [text(458, 142, "wte.weight", fill=BLUE, bold=True, mono=True)]
    parts += [text(458, 161, "owner of the bytes, 154 MB", size=11, fill=SOFT)]
    parts += [f'<path d="M394 194 h226" stroke="{LINE}" stroke-dasharray="4 4"/>']
    parts += [text(394, 214, "alias record", size=11, fill=SOFT)]
    for k, (name, relation, colour) in enumerate(RECORD):
        parts += [text(394, 238 + 38 * k, name, fill=colour, bold=True, mono=True)]
        parts += [text(394, 254 + 38 * k, f"{relation} of wte.weight · storage", size=11, fill=SOFT)]
    return parts


def variants() -> list[str]:
    """On the right: models that load the file."""
    parts = [text(714, 36, "Every variant loads it", size=16, bold=True)]
    parts += [text(714, 56, "the record resolves each name", fill=SOFT)]
    for k, (name, words) in enumerate(VARIANTS):
        y = 84 + 84 * k
        parts += [arrow(634, 196, 714, y + 28), box(714, y, 222, 56)]
        parts += [text(728, y + 24, name, bold=True), text(728, y + 43, words, size=12, fill=SOFT)]
    return parts


def picture() -> str:
    """The whole picture as SVG."""
    sheet = box(1, 1, WIDTH - 2, HEIGHT - 2, fill=PANEL, stroke="#d0d7de")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<title>Three names are views of one storage; one file keeps the bytes once and every name</title>",
        *(sheet, *model(), *output(), *variants()),
        "</svg>\n",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(picture())
