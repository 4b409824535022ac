"""A fused buffer of cuDNN as a ruler: which gate of which matrix or bias has which elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from figures.canvas import LEFT, RIGHT, box, line, paragraph, picture, text
from figures.networks import GATE_WORDS, SPEC, TINT_OF_GATE, Run, cells
from paramtool.drawing.markup import Markup, joined

MORE = (f"{SPEC} bidirectional", SPEC.replace("layers=1", "layers=2"))
HIGH = 30.0


def fused_buffer() -> str:
    """The picture."""
    parts = [
        text(LEFT, 34, "cuDNN's vector of an LSTM", "h"),
        text(LEFT, 54, SPEC, "m f-soft"),
        joined(_ruler(cells(), 92, several=False)),
        text(LEFT, 190, "Two directions, two layers", "h"),
        text(LEFT, 210, "bidirectional", "m f-soft"),
        joined(_ruler(cells(MORE[0]), 248, several=True)),
        text(LEFT, 326, "layers=2", "m f-soft"),
        joined(_ruler(cells(MORE[1]), 364, several=True)),
        joined(_key(448)),
        paragraph(LEFT, 494, ("Numbers are offsets in elements.  All matrices come",
                              "first, then all biases: layer by layer, direction by",
                              "direction, W before R.")),
    ]  # fmt: skip
    return picture(
        "A fused buffer of cuDNN",
        "A ruler of the flat vector of an LSTM with 3 inputs and 4 hidden units: gates i, f, g, o of W from element 0, "
        "of R from 48, of the first bias from 112 and of the second from 128 to 144.  With two directions or two "
        "layers, all matrices come before all biases.",
        546,
        parts,
    )


def _ruler(runs: list[Run], y: float, *, several: bool) -> Iterator[Markup]:
    """The cells to scale, brackets above for what they belong to, offsets below."""
    total = runs[-1].stop
    scale = (RIGHT - LEFT) / total
    for one in runs:
        x, width = LEFT + one.start * scale, (one.stop - one.start) * scale
        yield box(x, y, width, HIGH, TINT_OF_GATE[one.gate], "strong", 0)
        if width > 9:
            yield text(x + width / 2, y + HIGH / 2 + 4.5, one.gate, "m", "middle")
    stops = []
    for key, group in groupby(runs, lambda one: _region(one, several=several)):
        found = list(group)
        start, stop = found[0].start, found[-1].stop
        yield from _bracket(LEFT + start * scale, LEFT + stop * scale, y - 6, key)
        stops += [start, stop]
    for at in sorted({*stops, *([] if several else [one.start for one in runs if one.kind == "bR"][:1])}):
        x = LEFT + at * scale
        yield line(x, y + HIGH, x, y + HIGH + 6)
        anchor = "start" if at == 0 else "end" if at == total else "middle"
        yield text(x, y + HIGH + 20, str(at), "t m", anchor)


def _region(one: Run, *, several: bool) -> str:
    """What a bracket says."""
    if several and one.kind in ("bW", "bR"):
        return "all biases"
    where = "reverse" if one.direction else f"layer {one.layer}" if one.layer else ""
    return f"{one.kind} {where}".strip()


def _bracket(x: float, to_x: float, y: float, words: str) -> Iterator[Markup]:
    """A line above some cells, with words in its middle."""
    yield line(x + 1.5, y, to_x - 1.5, y, "n k-strong", 2)
    yield text((x + to_x) / 2, y - 6, words, "t", "middle")


def _key(y: float) -> Iterator[Markup]:
    """What the colours mean."""
    yield line(LEFT, y - 14, RIGHT, y - 14, "n k-line")
    x = float(LEFT)
    for gate in "ifgo":
        yield box(x, y, 16, 16, TINT_OF_GATE[gate], "strong", 2)
        yield text(x + 8, y + 12.5, gate, "t m", "middle")
        yield text(x + 22, y + 13, GATE_WORDS[gate], "f-soft")
        x += {"i": 84, "f": 92, "g": 146, "o": 0}[gate]
