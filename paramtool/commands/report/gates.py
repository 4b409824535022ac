"""Recurrent networks as figures: which rows of which tensors are which gate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from math import prod
from typing import NamedTuple

from paramtool import layouts
from paramtool.commands.inspect import Inspection
from paramtool.commands.report.sharing import part_of
from paramtool.drawing.palette import SERIES
from paramtool.drawing.rows import Band, Grid
from paramtool.errors import ParamtoolError
from paramtool.layouts.layout import LayoutTensor, Place
from paramtool.layouts.networks import Network, network
from paramtool.layouts.spec import parse, whole
from paramtool.model.dtype import DTYPES
from paramtool.model.view import contiguous
from paramtool.passes.rnn.find import described

MAX_GRIDS = 12
"""Tensors of one network that are drawn."""
MAX_BANDS = 200
"""Bands of one tensor: one with more is not drawn."""
GATE_WORDS = {
    "lstm": {"i": "input gate", "f": "forget gate", "g": "cell candidate", "o": "output gate"},
    "gru": {"r": "reset gate", "z": "update gate", "n": "candidate"},
    "rnn": {},
}  # fmt: skip
KIND_WORDS = {"W": "W", "R": "R", "bW": "bias W", "bR": "bias R", "P": "projection", "peep": "peephole"}
NONE = "grey"


class NetworkFigure(NamedTuple):
    """A recurrent network and its tensors."""

    at: str
    words: str
    layout: str
    source: str
    grids: tuple[Grid, ...]
    left_out: int
    """Tensors that are not drawn: those of further layers, or such as are not made of bands."""
    gates: tuple[tuple[str, str], ...]
    """(tint, what has it)"""


def network_figures(found: Inspection) -> Iterator[NetworkFigure]:
    """A figure for each network that `inspect` lists; without grids where its table does not give them."""
    known: dict[str, Network] = {}
    with suppress(ParamtoolError):
        known = {one.at: one for one in described(found.checkpoint)[0]}
    for one in found.networks:
        read = known.get(one.at) or _read(found, one.at, one.layout, one.spec)
        if read is None:
            yield NetworkFigure(one.at, one.spec, one.layout, one.source, (), 0, ())
            continue
        tensors = read.stored()
        kinds = {(tensor.row.name, tensor.shape): tensor for tensor in reversed(tensors)}  # layers that look alike once
        unlike = [tensor for tensor in tensors if kinds[tensor.row.name, tensor.shape] is tensor]
        grids = [made for tensor in unlike[:MAX_GRIDS] if (made := _grid(tensor, read)) is not None]
        gates = tuple(
            (tint_of(gate, read), f"{gate}: {GATE_WORDS.get(read.spec.kind, {}).get(gate, 'gate')}")
            for gate in read.form.gates
            if len(read.form.gates) > 1
        )
        yield NetworkFigure(one.at, one.spec, one.layout, one.source, tuple(grids), len(tensors) - len(grids), gates)


def _read(found: Inspection, at: str, layout: str, spec: str) -> Network | None:
    """A network that names and shapes show; None where the table finds none."""
    shapes = {name: view.shape for name, view in found.checkpoint.views().items()}
    with suppress(ParamtoolError):
        name, options = layouts.parse(layout)
        return network(layouts.find(name), options, at, shapes, facts=whole(parse(spec)))
    return None


def _grid(tensor: LayoutTensor, read: Network) -> Grid | None:
    """A tensor with a band for each cell; None where its cells are no rectangles, or too many."""
    shape = tensor.shape
    long = [size for size in shape if size != 1]
    rows, columns = (1, prod(shape)) if len(long) < 2 else (long[0], prod(long[1:]))
    owner = contiguous("tensor", DTYPES["float32"], (rows, columns))
    bands = []
    for place in islice(tensor.places(contiguous("tensor", DTYPES["float32"], shape)), MAX_BANDS + 1):
        left, top, right, bottom = part_of(place.view, owner)
        label, tint = _named(place, read)
        bands.append(Band(left, top, right, bottom, label, tint))
    area = sum((one.right - one.left) * (one.bottom - one.top) for one in bands)
    if len(bands) > MAX_BANDS or not prod(shape) or abs(area - 1) > 1e-6:
        return None
    return Grid(tensor.name, str(list(shape)), rows, columns, tuple(bands))


def _named(place: Place, read: Network) -> tuple[str, str]:
    """What a place holds, and its tint."""
    if not place.terms:
        return "zeros", "blank"
    cells = [cell for _, cell in place.terms]
    kinds = " + ".join(KIND_WORDS.get(cell.kind, cell.kind) for cell in cells)
    one = cells[0]
    is_whole = len(read.tensors) == 1 and read.spec.layers * read.spec.directions > 1
    layer = f", layer {one.layer}{' reverse' if one.direction else ''}" if is_whole else ""
    return f"{one.gate or ''} {kinds}".strip() + layer, tint_of(one.gate, read)


def tint_of(gate: str, read: Network) -> str:
    """The tint of a gate: the same in every layout, in the order of torch."""
    order = "ifgo" if read.spec.kind == "lstm" else "rzn"
    return SERIES[order.index(gate)] if gate and gate in order else NONE
