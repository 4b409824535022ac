"""What the table of a layout answers to the questions that cuDNN is asked, and where two answers differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paramtool.layouts.layout import Layout, Place, stored
from paramtool.layouts.spec import Cell, Spec
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous
from paramtool.proof.cudnn.answers import PROJECTION, Answer, Key, Region
from paramtool.proof.cudnn.grid import Case


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One disagreement between the table and what was asked or run."""

    case: str
    cell: str
    """In words, or empty where it is about the whole buffer."""
    what: str
    """`byte_start`, `shape`, `strides`, `presence`, `nbytes`, `padding`, ..."""
    expected: str
    """By the table."""
    found: str

    def __str__(self) -> str:
        where = f"{self.case}: {self.cell}: " if self.cell else f"{self.case}: "
        return f"{where}{self.what}: the table says {self.expected}, found {self.found}"


def buffer(layout: Layout, spec: Spec, options: Mapping[str, str], dtype: str) -> tuple[int, list[Place]]:
    """The one tensor of a network in a layout of flat buffers: its elements, and its places."""
    chosen = layout.chosen(options)
    (tensor,) = stored(layout, layout.form(spec, chosen), spec, chosen)
    view = contiguous(tensor.name, DTYPES[dtype], tensor.shape)
    return view.numel, list(tensor.places(view))


def answer(layout: Layout, case: Case) -> Answer:
    """The weight space of a network, by the table."""
    mode = case.bias_mode if case.bias_mode != "none" else "double"
    numel, places = buffer(layout, case.spec, {"bias_mode": mode, "tail": "no"}, case.dtype)
    regions = {}
    for place in places:
        for cell in _as_one(place, case.bias_mode):
            regions[_key(cell, case.spec)] = _region(place.view)
    return Answer(DTYPES[case.dtype].nbytes(numel), regions)


def _as_one(place: Place, bias_mode: str) -> Iterator[Cell]:
    """The cell whose ID a place has: a bias that stands for two has that of the product which it is added to."""
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
    """A window with cuDNN's axes: one of length 1 in front, and one behind a vector."""
    shape, strides = view.shape, view.strides
    if len(shape) == 1:
        shape, strides = (*shape, 1), (*strides, 1)
    return Region(view.dtype.nbytes(view.offset), view.dtype.name, (1, *shape), (view.numel, *strides))


def differences(case: Case, expected: Answer, found: Answer) -> Iterator[Disagreement]:
    """Where an answer is not the table's: cells elsewhere, of other shapes, lacking or too many; room and sizes."""
    for key in sorted(expected.regions.keys() | found.regions.keys()):
        yield from _of_cell(case, key, expected.regions.get(key), found.regions.get(key))
    if expected.nbytes != found.nbytes:
        yield Disagreement(str(case), "", "nbytes", str(expected.nbytes), str(found.nbytes))
    yield from _tiling(case, found)


def _of_cell(case: Case, key: Key, expected: Region | None, found: Region | None) -> Iterator[Disagreement]:
    cell = f"{key.cell(case.spec)}, pseudoLayer {key.pseudo_layer}, linLayerID {key.linear}, {key.what}"
    if expected is None or found is None:
        said = ["none" if side is None else f"one at byte {side.byte_start}" for side in (expected, found)]
        yield Disagreement(str(case), cell, "presence", *said)
        return
    for what in ("byte_start", "dtype", "shape", "strides"):
        sides = getattr(expected, what), getattr(found, what)
        if sides[0] != sides[1]:
            yield Disagreement(str(case), cell, what, *map(str, sides))


def _tiling(case: Case, found: Answer) -> Iterator[Disagreement]:
    """Bytes that belong to nothing, or to two things, by the answer's own words."""
    itemsize, stop = DTYPES[case.dtype].nbytes(1), 0
    spans = sorted((at.byte_start, at.byte_start + at.nbytes(itemsize), key) for key, at in found.regions.items())
    for start, end, key in spans:
        if start != stop:
            what = "padding" if start > stop else "overlap"
            yield Disagreement(
                str(case), str(key.cell(case.spec)), what, "none", f"bytes {min(start, stop)}-{max(start, stop)}"
            )
        stop = max(stop, end)
    if stop != found.nbytes:
        yield Disagreement(str(case), "", "padding", "none at the end", f"bytes {stop}-{found.nbytes}")


# --- torch's windows ----------------------------------------------------------------------------------------------


Windows = Mapping[str, tuple[int, tuple[int, ...], tuple[int, ...]]]
"""{torch's name of a parameter: offset, shape and strides in elements of the one storage}."""


def flattened(layout: Layout, torch: Layout, case: Case, windows: Windows, *, numel: int) -> Iterator[Disagreement]:
    """Where the windows that torch made on a buffer of `numel` elements do not show the table's cells."""
    expected_numel, places = buffer(layout, case.spec, {"tail": "yes"}, case.dtype)
    if numel != expected_numel:
        yield Disagreement(str(case), "", "elements", str(expected_numel), str(numel))
    table = {cell: place.view for place in places for _, cell in place.terms}
    options = torch.chosen({})
    own = {tensor.name: tensor for tensor in stored(torch, torch.form(case.spec, options), case.spec, options)}
    if own.keys() != windows.keys():
        yield Disagreement(str(case), "", "parameters", ", ".join(own), ", ".join(windows))
        return
    for name, (offset, shape, strides) in windows.items():
        if shape != own[name].shape:
            yield Disagreement(str(case), name, "shape", str(own[name].shape), str(shape))
            continue
        for place in own[name].places(View(0, DTYPES[case.dtype], offset, shape, strides)):
            ((_, cell),) = place.terms
            there, here = ((view.offset, view.strides) for view in (table[cell], place.view))
            if there != here:
                yield Disagreement(str(case), f"{cell}, in {name}", "offset and strides", str(there), str(here))
