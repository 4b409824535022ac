"""Which matrices of a module could be cells of recurrent networks by their shapes, whatever they are called.

A cell is two matrices, one for the input and one that is square but for its gates, and the biases beside them:

    rows       W (gates * hidden, in)   R (gates * hidden, hidden)       torch, MXNet, ONNX, ...
    columns    W (in, gates * hidden)   R (hidden, gates * hidden)       Keras, Flax, ...
    joined     (in + hidden, gates * hidden)                             TensorFlow 1, Haiku

Which layouts have tensors of such shapes is read off their tables.  No shape shows the order of the gates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from paramtool import layouts
from paramtool.errors import LayoutError
from paramtool.layouts.guess import Candidate, Hints, own_name, plausibility
from paramtool.layouts.guess_names import RECURRENT, gate_orders
from paramtool.layouts.guess_vectors import Shapes, home_of
from paramtool.layouts.layout import Form, Layout, Stored, refusals, stored
from paramtool.layouts.spec import GATES, Spec

HIDDEN_SIDE = re.compile(r"hh(?![a-z])|h2h|h_to_h|rec|hid|(?:^|[._/])(?:u|wh|w_h|r)(?![a-z])", re.IGNORECASE)
"""Words for the matrix that takes h."""
PART = re.compile(r"(?:weight|bias|kernel|w|b)(?::0)?", re.IGNORECASE)
"""Last words of names that say nothing by themselves: the cell is one level further up."""
SHAPED = 10.0
"""The score of a network that is found by its shapes."""
MIN_HIDDEN = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """Tensors that could be one cell."""

    at: str
    kind: str
    W: str
    R: str
    """The same as W where both stand in one matrix."""
    biases: tuple[str, ...]
    input: int
    hidden: int
    number: int = 1
    """Among the cells of the module."""
    is_open: bool = False
    """Whether the two matrices could as well be the other way round."""


def by_shapes(shapes: Shapes, asked: bool = False) -> list[Candidate]:
    """Cells that the shapes allow, whatever their names; square matrices count only where names say or it was `asked`."""
    used: set[str] = set()
    found: list[Candidate] = []
    for at, members in _modules(shapes):
        free = [name for name in members if name not in used]
        for cell in _cells(at, free, shapes, asked):
            used |= {cell.W, cell.R, *cell.biases}
            found += candidates(cell, shapes)
    return found


def _modules(shapes: Shapes) -> list[tuple[str, list[str]]]:
    """Modules and their tensors, and modules one level up of tensors that are called weight or bias; inner ones first."""
    inner: dict[str, list[str]] = {}
    outer: dict[str, list[str]] = {}
    for name in shapes:
        home = home_of(name)
        inner.setdefault(home, []).append(name)
        if home and PART.fullmatch(name[len(home) + 1 :]):
            outer.setdefault(home_of(home), []).append(name)
    return [*inner.items(), *outer.items()]


def _matrix(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The two axes of a matrix; ONNX has one of length 1 before them."""
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    return (shape[0], shape[1]) if len(shape) == 2 else None


def _length(shape: tuple[int, ...]) -> int:
    """The length of a vector, with axes of length 1 or without; 0 where it is none."""
    return prod(shape) if sum(size > 1 for size in shape) == 1 else 0


def _cells(at: str, members: Sequence[str], shapes: Shapes, asked: bool) -> list[Cell]:
    """The cells of one module, in the order of the file."""
    hinted = asked or any(RECURRENT.search(name) for name in members)
    free = list(members)
    found: list[Cell] = []
    for kind, gates in GATES.items():
        if len(gates) == 1 and not hinted:
            continue  # every square matrix would do
        for side in (0, 1):
            for cell in _paired(at, kind, side, free, shapes, hinted):
                free = [name for name in free if name not in (cell.W, cell.R, *cell.biases)]
                found.append(cell)
    if hinted and not found:
        found = list(_joined(at, free, shapes))
    order = {name: k for k, name in enumerate(members)}
    found.sort(key=lambda cell: order[cell.W])
    return [_numbered(cell, k) for k, cell in enumerate(found, 1)]


def _numbered(cell: Cell, number: int) -> Cell:
    from dataclasses import replace

    return replace(cell, number=number)


def _paired(at: str, kind: str, side: int, free: Sequence[str], shapes: Shapes, hinted: bool) -> Iterator[Cell]:
    """Cells of two matrices whose gates are rows (side 0) or columns (side 1)."""
    gates = len(GATES[kind])
    sides = {name: (axes[side], axes[1 - side]) for name in free if (axes := _matrix(shapes[name]))}
    by_wide: dict[int, list[str]] = {}
    for name, (wide, _) in sides.items():
        by_wide.setdefault(wide, []).append(name)
    for wide, alike in by_wide.items():
        pairs = _pairs(alike, {name: sides[name][1] for name in alike}, wide // gates) if wide % gates == 0 else []
        biases = _biases([name for name in free if name not in alike], shapes, wide, gates, len(pairs))
        for k, (w, r, is_open) in enumerate(pairs):
            if (biases or hinted) and wide // gates >= MIN_HIDDEN:
                mine = biases[k] if biases else ()
                yield Cell(at, kind, w, r, mine, sides[w][1], wide // gates, is_open=is_open)


def _pairs(alike: Sequence[str], other: dict[str, int], hidden: int) -> list[tuple[str, str, bool]]:
    """(W, R, whether they could be swapped) of matrices with the same wide axis, in the order of the file."""
    order = {name: k for k, name in enumerate(alike)}
    square = [name for name in alike if other[name] == hidden]
    square.sort(key=lambda name: not HIDDEN_SIDE.search(_last(name)))
    pairs: list[tuple[str, str, bool]] = []
    left = set(alike)
    for r in square:
        free = [name for name in left if name != r]
        if r not in left or not free:
            continue
        w = min(free, key=lambda name: (other[name] == hidden, bool(HIDDEN_SIDE.search(_last(name))),
                                        abs(order[name] - order[r]), order[name]))  # fmt: skip
        left -= {w, r}
        if other[w] != hidden:
            pairs.append((w, r, False))
            continue
        first, second = sorted((w, r), key=order.__getitem__)
        says = [bool(HIDDEN_SIDE.search(_last(name))) for name in (first, second)]
        swapped = says == [True, False]
        pairs.append((second, first, False) if swapped else (first, second, says[0] == says[1]))
    return sorted(pairs, key=lambda pair: order[pair[0]])


def _last(name: str) -> str:
    """The words of a name that tell the tensors of one cell apart."""
    home = home_of(name)
    last = name[len(home) :].lstrip("./")
    return f"{home_of(home) and home[len(home_of(home)) :] or home}.{last}" if PART.fullmatch(last) else last


def _biases(
    free: Sequence[str], shapes: Shapes, wide: int, gates: int, cells: int
) -> list[tuple[str, ...]]:  # fmt: skip
    """The biases of each cell, dealt out in the order of the file; empty where they do not come out even."""
    if not cells:
        return []
    single = [name for name in free if _length(shapes[name]) == wide]
    double = [name for name in free if _length(shapes[name]) == 2 * wide or shapes[name] == (2, wide)]
    inner = [name for name in free if _length(shapes[name]) == wide // gates] if gates == 3 else []
    if len(single) == len(inner) == cells:
        return list(zip(single, inner, strict=True))
    for found, each in ((single, 2), (single, 1), (double, 1)):
        if len(found) == each * cells:
            return [tuple(found[each * k : each * (k + 1)]) for k in range(cells)]
    return []


def _joined(at: str, free: Sequence[str], shapes: Shapes) -> Iterator[Cell]:
    """LSTM cells of one matrix, the rows of the input above those of h, and a bias."""
    for name in free:
        axes = _matrix(shapes[name])
        if not axes or axes[1] % 4 or axes[0] <= axes[1] // 4 < MIN_HIDDEN:
            continue
        biases = [other for other in free if _length(shapes[other]) == axes[1]]
        if len(biases) == 1 and axes[0] > axes[1] // 4:
            yield Cell(at, "lstm", name, name, tuple(biases), axes[0] - axes[1] // 4, axes[1] // 4)


# --- from a cell to layouts -------------------------------------------------------------------------------------------


def candidates(cell: Cell, shapes: Shapes) -> Iterator[Candidate]:
    """A candidate for each order of gates that a layout of these shapes has, the commonest first."""
    fits = list(_fits(cell, shapes))
    orders = {layout.name: form.gates for layout, form, _, _ in fits}
    seen: dict[tuple[str, str], int] = {}
    for layout, form, spec, tensors in fits:
        key = (form.gates, form.reset)
        if key in seen:
            continue
        seen[key] = len(seen)
        alike = [other.name for other, f, _, _ in fits if (f.gates, f.reset) == key and other.name != layout.name]
        worth = SHAPED + plausibility(spec, Hints())[0] / 10 - 0.1 * seen[key]
        yield Candidate(
            at=cell.at,
            layout=layout.name,
            spec=str(spec),
            reasons=(*_why(cell, shapes), *(gate_orders(orders) or [_one_order(form, fits)])),
            sure="shapes only",
            score=round(worth, 3),
            alike=tuple(dict.fromkeys(alike)),
            tensors=tensors,
            cell=cell.number,
        )


Fit = tuple[Layout, Form, Spec, dict[str, str]]


def _one_order(form: Form, fits: Sequence[Fit]) -> str:
    known = ", ".join(dict.fromkeys(layout.name for layout, *_ in fits))
    return f"shapes cannot tell the order of gates: {' '.join(form.gates)} is that of {known}"


def _why(cell: Cell, shapes: Shapes) -> Iterator[str]:
    gates = len(GATES[cell.kind])
    blocks = f"{gates} blocks of {cell.hidden}" if gates > 1 else f"{cell.hidden} rows"
    if cell.W == cell.R:
        yield f"{cell.W!r} {list(shapes[cell.W])} has {blocks} for {cell.input} inputs and {cell.hidden} of h"
    else:
        pair = (f"{name!r} {list(shapes[name])}" for name in (cell.W, cell.R))
        yield f"{' and '.join(pair)} have {blocks} for {cell.input} inputs and {cell.hidden} of h"
    if cell.biases:
        yield f"{' and '.join(map(repr, cell.biases))} {'are' if len(cell.biases) > 1 else 'is'} as long as its biases"
    if cell.is_open:
        yield "both matrices are of one shape: the first in the file is taken for that of the input"
    yield "names are those of no layout"


def _fits(cell: Cell, shapes: Shapes) -> Iterator[Fit]:
    """Layouts whose tensors of such a cell have these shapes."""
    for layout in layouts.all_layouts():
        for form in layout.forms:
            if form.kind != cell.kind:
                continue
            activation = form.activations[0] if cell.kind == "rnn" and len(form.activations) == 1 else ""
            spec = Spec(
                cell.kind, cell.input, cell.hidden, bias=bool(cell.biases), reset=form.reset, activation=activation
            )  # fmt: skip
            if list(refusals(layout, form, spec)):
                continue
            try:
                tensors = _assigned(cell, stored(layout, form, spec, layout.chosen(form.when)), shapes)
            except LayoutError:
                continue
            if tensors:
                yield layout, form, spec, tensors


def _assigned(cell: Cell, wanted: list[Stored], shapes: Shapes) -> dict[str, str] | None:
    """{the layout's name: the tensor that it would be}; None where one is missing or left over."""
    biases = list(cell.biases)
    left = dict.fromkeys((cell.W, cell.R, *biases))
    found: dict[str, str] = {}
    for tensor in wanted:
        name = _tensor_for(tensor, cell, biases)
        if not name or name not in left:
            if tensor.row.optional:
                continue
            return None
        if _squeezed(shapes[name]) != _squeezed(tensor.shape):
            return None
        del left[name]
        found[tensor.name] = name
    return None if left else found


def _tensor_for(tensor: Stored, cell: Cell, biases: list[str]) -> str:
    """The tensor of the cell that holds the kinds of a layout's tensor; biases are taken in their order."""
    kinds = {kind for piece in tensor.pieces for kind in piece.block.kinds}
    if kinds in ({"W"}, {"R"}):
        return cell.W if kinds == {"W"} else cell.R
    if kinds == {"W", "R"}:
        return cell.W if cell.W == cell.R else ""
    return biases.pop(0) if kinds and kinds <= {"bW", "bR"} and biases else ""


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


# --- a layout file for names of one's own -----------------------------------------------------------------------------


def as_toml(found: Sequence[Candidate]) -> str:
    """The layouts of cells whose names are of no layout, as a file for `--layout-file`; LayoutError where none can be.

    Each is the layout of its candidate with the file's own names in it.
    """
    return "\n".join(_toml(one) for one in found)


def _toml(one: Candidate) -> str:
    import json

    name, options = layouts.parse(one.layout)
    layout = layouts.find(name)
    facts = layouts.spec_of(one.spec)
    raise NotImplementedError(str((json, options, layout, facts, own_name)))
