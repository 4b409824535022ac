"""Views on a storage: a tied weight, a slice, a transpose, and the vector of a fused network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from figures.canvas import LEFT, RIGHT, box, cell, line, picture, text
from figures.networks import TINT_OF_KIND, regions
from paramtool.drawing.markup import Markup, joined
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous

FLOAT = DTYPES["float32"]
WHOLE = contiguous(0, FLOAT, (4, 3))
VIEWS = (
    ("The tensor", "wte.weight", WHOLE),
    ("A tied weight: the same view", "lm_head.weight", WHOLE),
    ("A slice: rows 1 and 2", "wte.weight[1:3]", contiguous(0, FLOAT, (2, 3), 3)),
    ("A transpose: other strides", "unembed.weight", View(0, FLOAT, 0, (3, 4), (1, 3))),
)
CELL, HIGH = 30.0, 20.0


def views_on_a_storage() -> str:
    """The picture."""
    parts = [
        text(LEFT, 34, "One storage, 12 elements", "h"),
        joined(cell(LEFT + 36.6 * k, 46, 36.6, 24, "blue", str(k)) for k in range(WHOLE.numel)),
        text(LEFT, 92, "Four names are views of it.  Numbers say which element is where.", "f-soft"),
    ]
    for k, (what, name, view) in enumerate(VIEWS):
        parts.append(joined(_view(LEFT + 226 * (k % 2), 120 + 172 * (k // 2), what, name, view)))
    parts += [line(LEFT, 442, RIGHT, 442, "n k-line"), joined(_fused(472))]
    return picture(
        "Views on a storage",
        "A storage of 12 elements.  A weight of shape 4 by 3, a tied weight with the same view, a slice of two rows "
        "and a transpose with other strides are views of it.  Below, the four weights of an LSTM are views of one "
        "vector.",
        640,
        parts,
    )


def _view(x: float, y: float, what: str, name: str, view: View) -> Iterator[Markup]:
    """A name: its geometry, what it covers of the storage, and its elements."""
    yield text(x, y, what)
    yield text(x, y + 19, name, "m b")
    yield text(x, y + 36, f"offset {view.offset}, strides {view.strides}", "t m f-soft")
    places = [
        (index, view.offset + sum(k * step for k, step in zip(index, view.strides, strict=True)))
        for index in product(*map(range, view.shape))
    ]
    touched = {place for _, place in places}
    for k in range(WHOLE.numel):
        yield box(x + 15 * k, y + 46, 15, 8, "blue" if k in touched else "blank", "strong", 0)
    for (row, column), place in places:
        yield cell(x + CELL * column, y + 64 + HIGH * row, CELL, HIGH, "blue", str(place))
    words = f"{list(view.shape)}"
    yield text(x + CELL * view.shape[1] + 10, y + 64 + HIGH * view.shape[0] / 2 + 4, words, "t m f-soft")


def _fused(y: float) -> Iterator[Markup]:
    """The vector of a fused network, to scale, and the views of it."""
    found = regions()
    total = max(one.stop for one in found)
    scale = (RIGHT - LEFT) / total
    yield text(LEFT, y, "The vector of a fused LSTM", "h")
    yield text(LEFT, y + 20, f"One storage of {total} elements; no two of its four views meet", "f-soft")
    for one in found:
        yield box(LEFT + one.start * scale, y + 32, (one.stop - one.start) * scale, 26, TINT_OF_KIND[one.kind],
                  "strong", 0)  # fmt: skip
    for k, one in enumerate(found):
        at = y + 84 + 22 * k
        yield box(LEFT, at - 11, 14, 14, TINT_OF_KIND[one.kind], "strong", 2)
        yield text(LEFT + 24, at, one.name, "m b")
        yield text(LEFT + 150, at, str(list(one.shape)), "m")
        yield text(LEFT + 240, at, f"offset {one.start}", "m")
        yield text(RIGHT, at, f"{one.stop - one.start} elements", "f-soft", "end")
