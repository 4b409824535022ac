"""From the shapes of one cell to the layouts with such shapes, and to a custom layout with the file's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paramtool import layouts
from paramtool.errors import LayoutError, UsageError, plural
from paramtool.guessing.candidates import Guess, Hints, own_name, plausibility, spec_of
from paramtool.guessing.decide import meaning
from paramtool.guessing.names import gate_orders
from paramtool.guessing.vectors import Shapes
from paramtool.layouts.layout import Form, Layout, LayoutTensor, refusals, stored
from paramtool.layouts.networks import squeezed
from paramtool.layouts.spec import GATES, Spec
from paramtool.lazy_dataclass import dataclass

SHAPED = 10.0
"""The score of a network that was found by its shapes."""


@dataclass(frozen=True, slots=True)
class CellTensors:
    """Tensors that could be one cell."""

    at: str
    kind: str
    W: str
    R: str
    """The same as W if one matrix holds both."""
    biases: tuple[str, ...]
    input: int
    hidden: int
    number: int = 1
    """Its number among the cells of the module."""
    is_open: bool = False
    """Whether the two matrices could also be swapped."""


@dataclass(frozen=True, slots=True)
class _Shaped:
    """The shapes of a cell, without its names."""

    kind: str
    input: int
    hidden: int
    W: tuple[int, ...]
    R: tuple[int, ...] | None
    """None if W holds both."""
    biases: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, cell: CellTensors, shapes: Shapes) -> _Shaped:
        """The shapes of a cell."""
        second = None if cell.W == cell.R else shapes[cell.R]
        biases = tuple(shapes[name] for name in cell.biases)
        return cls(cell.kind, cell.input, cell.hidden, shapes[cell.W], second, biases)


class Fit(NamedTuple):
    """A layout with tensors of these shapes."""

    layout: Layout
    form: Form
    spec: Spec
    tensors: dict[str, int]
    """{a tensor's name in the layout: its number among W, R and the biases of the cell, from 0}."""


def candidates(cell: CellTensors, found: Sequence[Fit], shapes: Shapes) -> Iterator[Guess]:
    """A candidate for each order of gates among the layouts with these shapes, the most common first."""
    orders = {fit.layout.name: fit.form.gates for fit in found}
    names = (cell.W, cell.R, *cell.biases)
    alike: dict[object, list[Fit]] = {}
    for fit in found:
        tensors = {own: names[n] for own, n in fit.tensors.items()}
        key = meaning(fit.layout, fit.form, fit.spec, {**fit.layout.chosen({}), **fit.form.when}, tensors=tensors)
        alike.setdefault((key, fit.spec), []).append(fit)
    for k, (first, *others) in enumerate(alike.values()):
        yield Guess(
            at=cell.at,
            layout=first.layout.name,
            spec=str(first.spec),
            reasons=(*_why(cell, shapes), *(gate_orders(orders) or _one_order(first.form, found))),
            sure="shapes only",
            score=round(SHAPED + plausibility(first.spec, Hints())[0] / 10 - 0.1 * k, 3),
            alike=tuple(dict.fromkeys(fit.layout.name for fit in others if fit.layout != first.layout)),
            tensors={own: names[n] for own, n in first.tensors.items()},
            cell=cell.number,
            unshown=("the order of its gates, which no shape shows: the network's code says which",),
        )


def _one_order(form: Form, found: Sequence[Fit]) -> list[str]:
    """The reason that shapes do not show the order of gates; empty for an RNN, which has one gate."""
    known = ", ".join(dict.fromkeys(fit.layout.name for fit in found))
    order = " ".join(form.gates)
    return [f"shapes do not show the order of gates: {order} is the order of {known}"] if len(form.gates) > 1 else []


def _why(cell: CellTensors, shapes: Shapes) -> Iterator[str]:
    gates = len(GATES[cell.kind])
    blocks = f"{gates} blocks of {cell.hidden}" if gates > 1 else plural(cell.hidden, "row")
    if cell.W == cell.R:
        yield f"{cell.W!r} {list(shapes[cell.W])} has {blocks} for {plural(cell.input, 'input')} and {cell.hidden} of h"
    else:
        pair = (f"{name!r} {list(shapes[name])}" for name in (cell.W, cell.R))
        yield f"{' and '.join(pair)} have {blocks} for {plural(cell.input, 'input')} and {cell.hidden} of h"
    if cell.biases:
        have = "have" if len(cell.biases) > 1 else "has"
        yield f"{' and '.join(map(repr, cell.biases))} {have} the length of its biases"
    if cell.is_open:
        yield "both matrices have the same shape: assumed that the first in the file is the input's"
    yield "no layout has these names"


def fits(named: CellTensors, shapes: Shapes) -> Iterator[Fit]:
    """Layouts whose tensors have the shapes of such a cell."""
    cell = _Shaped.of(named, shapes)
    for layout in layouts.all_layouts():
        for form in layout.forms:
            if form.kind != cell.kind:
                continue
            activation = form.activations[0] if cell.kind == "rnn" and len(form.activations) == 1 else ""
            try:
                spec = Spec(
                    cell.kind, cell.input, cell.hidden, bias=bool(cell.biases), reset=form.reset, activation=activation
                )  # fmt: skip
                if list(refusals(layout, form, spec)):
                    continue
                tensors = _assigned(cell, stored(layout, form, spec, layout.chosen(form.when)))
            except (LayoutError, UsageError):
                continue
            if tensors:
                yield Fit(layout, form, spec, tensors)


def _assigned(cell: _Shaped, wanted: list[LayoutTensor]) -> dict[str, int] | None:
    """Which tensor of the cell each tensor of a layout would be; None if one is missing or left over."""
    shapes = (cell.W, cell.R, *cell.biases)
    left = [n for n, shape in enumerate(shapes) if shape is not None]
    biases = list(range(2, len(shapes)))
    found: dict[str, int] = {}
    for tensor in wanted:
        n = _number(tensor, cell.R is None, biases)
        if n not in left:
            if tensor.row.optional:
                continue
            return None
        if squeezed(shapes[n] or ()) != squeezed(tensor.shape):
            return None
        left.remove(n)
        found[tensor.name] = n
    return None if left else found


def _number(tensor: LayoutTensor, joined: bool, biases: list[int]) -> int:
    """The number of the tensor of a cell that holds the kinds of a layout's tensor, or -1; biases go in order."""
    kinds = {kind for piece in tensor.pieces for kind in piece.block.kinds}
    if kinds == {"W"} or (kinds == {"W", "R"} and joined):
        return 0
    if kinds == {"R"}:
        return 1
    return biases.pop(0) if kinds and kinds <= {"bW", "bR"} and biases else -1


# --- a layout file for the file's own names ---------------------------------------------------------------------------


def as_toml(found: Sequence[Guess]) -> str:
    """Layouts for cells whose names belong to no layout, as a file for `--layout-file`.

    Each is the layout of its candidate with the file's own names; LayoutError if a layout file cannot hold a name.
    """
    return "\n".join("\n".join(_toml(one)) + "\n" for one in found)


def _toml(one: Guess) -> Iterator[str]:
    layout = layouts.find(one.layout)
    spec = spec_of(one.spec)
    form = next(form for form in layout.forms_of(spec.kind, layout.chosen({})) if form.reset == spec.reset)
    rest = next(iter(one.tensors.values()))[len(one.at) :]
    separator = rest[0] if one.at else layout.separator
    yield "[[layout]]"
    yield f"name = {_text(own_name(one.cell))}"
    yield f"separator = {_text(separator)}"
    yield "max_directions = 1"
    for option in layout.options:
        yield f"option = [{{name = {_text(option.name)}, default = {_text(option.default)}}}]"
    yield "[[layout.form]]"
    yield f"kind = {_text(spec.kind)}"
    yield f"gates = {_text(form.gates)}"
    yield from [f"reset = {_text(form.reset)}"] if form.reset else []
    yield "tensors = ["
    for tensor in stored(layout, form, spec, layout.chosen(form.when)):
        if tensor.name in one.tensors:
            own = one.tensors[tensor.name][len(one.at) + bool(one.at) :]
            yield f"  {{name = {_template(own)}, content = {_text(tensor.row.content)}, along = {tensor.row.along}}},"
    yield "]"


def _template(name: str) -> str:
    """A name as a template of one layer; LayoutError if it has characters with a meaning in templates."""
    if re.search(r"[\[\]{}]", name) or not name.isprintable():
        raise LayoutError(f"{name!r} cannot be written in a layout file: it has brackets or unprintable characters")
    return _text(f"[{{layer}}.]{name}")


def _text(text: str) -> str:
    """A string in TOML: the same as in JSON, except for characters beyond 16 bits."""
    import json

    return json.dumps(text, ensure_ascii=False)
