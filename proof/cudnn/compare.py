"""Compares a layout's table with the answers of a library, and with the windows that torch makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramtool.layouts.layout import Layout, stored
from paramtool.lazy_dataclass import dataclass
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View
from proof.cudnn.answers import Answer, Key, Region
from proof.cudnn.grid import Case
from proof.cudnn.table import buffer


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A disagreement between the table and the answer of a library or a run."""

    case: str
    cell: str
    """The cell in words; empty if it is about the whole buffer."""
    what: str
    """`byte_start`, `shape`, `strides`, `presence`, `nbytes`, `padding`, ..."""
    expected: str
    """The value in the table."""
    found: str

    def __str__(self) -> str:
        where = f"{self.case}: {self.cell}: " if self.cell else f"{self.case}: "
        return f"{where}{self.what}: the table says {self.expected}, found {self.found}"


def differences(case: Case, expected: Answer, found: Answer) -> Iterator[Disagreement]:
    """Where an answer differs from the table: places and shapes of cells, missing or extra cells, padding, sizes."""
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
    """Bytes that belong to no region, or to two, according to the answer itself."""
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
    """Where the windows that torch made on a buffer of `numel` elements differ from the table's cells."""
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
