"""The picture of the README: names of one storage, the file that keeps the bytes once, and the models that load it."""

from __future__ import annotations

from collections.abc import Iterator

from figures.canvas import LEFT, RIGHT, arrow_down, box, curve, line, picture, text
from paramtool.drawing.markup import Markup, joined

NAMES = (
    ("wte.weight", "[50257, 768]", "blue", "owner of the bytes"),
    ("lm_head.weight", "[50257, 768]", "green", "the same view"),
    ("unembed.weight", "[768, 50257]", "orange", "its transpose"),
)
VARIANTS = (
    ("tied head", "three names,", "one memory"),
    ("no head", "one name", "is enough"),
    ("untied head", "each name has", "its own copy"),
)


def one_file() -> str:
    """The picture."""
    parts = [
        text(LEFT, 34, "A model in memory", "h"),
        text(LEFT, 54, "Three names are views of one storage.", "f-soft"),
        joined(_model(72)),
        arrow_down(240, 214, 254),
        text(254, 238, "paramtool dedup", "m"),
        joined(_file(254)),
        joined(_variants(428)),
    ]
    return picture(
        "One file for every variant",
        "Three names are views of one storage.  The file keeps the bytes once and every name in a record.  A model "
        "with a tied head, one without a head and one with an untied head load it.",
        550,
        parts,
    )


def _storage(x: float, y: float, width: float, height: float) -> Iterator[Markup]:
    """A box with rows, as the bytes of a tensor."""
    yield box(x, y, width, height, "blue")
    for k in range(1, 6):
        yield line(x, y + height * k / 6, x + width, y + height * k / 6, "n k-strong", 0.7)


def _model(y: float) -> Iterator[Markup]:
    """Names, each with a line to one storage."""
    for k, (name, shape, tint, _) in enumerate(NAMES):
        at = y + 46 * k
        yield curve(LEFT + 250, at + 18, 326, y + 64)
        yield box(LEFT, at, 250, 36, tint)
        yield text(LEFT + 10, at + 22.5, name, "m b")
        yield text(LEFT + 240, at + 22.5, shape, "m", "end")
    yield from _storage(326, y + 20, 60, 88)
    yield text(398, y + 60, "154 MB", "b")
    yield text(398, y + 77, "once", "f-soft")


def _file(y: float) -> Iterator[Markup]:
    """The file: the bytes, and the record."""
    yield box(LEFT, y, RIGHT - LEFT, 136, "paper", "strong", 6)
    yield text(LEFT + 14, y + 26, "model.dedup.safetensors", "m b")
    yield from _storage(LEFT + 14, y + 44, 56, 78)
    for k, (name, _, tint, words) in enumerate(NAMES):
        at = y + 44 + 28 * k
        yield box(LEFT + 90, at, 128, 22, tint)
        yield text(LEFT + 98, at + 15.3, name, "m t b")
        yield text(LEFT + 232, at + 15.5, words)
        yield text(RIGHT - 14, at + 15.5, "stored" if k == 0 else "record", "t f-soft", "end")


def _variants(y: float) -> Iterator[Markup]:
    """Models that load the file."""
    width = 138.0
    yield from (arrow_down(LEFT + width / 2 + (width + 13) * k, y - 38, y) for k in range(3))
    for k, (name, *words) in enumerate(VARIANTS):
        x = LEFT + (width + 13) * k
        yield box(x, y, width, 74, "paper", "strong", 6)
        yield text(x + 10, y + 22, name, "b")
        yield text(x + 10, y + 44, words[0], "f-soft")
        yield text(x + 10, y + 61, words[1], "f-soft")
    yield text(LEFT, y + 106, "Every variant of the model loads this file.", "f-soft")
