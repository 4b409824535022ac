"""The answers of a layout's table to the questions that cuDNN is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramtool.layouts.layout import Layout, Place, stored
from paramtool.layouts.spec import Cell, Spec
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous
from proof.cudnn.answers import PROJECTION, Answer, Key, Region
from proof.cudnn.grid import Case


def buffer(layout: Layout, spec: Spec, options: Mapping[str, str], dtype: str) -> tuple[int, list[Place]]:
    """The tensor of a network in a layout of flat buffers: (number of elements, places)."""
    chosen = layout.chosen(options)
    (tensor,) = stored(layout, layout.form(spec, chosen), spec, chosen)
    view = contiguous(tensor.name, DTYPES[dtype], tensor.shape)
    return view.numel, list(tensor.places(view))


def answer(layout: Layout, case: Case) -> Answer:
    """The weight space of a network according to the table."""
    mode = case.bias_mode if case.bias_mode != "none" else "double"
    numel, places = buffer(layout, case.spec, {"bias_mode": mode, "tail": "no"}, case.dtype)
    regions = {}
    for place in places:
        for cell in _as_one(place, case.bias_mode):
            regions[_key(cell, case.spec)] = _region(place.view)
    return Answer(DTYPES[case.dtype].nbytes(numel), regions)


def _as_one(place: Place, bias_mode: str) -> Iterator[Cell]:
    """The cell whose ID a place has: a bias for two cells has the ID of the product to which it is added."""
    cells = [cell for _, cell in place.terms]
    kind = {"input": "bW", "recurrent": "bR"}.get(bias_mode)
    yield from (cell for cell in cells if len(cells) == 1 or kind in (None, cell.kind))


def _key(cell: Cell, spec: Spec) -> Key:
    pseudo_layer = cell.layer * spec.directions + cell.direction
    if cell.kind == "P":
        return Key(pseudo_layer, PROJECTION, "matrix")
    gate = spec.gates.index(cell.gate) + (len(spec.gates) if cell.kind in ("R", "bR") else 0)
    return Key(pseudo_layer, gate, "bias" if cell.kind in ("bW", "bR") else "matrix")


def _region(view: View) -> Region:
    """A window with cuDNN's axes: an axis of length 1 in front, and for a vector another one at the end."""
    shape, strides = view.shape, view.strides
    if len(shape) == 1:
        shape, strides = (*shape, 1), (*strides, 1)
    return Region(view.dtype.nbytes(view.offset), view.dtype.name, (1, *shape), (view.numel, *strides))
