"""A layout: a table that says which tensor holds each cell of a network, and where in the tensor the cell is.

A layout has no code for reading or writing.  The table determines the names and shapes of a network's tensors, and the
places of its cells in them; two tables make a conversion in both directions.

    Layout   one library's way of storing recurrent networks
      Form     one kind of network: the order of gates, and the tensors
        TensorRule    a row: a template of names, and a pattern of the content
    LayoutTensor  one tensor of one network: name, shape, and places
    Place    a view of that tensor, and the cells whose (sum of) values it stores
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from functools import lru_cache
from itertools import accumulate
from math import isfinite, prod
from typing import Any, NamedTuple

from paramtool.errors import LayoutError, UsageError
from paramtool.layouts import names, pattern
from paramtool.layouts.pattern import Binding, Block
from paramtool.layouts.spec import KINDS, ZEROABLE, Cell, Spec
from paramtool.lazy_dataclass import frozen
from paramtool.model.dtype import DTYPES
from paramtool.model.view import Shape, View, contiguous
from paramtool.package_data import package_data

CAN_BE_SAID = ("gate_activation", "cell_clip", "clip", "coupled", "backward", "merge")
"""Facts of a spec that change the function and that only some layouts can express."""
_USUAL = {field.name: field.default for field in fields(Spec) if field.name in CAN_BE_SAID}


UNSEEN = "unseen"
"""The value of an option for space that may hold anything and is not checked."""


@frozen
class TensorRule:
    """A row of a layout: a family of tensors with one name template and one content pattern."""

    name: str
    """A template, see `names`."""
    content: str
    """A pattern, see `pattern`."""
    along: int = 0
    """The axis along which the blocks follow each other."""
    labels: str = ""
    """How the name writes gates, if not as their letters: `i=_i g=_c`."""
    optional: bool = False
    """Whether readers accept files without it: it repeats another tensor, or may be zero."""
    directions: tuple[str, str] | None = None
    """How its names write the two directions, if not as the rest of the layout does."""
    unless: str = ""
    """A kind of cell: a network that has such cells does not have this tensor."""

    def blocks(self) -> Iterator[Block]:
        """The blocks of the pattern; repeated blocks are yielded once."""
        return pattern.blocks(pattern.parse(self.content))

    def kinds(self) -> frozenset[str]:
        """The kinds of cells that it stores."""
        return frozenset().union(*(block.kinds for block in self.blocks()))


@frozen
class Form:
    """How one kind of network is stored."""

    kind: str
    """`lstm`, `gru` or `rnn`."""
    gates: str
    """The order of gates, in torch's letters, for blocks that do not give another order."""
    tensors: tuple[TensorRule, ...]
    """Its tensors, a row for each family of them."""
    reset: str = ""
    """Of a GRU: `after` or `before`."""
    when: Mapping[str, str] = field(default_factory=dict)
    """The options of the layout for which this form is used."""
    activations: tuple[str, ...] = ("tanh", "relu")
    """The activations that an RNN of this form may have."""
    expresses: frozenset[str] = frozenset()
    """Facts other than tensors that the library can express, out of `CAN_BE_SAID`."""

    @property
    def says(self) -> list[str]:
        """The same in order."""
        return sorted(self.expresses)

    def blocks(self) -> Iterator[Block]:
        """The blocks of all rows."""
        return (block for row in self.tensors for block in row.blocks())

    def kinds(self) -> frozenset[str]:
        """The kinds of cells that have a place."""
        return frozenset().union(*(block.kinds for block in self.blocks()))

    def has_place(self, cell: Cell) -> bool:
        """Whether a cell of this kind and gate has a place."""
        blocks = (block for block in self.blocks() if cell.kind in block.kinds)
        return any(not cell.gate or cell.gate in (block.gates or self.gates) for block in blocks)


@frozen
class Option:
    """A choice that the tensors do not show, such as the forget bias of a TensorFlow 1 cell."""

    name: str
    default: str
    what: str
    shown: bool = False
    """Whether the shapes of the tensors show it."""
    values: tuple[str, ...] = ()
    """The allowed values; empty for a number, or for the values that the layout's forms use."""

    def check(self, layout: str, value: str) -> None:
        """UsageError if the option cannot have this value."""
        if self.values:
            good, expected = value in self.values, f"one of {', '.join(self.values)}"
        elif _is_number(self.default):
            good, expected = _is_number(value), "a finite number"
        else:
            return
        if not good:
            raise UsageError(f"layout {layout}: invalid {self.name}={value}; expected {expected}")


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


@frozen
class Layout:
    """Where a library keeps the cells of recurrent networks."""

    name: str
    """`family` or `family.scheme`."""
    title: str
    """Whose layout it is."""
    forms: tuple[Form, ...]
    """How it stores each kind of network."""
    separator: str = "."
    """The character between the module's name and the tensor's."""
    directions: tuple[str, str] = ("", "_reverse")
    """How names write the forward and the reverse direction."""
    max_directions: int = 2
    """How many directions it can hold: 1 or 2."""
    options: tuple[Option, ...] = ()
    """Choices that no tensor shows."""
    source: str = ""
    """Where the facts are from."""
    proof: tuple[str, ...] = ()
    """What was run: `oracle: torch`, `files: ...`, `equations`."""
    names_identify: bool = True
    """Whether names alone show that a group of tensors is a recurrent network."""
    caveats: Mapping[str, str] = field(default_factory=dict)
    """{a kind of cell, or a fact: what is uncertain about it in this layout}, reported whenever a network has it."""
    assumed: tuple[str, ...] = ()
    """Facts of a spec that no tensor shows and whose defaults changed between versions: assumed, with a message."""
    required: tuple[str, ...] = ()
    """Facts of a spec that no tensor shows and that the user must give: a wrong value gives another function."""
    functions: frozenset[str] = frozenset()
    """The activations that its library knows, if it can express unusual ones; empty for any."""
    outside: tuple[str, ...] = ()
    """What the programs that have this layout do beside the network, and no tensor shows: warnings when a network goes
    to a layout whose programs do not, or comes from one."""
    note: str = ""
    """A caveat for people."""
    gpu: bool = False
    """Whether its tensors are only made on GPUs: records say what verified them there, see `evidence`."""

    @property
    def always_biases(self) -> bool:
        """Whether a network without biases is stored with biases of zeros."""
        blocks = (block for form in self.forms for block in form.blocks())
        return all(block.always == "!" for block in blocks if block.kinds & {"bW", "bR"})

    def rows(self) -> Iterator[TensorRule]:
        """The rows of all forms."""
        return (row for form in self.forms for row in form.tensors)

    @property
    def is_of_one_tensor(self) -> bool:
        """Whether it stores a whole network, or layer, in one tensor."""
        return len({row.name for row in self.rows()}) == 1

    def holds(self) -> Iterator[str]:
        """The networks that it can hold, in words: `lstm +projection`, `gru reset=after without b_hn`."""
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
        """The value of each option; UsageError for an option that the layout does not have."""
        known = {option.name: option.default for option in self.options}
        if unknown := given.keys() - known.keys():
            there = ", ".join(known) or "none"
            raise UsageError(f"layout {self.name} has no option {min(unknown)!r}; its options: {there}")
        for option in self.options:
            option.check(self.name, given.get(option.name, option.default))
        return {**known, **given}

    def forms_of(self, kind: object, options: Mapping[str, str]) -> Iterator[Form]:
        """The forms of a kind of network, or of every kind (None), with these options."""
        for form in self.forms:
            if kind in (None, form.kind) and all(options.get(name) == value for name, value in form.when.items()):
                yield form

    def form(self, spec: Spec, options: Mapping[str, str]) -> Form:
        """The form that can hold a network; LayoutError says why no form can."""
        forms = list(self.forms_of(spec.kind, options))
        fit = [form for form in forms if not list(refusals(self, form, spec))]
        if fit:
            return fit[0]
        if not forms:
            raise LayoutError(f"{spec}: layout {self.name} cannot hold it: it has no {spec.kind}")
        raise LayoutError(f"{spec}: layout {self.name} cannot hold it: {'; '.join(refusals(self, forms[0], spec))}")


def refusals(layout: Layout, form: Form, spec: Spec) -> Iterator[str]:
    """The reasons why a form cannot hold a network, whatever the values of its weights."""
    if spec.kind == "gru" and form.reset != spec.reset:
        said = f"reset={spec.reset}" if spec.reset else "an unknown side (reset=before or reset=after)"
        yield f"its GRU applies the reset gate {form.reset} the recurrent product, the network has {said}"
    if spec.directions > layout.max_directions:
        yield "it holds only one direction"
    if spec.kind == "rnn" and len(form.activations) == 1 and spec.activation != form.activations[0]:
        yield f"its RNN is {form.activations[0]} only, the network's activation is {spec.activation or 'unknown'}"
    elif (
        spec.activation not in ("", *(form.activations if form.kind == "rnn" else ("tanh",)))
        and "gate_activation" not in form.expresses
    ):
        yield f"it has no activation={spec.activation}"
    for name in ("activation", "gate_activation"):
        value = getattr(spec, name)
        if layout.functions and value and value.partition("(")[0] not in layout.functions:
            yield f"it has no {name}={value}"
    for name in CAN_BE_SAID:
        value = getattr(spec, name)
        if value == _USUAL[name] or name in form.expresses or (name == "merge" and spec.layers == 1):
            continue  # merging the outputs of the last layer happens outside the layers
        yield f"it has no {name}" + ("" if value is True else f"={value}")
    for kind in spec.kinds():
        if kind not in ZEROABLE and kind not in form.kinds():
            yield f"it has no place for the {'projection' if kind == 'P' else kind}"


@frozen
class Place:
    """A view of a tensor, and the value stored there: sum of sign * cell, plus shift."""

    terms: tuple[tuple[int, Cell], ...]
    """Empty for filler."""
    view: View
    shape: Shape
    """The shape of the view, with its axes in the order of the cell's own buffer, row by row."""
    shift: float = 0.0
    must_be_zero: str = ""
    """For filler in the place of a cell that the network lacks, the kind of that cell; other filler has no meaning."""


class _PlacedBlock(NamedTuple):
    """A block with its position in a tensor."""

    block: Block
    binding: Binding
    start: int
    """Along the tensor's axis `along`."""
    lengths: Mapping[str, int]


def as_stored(view: View, shape: Shape) -> View:
    """A view in the shape that the layout asks for: axes of length 1 are inserted or removed.

    >>> as_stored(contiguous(0, DTYPES["float32"], (1, 400)), (400,)).shape
    (400,)
    """
    if view.shape == shape:
        return view
    steps = [stride for size, stride in view.axes if size != 1]
    strides = tuple(steps.pop(0) if size != 1 else 0 for size in shape)
    return view.with_axes(shape, strides)


@frozen
class LayoutTensor:
    """One tensor of one network."""

    name: str
    shape: Shape
    row: TensorRule
    form: Form
    spec: Spec
    options: Mapping[str, str]
    pieces: tuple[_PlacedBlock, ...]

    def places(self, view: View | None = None) -> Iterator[Place]:
        """Every place in the tensor, or in a view of it, which can have any strides, and other axes of length 1."""
        view = as_stored(view or contiguous(self.name, DTYPES["float32"], self.shape), self.shape)
        for piece in self.pieces:
            offset = view.offset + piece.start * (view.strides[self.row.along] if view.strides else 0)
            block, lengths, inside = piece.block, piece.lengths, piece.block.words
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
                        index = {
                            "layer": int(layer),
                            "dir": int(direction),
                            "gate": gates.find(str(gate)) if gate else 0,
                        }
                        at, shape, strides = pattern.window(
                            block, lengths, view.strides, {k: v for k, v in index.items() if k in inside}, order=order
                        )
                        terms = tuple(
                            (
                                sign,
                                Cell(kind, int(layer), int(direction), str(gate) if self.spec.gates_of(kind) else ""),
                            )
                            for sign, kind in block.terms
                            if kind in self.spec.kinds()
                        )
                        place = view.with_axes(shape, strides, offset + at)
                        looked_at = not terms and self.options.get(block.always[1:]) != UNSEEN
                        fake = block.terms[0][1] if looked_at and block.terms else ""
                        yield Place(terms, place, shape, shift, fake)

    def _number(self, word: str) -> float:
        try:
            return float(self.options.get(word, word))
        except ValueError:
            raise UsageError(f"option {word}={self.options.get(word, word)!r}: expected a number") from None


def stored(layout: Layout, form: Form, spec: Spec, options: Mapping[str, str]) -> list[LayoutTensor]:
    """Every tensor of a network in a layout; names are without the module's name."""
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
            # Place the blocks one after the other along the row's axis.
            shapes = [pattern.extent(piece.block, piece.lengths) for piece in pieces]
            rest = {shape[: row.along] + shape[row.along + 1 :] for shape in shapes}
            if len(rest) > 1 or any(row.along >= len(shape) for shape in shapes):
                raise LayoutError(f"layout {layout.name}: the blocks of {name!r} do not fit together: {shapes}")
            starts = [0, *accumulate(shape[row.along] for shape in shapes)]
            shape = (*shapes[0][: row.along], starts[-1], *shapes[0][row.along + 1 :])
            placed = tuple(piece._replace(start=start) for piece, start in zip(pieces, starts, strict=False))
            tensor = LayoutTensor(name, shape, row, form, spec, options, placed)
            found.append((int(binding.get("layer", 0)), int(binding.get("dir", 0)), tensor))
    return [tensor for _, _, tensor in sorted(found, key=lambda item: item[:2])]


def _is_there(block: Block, spec: Spec, options: Mapping[str, str]) -> bool:
    """Whether a block is present in the tensors of this network."""
    if not block.terms or block.kinds & set(spec.kinds()):
        return True
    return block.always == "!" or (bool(block.always) and options.get(block.always[1:]) in ("yes", UNSEEN))


def _pieces(
    items: pattern.Items, binding: Binding, layout: Layout, form: Form, *, spec: Spec, options: Mapping[str, str]
) -> Iterator[_PlacedBlock]:
    """The blocks of one tensor, not yet positioned along its axis."""
    values: dict[str, tuple[int | str, ...]] = {
        "layer": tuple(range(spec.layers)),
        "dir": tuple(range(spec.directions)),
        "gate": tuple(form.gates),
    }
    for block, at in pattern.bound(items, binding, values):
        gates = block.gates or form.gates
        if not _is_there(block, spec, options) or ("gate" in at and str(at["gate"]) not in gates):
            continue
        inside, sizes = block.words, spec.sizes(int(at.get("layer", 0)))
        if "layer" in inside and "in" in inside and any(spec.sizes(k) != sizes for k in range(spec.layers)):
            raise LayoutError(
                f"{spec}: layout {layout.name} keeps all layers in one tensor: input must be the width of h"
            )
        yield _PlacedBlock(block, at, 0, {**sizes, "layer": spec.layers, "dir": spec.directions, "gate": len(gates)})


def check_tiling(layout: Layout, form: Form, spec: Spec, options: Mapping[str, str]) -> None:
    """Check that the places of a network tile its tensors, and that no cell is lost; LayoutError names the element.

    Each element of each tensor belongs to exactly one place; each cell that cannot be zero has a place, and no cell has
    two places in one tensor.
    """
    seen: dict[Cell, str] = {}
    for tensor in stored(layout, form, spec, options):
        count = bytearray(prod(tensor.shape))
        for place in tensor.places():
            for element in _elements(place.view):
                if element >= len(count) or count[element]:
                    where = _position(element, tensor.shape)
                    raise LayoutError(f"layout {layout.name}: element {where} of {tensor.name!r} is doubled")
                count[element] = 1
            for _, cell in place.terms:
                if seen.get(cell) == tensor.name:
                    raise LayoutError(f"layout {layout.name}: {cell} is stored twice in {tensor.name!r}")
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
    """The element of the storage that each index of a view refers to."""
    found = [view.offset]
    for size, stride in view.axes:
        found = [base + k * stride for base in found for k in range(size)]
    yield from found


def _position(element: int, shape: Shape) -> list[int]:
    """The index of an element in a row-major tensor."""
    found = []
    for size in reversed(shape):
        element, k = divmod(element, size)
        found.append(k)
    return found[::-1]


registered: dict[str, Layout] = {}
"""{name: layout} of the layouts that this process registered, see `own.register_layout`."""


def from_table(table: Mapping[str, Any], rows: Mapping[str, list[dict[str, Any]]] | None = None) -> Layout:
    """The layout of a table in JSON or TOML: the members of `Layout`, with `form` and `option` for each of several.

    A text among the `tensors` of a form stands for those of `rows`, which several forms share.
    """
    forms = tuple(
        Form(**{
            **_hashable(form), "expresses": frozenset(form.get("expresses", ())),
            "tensors": tuple(
                TensorRule(**_hashable(row))
                for one in form["tensors"]
                for row in (rows[one] if rows and isinstance(one, str) else [one])
            ),
        })
        for form in table["form"]
    )  # fmt: skip
    options = tuple(Option(**{"what": "", **_hashable(one)}) for one in table.get("option", ()))
    said = {key: value for key, value in _hashable(table).items() if key not in ("form", "option")}
    return Layout(**{**said, "functions": frozenset(table.get("functions", ())), "forms": forms, "options": options})


def _hashable(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


@lru_cache(maxsize=1)
def built_in() -> dict[str, Layout]:
    """{name: layout} of the layouts that come with paramtool: `layouts.json`, by library."""
    libraries = json.loads(package_data("layouts", "layouts.json"))["libraries"]
    found = (from_table(one, library.get("rows")) for library in libraries for one in library["layouts"])
    return {layout.name: layout for layout in found}
