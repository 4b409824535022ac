"""A layout: a table that says in which tensors, and where in them, each cell of a network stands.

A layout has no function for reading and none for writing.  From the table follow the names and shapes of the tensors of
a network, and the places of its cells in them; two tables make a conversion, and its way back.

    Layout   one library's way of storing recurrent networks
      Form     one kind of network: the order of gates, and the tensors
        TensorRule    a row: a template of names, and a pattern of what stands in it
    LayoutTensor  one tensor of one network: name, shape, and places
    Place    a window on that tensor, and the cells whose (sum of) values stand there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from itertools import accumulate
from math import isfinite, prod
from typing import NamedTuple

from paramtool.errors import LayoutError, UsageError
from paramtool.layouts import names, pattern
from paramtool.layouts.pattern import Binding, Block
from paramtool.layouts.spec import KINDS, ZEROABLE, Cell, Spec
from paramtool.lazy_dataclass import dataclass
from paramtool.model.view import View, contiguous_strides

CAN_BE_SAID = ("gate_activation", "cell_clip", "clip", "coupled", "backward", "merge")
"""Facts of a spec that change the function and that only some layouts have a word for."""
_USUAL = {field.name: field.default for field in fields(Spec) if field.name in CAN_BE_SAID}


UNSEEN = "unseen"
"""The value of an option for room that may hold anything, and is not looked at."""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """A row of a layout: tensors of one kind."""

    name: str
    """A template, see `names`."""
    content: str
    """A pattern, see `pattern`."""
    along: int = 0
    """The axis along which the blocks follow each other."""
    labels: str = ""
    """How gates are written in the name where it is not their letter: `i=_i g=_c`."""
    optional: bool = False
    """Whether readers do without it: a twin of another tensor, or something that may be zero."""
    directions: tuple[str, str] | None = None
    """How its names say the two directions, where that is not the layout's own way."""
    unless: str = ""
    """A kind of cells: a network that has them does not have this tensor."""

    def blocks(self) -> Iterator[Block]:
        """The blocks of the pattern, those that are repeated once."""
        return pattern.blocks(pattern.parse(self.content))

    def kinds(self) -> frozenset[str]:
        """Kinds of cells that stand in it."""
        return frozenset().union(*(block.kinds for block in self.blocks()))


@dataclass(frozen=True, slots=True)
class Form:
    """How one kind of network is stored."""

    kind: str
    gates: str
    """The order of gates wherever a block does not say another, in torch's letters."""
    tensors: tuple[TensorRule, ...]
    reset: str = ""
    """Of a GRU: `after` or `before`."""
    when: Mapping[str, str] = field(default_factory=dict)
    """Options of the layout that this form is for."""
    activations: tuple[str, ...] = ("tanh", "relu")
    """What an RNN of this form may have."""
    expresses: frozenset[str] = frozenset()
    """Facts beside the tensors that the library can say (of `CAN_BE_SAID`)."""

    def kinds(self) -> frozenset[str]:
        """Kinds of cells that have a place."""
        return frozenset().union(*(row.kinds() for row in self.tensors))

    def has_place(self, cell: Cell) -> bool:
        """Whether a cell of that kind and gate has a place."""
        for row in self.tensors:
            for block in row.blocks():
                if cell.kind in block.kinds and (not cell.gate or cell.gate in (block.gates or self.gates)):
                    return True
        return False


@dataclass(frozen=True, slots=True)
class Option:
    """A choice that the tensors do not show, such as the forget bias of a TensorFlow 1 cell."""

    name: str
    default: str
    what: str
    shown: bool = False
    """Whether the shapes of the tensors show it."""
    values: tuple[str, ...] = ()
    """What it may be; empty for a number, or for whatever the forms of the layout ask for."""

    def check(self, layout: str, value: str) -> None:
        """UsageError where the option cannot have this value."""
        if self.values:
            good, expected = value in self.values, f"one of {', '.join(self.values)}"
        elif _is_number(self.default):
            good, expected = _is_number(value), "a finite number"
        else:
            return
        if not good:
            raise UsageError(f"layout {layout}: {self.name}={value} cannot be; expected {expected}")


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a library keeps the cells of recurrent networks."""

    name: str
    """`family` or `family.scheme`."""
    title: str
    forms: tuple[Form, ...]
    separator: str = "."
    """Between the name of the module and those of its tensors."""
    directions: tuple[str, str] = ("", "_reverse")
    """How names say the forward and the reverse direction."""
    max_directions: int = 2
    options: tuple[Option, ...] = ()
    source: str = ""
    """Where the facts are from."""
    proof: tuple[str, ...] = ()
    """What was run: `oracle: torch`, `files: ...`, `equations`."""
    names_identify: bool = True
    """Whether its names alone show that a group of tensors is a recurrent network."""
    caveats: Mapping[str, str] = field(default_factory=dict)
    """{a kind of cell, or a fact: what is not sure about it in this layout}, told whenever a network has it."""
    assumed: tuple[str, ...] = ()
    """Facts of a spec that no tensor shows and that differed between versions of the library: assumed, and said so."""
    required: tuple[str, ...] = ()
    """Facts of a spec that no tensor shows and that are never assumed: a wrong one is another function."""
    functions: frozenset[str] = frozenset()
    """The activations that its library knows, where it can say others than the usual ones; empty for any."""
    note: str = ""
    gpu: bool = False
    """Whether its tensors are made on GPUs alone: what verified it there stands in a record, see `evidence`."""

    @property
    def always_biases(self) -> bool:
        """Whether a network without biases is stored with biases of zeros."""
        blocks = [block for form in self.forms for row in form.tensors for block in row.blocks()]
        return all(block.always == "!" for block in blocks if block.kinds & {"bW", "bR"})

    def holds(self) -> Iterator[str]:
        """What networks it holds, in words: `lstm +projection`, `gru reset=after without b_hn`."""
        for form in self.forms:
            words = [form.kind]
            if form.reset:
                words.append(f"reset={form.reset}")
            if form.when:
                words.append(" ".join(f"{key}={value}" for key, value in form.when.items()))
            if form.kind == "rnn" and len(form.activations) == 1:
                words.append(f"{form.activations[0]} only")
            extras = {"P": "projection", "peep": "peephole", "h0": "initial state"}
            words += [
                f"+{extras[kind]}" for kind in extras if kind in form.kinds() and (kind == "h0" or form.kind == "lstm")
            ]
            words += [f"+{fact}" for fact in CAN_BE_SAID if fact in form.expresses]
            if form.reset == "after" and not form.has_place(Cell("bR", gate="n")):
                words.append("without b_hn")
            yield " ".join(words)

    def chosen(self, given: Mapping[str, str]) -> dict[str, str]:
        """The value of each option; UsageError for one that the layout does not have."""
        known = {option.name: option.default for option in self.options}
        if unknown := given.keys() - known.keys():
            there = ", ".join(known) or "none"
            raise UsageError(f"layout {self.name} has no option {min(unknown)!r}; its options: {there}")
        for option in self.options:
            option.check(self.name, given.get(option.name, option.default))
        return {**known, **given}

    def forms_of(self, kind: object, options: Mapping[str, str]) -> Iterator[Form]:
        """The forms of a kind of network, or of every kind (None), under these options."""
        for form in self.forms:
            if kind in (None, form.kind) and all(options.get(name) == value for name, value in form.when.items()):
                yield form

    def form(self, spec: Spec, options: Mapping[str, str]) -> Form:
        """The form that holds a network; LayoutError says why none does."""
        forms = list(self.forms_of(spec.kind, options))
        fit = [form for form in forms if not list(refusals(self, form, spec))]
        if fit:
            return fit[0]
        if not forms:
            raise LayoutError(f"{spec}: layout {self.name} cannot hold it: it has no {spec.kind}")
        raise LayoutError(f"{spec}: layout {self.name} cannot hold it: {'; '.join(refusals(self, forms[0], spec))}")


def _activations(form: Form) -> tuple[str, ...]:
    """What the candidate's activation may be, where the library cannot say another."""
    return form.activations if form.kind == "rnn" else ("tanh",)


def refusals(layout: Layout, form: Form, spec: Spec) -> Iterator[str]:
    """Why a form cannot hold a network, whatever its numbers are."""
    if spec.kind == "gru" and form.reset != spec.reset:
        said = f"reset={spec.reset}" if spec.reset else "a reset gate that is not said to be before or after"
        yield f"its GRU has the reset gate {form.reset} the recurrent product, the network has {said}"
    if spec.directions > layout.max_directions:
        yield "it holds one direction"
    if spec.kind == "rnn" and len(form.activations) == 1 and spec.activation != form.activations[0]:
        yield f"its RNN is {form.activations[0]} only, the network's activation is {spec.activation or 'not said'}"
    elif spec.activation not in ("", *_activations(form)) and "gate_activation" not in form.expresses:
        yield f"it has no activation={spec.activation}"
    for name in ("activation", "gate_activation"):
        value = getattr(spec, name)
        if layout.functions and value and value.partition("(")[0] not in layout.functions:
            yield f"it has no {name}={value}"
    for name in CAN_BE_SAID:
        value = getattr(spec, name)
        if value == _USUAL[name] or name in form.expresses or (name == "merge" and spec.layers == 1):
            continue  # what becomes of the last layer's outputs is outside of the layers
        yield f"it has no {name}" + ("" if value is True else f"={value}")
    for kind in spec.kinds():
        if kind not in ZEROABLE and kind not in form.kinds():
            yield f"it has no place for the {'projection' if kind == 'P' else kind}"


@dataclass(frozen=True, slots=True)
class Place:
    """A window on a tensor, and what stands there: sum of sign * cell, plus shift."""

    terms: tuple[tuple[int, Cell], ...]
    """Empty for filler."""
    view: View
    shape: tuple[int, ...]
    """The axes of the window as the cell's own buffer is cut: its bytes row by row in this shape."""
    shift: float = 0.0
    must_be_zero: str = ""
    """The kind of cell that filler stands for and that the network does not have; other filler means nothing."""


class _Piece(NamedTuple):
    """A block at its place in a tensor."""

    block: Block
    binding: Binding
    start: int
    """Along the tensor's axis `along`."""
    lengths: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LayoutTensor:
    """One tensor of one network."""

    name: str
    shape: tuple[int, ...]
    row: TensorRule
    form: Form
    spec: Spec
    options: Mapping[str, str]
    pieces: tuple[_Piece, ...]

    def places(self, view: View) -> Iterator[Place]:
        """Every place in the tensor, given where the tensor stands: a window of its shape, of any strides."""
        for piece in self.pieces:
            offset = view.offset + piece.start * (view.strides[self.row.along] if view.strides else 0)
            yield from self._cells(piece, view, offset)

    def _cells(self, piece: _Piece, view: View, offset: int) -> Iterator[Place]:
        block, lengths = piece.block, piece.lengths
        inside = {word for group in block.axes for word in group}
        gates = block.gates or self.form.gates
        filler = not block.terms
        layers = range(self.spec.layers) if "layer" in inside else [piece.binding.get("layer", 0)]
        directions = range(self.spec.directions) if "dir" in inside else [piece.binding.get("dir", 0)]
        letters = gates if "gate" in inside else [piece.binding.get("gate", gates if len(gates) == 1 else "")]
        order = () if filler or block.raw else tuple(KINDS[block.terms[0][1]].split())
        shift = float(sum(sign * self._number(word) for sign, word in block.shift))
        for layer in layers:
            for direction in directions:
                for gate in letters:
                    index = {"layer": int(layer), "dir": int(direction), "gate": gates.find(str(gate)) if gate else 0}
                    at, shape, strides = pattern.window(
                        block, lengths, view.strides, {k: v for k, v in index.items() if k in inside}, order=order
                    )
                    terms = tuple(
                        (sign, Cell(kind, int(layer), int(direction), str(gate) if self.spec.gates_of(kind) else ""))
                        for sign, kind in block.terms
                        if kind in self.spec.kinds()
                    )
                    place = View(view.storage, view.dtype, offset + at, shape, strides)
                    looked_at = not terms and self.options.get(block.always[1:]) != UNSEEN
                    fake = block.terms[0][1] if looked_at and block.terms else ""
                    yield Place(terms, place, shape, shift, fake)

    def _number(self, word: str) -> float:
        try:
            return float(self.options.get(word, word))
        except ValueError:
            raise UsageError(f"option {word}={self.options.get(word, word)!r}: expected a number") from None


def stored(layout: Layout, form: Form, spec: Spec, options: Mapping[str, str]) -> list[LayoutTensor]:
    """Every tensor of a network in a layout, without the module's name before theirs."""
    found: list[tuple[int, int, LayoutTensor]] = []
    for row in form.tensors:
        items = pattern.parse(row.content)
        present = [block for block in pattern.blocks(items) if _is_there(block, spec, options)]
        if not any(block.terms for block in present) or row.unless in spec.kinds():
            continue
        for binding in names.bindings(row, form, spec):
            pieces = list(_pieces(items, binding, layout, form, spec=spec, options=options))
            if not pieces:
                continue
            name = names.render(row, row.directions or layout.directions, spec, binding)
            tensor = _put_together(layout, name, row, form, spec=spec, options=options, pieces=pieces)
            found.append((int(binding.get("layer", 0)), int(binding.get("dir", 0)), tensor))
    return [tensor for _, _, tensor in sorted(found, key=lambda item: item[:2])]


def _is_there(block: Block, spec: Spec, options: Mapping[str, str]) -> bool:
    """Whether a block stands in the tensors of this network."""
    if not block.terms or block.kinds & set(spec.kinds()):
        return True
    return block.always == "!" or (bool(block.always) and options.get(block.always[1:]) in ("yes", UNSEEN))


def _pieces(
    items: pattern.Items, binding: Binding, layout: Layout, form: Form, *, spec: Spec, options: Mapping[str, str]
) -> Iterator[_Piece]:
    """The blocks of one tensor, without their starts."""
    values: dict[str, tuple[int | str, ...]] = {
        "layer": tuple(range(spec.layers)),
        "dir": tuple(range(spec.directions)),
        "gate": tuple(form.gates),
    }
    for block, at in pattern.bound(items, binding, values):
        gates = block.gates or form.gates
        if not _is_there(block, spec, options) or ("gate" in at and str(at["gate"]) not in gates):
            continue
        inside = {word for group in block.axes for word in group}
        sizes = spec.sizes(int(at.get("layer", 0)))
        if "layer" in inside and "in" in inside and any(spec.sizes(k) != sizes for k in range(spec.layers)):
            raise LayoutError(
                f"{spec}: layout {layout.name} keeps all layers in one tensor: input must be the width of h"
            )
        yield _Piece(block, at, 0, {**sizes, "layer": spec.layers, "dir": spec.directions, "gate": len(gates)})


def _put_together(
    layout: Layout,
    name: str,
    row: TensorRule,
    form: Form,
    *,
    spec: Spec,
    options: Mapping[str, str],
    pieces: list[_Piece],
) -> LayoutTensor:
    """Set the blocks one behind the other along the row's axis."""
    shapes = [pattern.extent(piece.block, piece.lengths) for piece in pieces]
    rest = {shape[: row.along] + shape[row.along + 1 :] for shape in shapes}
    if len(rest) > 1 or any(row.along >= len(shape) for shape in shapes):
        raise LayoutError(f"layout {layout.name}: the blocks of {name!r} do not fit together: {shapes}")
    starts = [0, *accumulate(shape[row.along] for shape in shapes)]
    shape = (*shapes[0][: row.along], starts[-1], *shapes[0][row.along + 1 :])
    placed = tuple(piece._replace(start=start) for piece, start in zip(pieces, starts, strict=False))
    return LayoutTensor(name, shape, row, form, spec, options, placed)


def check_tiling(layout: Layout, form: Form, spec: Spec, options: Mapping[str, str]) -> None:
    """Prove that the places of a network tile its tensors, and that no cell is lost; LayoutError names the element.

    Each element of each tensor belongs to exactly one place; each cell that cannot be zero has a place, and no cell has
    two places in one tensor.
    """
    from paramtool.model.dtype import DTYPES

    seen: dict[Cell, str] = {}
    for tensor in stored(layout, form, spec, options):
        view = View(tensor.name, DTYPES["float32"], 0, tensor.shape, contiguous_strides(tensor.shape))
        count = bytearray(prod(tensor.shape))
        for place in tensor.places(view):
            for element in _elements(place.view):
                if element >= len(count) or count[element]:
                    where = _position(element, tensor.shape)
                    raise LayoutError(f"layout {layout.name}: element {where} of {tensor.name!r} is doubled")
                count[element] = 1
            for _, cell in place.terms:
                if seen.get(cell) == tensor.name:
                    raise LayoutError(f"layout {layout.name}: {cell} stands twice in {tensor.name!r}")
                if place.view.numel != prod(spec.shape(cell)):
                    raise LayoutError(f"layout {layout.name}: {cell} does not fit its place in {tensor.name!r}")
                seen[cell] = tensor.name
        if 0 in count:
            where = _position(count.index(0), tensor.shape)
            raise LayoutError(f"layout {layout.name}: element {where} of {tensor.name!r} is missing")
    for cell in spec.cells():
        if cell not in seen and (cell.kind not in ZEROABLE or form.has_place(cell)):
            raise LayoutError(f"layout {layout.name}: {cell} has no place")


def _elements(view: View) -> Iterator[int]:
    """The element that each index of a window stands for."""
    found = [view.offset]
    for size, stride in zip(view.shape, view.strides, strict=True):
        found = [base + k * stride for base in found for k in range(size)]
    yield from found


def _position(element: int, shape: tuple[int, ...]) -> list[int]:
    """The index of an element, row by row."""
    found = []
    for size in reversed(shape):
        element, k = divmod(element, size)
        found.append(k)
    return found[::-1]
