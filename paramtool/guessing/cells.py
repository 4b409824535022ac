"""From the shapes of one cell to the layouts with such shapes, and to a custom layout with the file's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paramtool import layouts
from paramtool.errors import LayoutError, UsageError, plural
from paramtool.guessing.candidates import Guess, Hints, meaning, own_name, plausibility, spec_of
from paramtool.guessing.names import gate_orders
from paramtool.layouts.layout import Form, Layout, LayoutTensor, refusals, stored
from paramtool.layouts.networks import squeezed
from paramtool.layouts.spec import GATES, Spec
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shapes

SHAPED = 10.0
"""The score of a network that was found by its shapes."""


@frozen
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
    backward: tuple[str, ...] = ()
    """The same tensors of the other direction, if it has one."""

    @property
    def names(self) -> tuple[str, ...]:
        """W, R and the biases, and then those of the other direction."""
        return (self.W, self.R, *self.biases, *self.backward)


SIDES = (("forward", "backward"), ("fwd", "bwd"), ("fw", "bw"), ("", "_reverse"), ("", "_backward"))
"""How names write two directions."""


def sides(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, str] | None:
    """The words of two directions if the names of two cells differ in nothing else; None if they do."""
    for forward, back in SIDES:
        if names != others == tuple(re.sub(_word(forward), back, name) for name in names):
            return forward, back
    return None


def _word(word: str) -> str:
    """A pattern of a word in a name; the end of the name for no word."""
    return rf"(?<![a-z]){word}(?![a-z])" if word else r"\Z"


class Fit(NamedTuple):
    """A layout with tensors of these shapes."""

    layout: Layout
    form: Form
    spec: Spec
    tensors: dict[str, int]
    """{a tensor's name in the layout: its number among `CellTensors.names`, from 0}."""


def candidates(cell: CellTensors, found: Sequence[Fit], shapes: Shapes) -> Iterator[Guess]:
    """A candidate for each order of gates among the layouts with these shapes, the most common first."""
    orders = {fit.layout.name: fit.form.gates for fit in found}
    names = cell.names
    what = "the order of its gates" if cell.kind != "rnn" else "its activation"
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
            unshown=(f"{what}, which no shape shows: the network's code says which",),
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
    if cell.backward:
        yield f"{', '.join(map(repr, cell.backward))} are the same of the other direction by their names"
    if cell.is_open:
        yield "both matrices have the same shape: assumed that the first in the file is the input's"
    yield "no layout has these names"


def fits(cell: CellTensors, shapes: Shapes) -> Iterator[Fit]:
    """Layouts whose tensors have the shapes of such a cell."""
    for layout in layouts.all_layouts():
        for form in layout.forms:
            if form.kind != cell.kind:
                continue
            activation = form.activations[0] if cell.kind == "rnn" and len(form.activations) == 1 else ""
            try:
                spec = Spec(
                    cell.kind, cell.input, cell.hidden, bidirectional=bool(cell.backward), bias=bool(cell.biases),
                    reset=form.reset, activation=activation,
                )  # fmt: skip
                if list(refusals(layout, form, spec)):
                    continue
                tensors = _assigned(cell, stored(layout, form, spec, layout.chosen(form.when)), shapes)
            except (LayoutError, UsageError):
                continue
            if tensors:
                yield Fit(layout, form, spec, tensors)


def _assigned(cell: CellTensors, wanted: list[LayoutTensor], shapes: Shapes) -> dict[str, int] | None:
    """Which tensor of the cell each tensor of a layout would be; None if one is missing or left over."""
    each = len(cell.biases) + 2
    left = [n for n in range(len(cell.names)) if cell.W != cell.R or n % each != 1]
    biases = [list(range(k + 2, k + each)) for k in range(0, len(cell.names), each)]
    found: dict[str, int] = {}
    for tensor in wanted:
        direction = int(tensor.pieces[0].binding.get("dir", 0))
        n = _number(tensor, cell.W == cell.R, biases[direction], each * direction)
        if n not in left:
            if tensor.row.optional:
                continue
            return None
        if squeezed(shapes[cell.names[n]]) != squeezed(tensor.shape):
            return None
        left.remove(n)
        found[tensor.name] = n
    return None if left else found


def _number(tensor: LayoutTensor, joined: bool, biases: list[int], first: int) -> int:
    """The number of the tensor of a cell that holds the kinds of a layout's tensor, or -1; biases go in order."""
    kinds = {kind for piece in tensor.pieces for kind in piece.block.kinds}
    if kinds == {"W"} or (kinds == {"W", "R"} and joined):
        return first
    if kinds == {"R"}:
        return first + 1
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
    names: tuple[dict[str, str], ...] = ({}, {})
    contents = {}
    for tensor in stored(layout, form, spec, layout.chosen(form.when)):
        if tensor.name in one.tensors:
            own = one.tensors[tensor.name][len(one.at) + bool(one.at) :]
            names[int(tensor.pieces[0].binding.get("dir", 0))][tensor.row.name] = own
            contents[tensor.row.name] = f"content = {_text(tensor.row.content)}, along = {tensor.row.along}"
    words = sides(tuple(names[0].values()), tuple(names[1].values())) or ("", "")
    yield "[[layout]]"
    yield f"name = {_text(own_name(one.cell))}"
    yield f"separator = {_text(separator)}"
    yield f"directions = {_text(list(words))}" if spec.bidirectional else "max_directions = 1"
    for option in layout.options:
        yield f"option = [{{name = {_text(option.name)}, default = {_text(option.default)}}}]"
    yield "[[layout.form]]"
    yield f"kind = {_text(spec.kind)}"
    yield f"gates = {_text(form.gates)}"
    yield from [f"reset = {_text(form.reset)}"] if form.reset else []
    yield "tensors = ["
    for row, own in names[0].items():
        if re.search(r"[\[\]{}]", own) or not own.isprintable():
            raise LayoutError(f"{own!r} cannot be written in a layout file: it has brackets or unprintable characters")
        if spec.bidirectional:
            own = re.sub(_word(words[0]), "{dir}", own)
        yield f"  {{name = {_text(f'[{{layer}}.]{own}')}, {contents[row]}}},"
    yield "]"


def _text(text: object) -> str:
    """A string or a list of strings in TOML: the same as in JSON, except for characters beyond 16 bits."""
    import json

    return json.dumps(text, ensure_ascii=False)
