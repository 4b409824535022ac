"""The orders of heads in fused attention, and of rows in fused MLPs, from the tables of parts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from layout_parts import elements

from figures.canvas import LEFT, RIGHT, box, line, picture, text
from paramtool.drawing.markup import Markup
from paramtool.parts import patterns, rows
from paramtool.parts.layout import FusedRow, find_part_layout
from paramtool.parts.sizes import Sizes

TINTS = {"q": "blue", "k": "orange", "v": "green", "gate": "purple", "up": "yellow"}
"""As `report` has them."""
WORDS = {"q": "queries", "k": "keys", "v": "values", "gate": "gate", "up": "up"}
EACH = {"heads": 4, "kv_heads": 4, "head_dim": 1, "value_dim": 1, "in": 1, "ffn": 4, "chunks": 2}
GROUPED = {**EACH, "kv_heads": 2}
PARTS = (
    ("Each head has its own key and value", EACH,
     (("qkv", "torch.nn.MultiheadAttention"), ("qkv-per-head", "GPT-NeoX"), ("qvk-per-chunk", "CodeGen"))),
    ("Two heads share a key and a value", GROUPED,
     (("qkv", "DBRX"), ("qkv-per-group", "Falcon-40B"), ("qkv-per-chunk", "MiMo-V2.5 Pro"))),
    ("A gated MLP", EACH, (("gate-up", "Phi-3"), ("gate-up-interleaved", "gpt-oss"))),
)  # fmt: skip
"""(what, the sizes of the model, (layout, one of the models that its table names))"""


class Row(NamedTuple):
    """A block of rows of a fused tensor."""

    term: str
    number: int
    """Of the head, or of the row."""


def order(name: str, given: dict[str, int]) -> list[Row]:
    """Which head, or which row, each row of a fused tensor has, if a head has one row."""
    layout = find_part_layout(name)
    assert layout is not None
    row: FusedRow = layout.tensors[0]
    sizes = Sizes(given)
    parts = {
        term: [rows.PartTensor(term, patterns.PARTS[term], rows.part_shape(patterns.PARTS[term], sizes))]
        for term in row.terms()
    }
    stored = rows.stored(row.name, row.content, row.along, parts, sizes=sizes)
    found: dict[int, Row] = {}
    for piece in stored.pieces:
        for place, index in elements(piece, stored.shape):
            found[place] = Row(piece.part, index[0])
    assert len(found) == prod(stored.shape)
    return [found[k] for k in sorted(found)]


def head_orders() -> str:
    """The picture."""
    parts: list[Markup] = []
    y = 34.0
    said = []
    parts.append(text(LEFT, y, "Rows of a fused tensor, from the first to the last", "f-soft"))
    y += 36
    for title, sizes, names in PARTS:
        parts.append(text(LEFT, y, title, "h"))
        y += 28
        for name, model in names:
            found = order(name, sizes)
            said.append(f"{name}: {' '.join(f'{one.term}{one.number}' for one in found)}")
            parts += _strip(y, name, model, found)
            y += 62
        y += 12
    parts += _key(y - 8)
    return picture("Head orders of fused tensors", "Rows from top to bottom.  " + "; ".join(said), y + 32, parts)


def _strip(y: float, name: str, model: str, found: list[Row]) -> Iterator[Markup]:
    """The rows of a fused tensor, from left to right."""
    layout = find_part_layout(name)
    assert layout is not None and model in layout.models
    width = (RIGHT - LEFT) / len(found)
    yield text(LEFT, y, name, "m b")
    yield text(RIGHT, y, model, "t f-soft", "end")
    for k, one in enumerate(found):
        yield box(LEFT + k * width, y + 8, width, 26, TINTS[one.term], "strong", 0)
        yield text(LEFT + (k + 0.5) * width, y + 25.5, f"{one.term[0]}{one.number}", "t m", "middle")


def _key(y: float) -> Iterator[Markup]:
    """What the colours mean."""
    yield line(LEFT, y - 12, RIGHT, y - 12, "n k-line", 1)
    x = float(LEFT)
    for term, tint in TINTS.items():
        yield box(x, y + 2, 16, 16, tint, "strong", 2)
        yield text(x + 22, y + 15, WORDS[term], "f-soft")
        x += 44 + 7.4 * len(WORDS[term])
