"""Conversion between layouts: copies each cell of a network from its place in one layout to its place in another.

The places of the source say which window holds each cell, and those of the target say which cells each window needs.
Joined by cell, they are the copies of a plan.  There is no code for a pair of layouts, and converting back is the same
function.  What depends on the bytes becomes a requirement of the plan: a bias that is dropped must be zero, twins must
be equal.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from paramtool import layouts
from paramtool.errors import LayoutError, plural
from paramtool.grouping import omit
from paramtool.layouts.evidence import evidence
from paramtool.layouts.layout import Form, Layout, LayoutTensor, Place, from_table, refusals, stored
from paramtool.layouts.networks import Network, modules, network_if_any, squeezed
from paramtool.layouts.spec import WORDS, ZEROABLE, Cell, Spec, usual, word, words
from paramtool.lazy_dataclass import dataclass, frozen
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Ordered
from paramtool.model.dtype import DType
from paramtool.model.plan import Copy, Requirement, Target
from paramtool.model.view import Shape, Shapes, StorageId, View, Views, contiguous, reshaped
from paramtool.passes.coalesce import coalesced

if TYPE_CHECKING:
    from paramtool.model.optimizer import SlotKind

ROUNDING = 64
"""Two biases that are always summed have one gradient.  Their moments are calculated separately, and may differ by this
many units in the last place of the largest element."""
KEPT_PREFIX = "paramtool.kept/"
"""The prefix of tensors that hold what a conversion would otherwise lose."""
KEPT = from_table(words()["kept"])
"""How biases are kept: the numbers as they were, so that none is rounded twice."""
_KEPT_NAME = re.compile(r"(?:minus_(?P<off>[^/]+)/)?bias_(?:ih|hh)_l\d+(?:_reverse)?")


def kept_name(at: str, tensor: str, off: float = 0.0) -> str:
    """The name of a kept tensor of a module; `off` is the forget bias that had been subtracted."""
    return f"{KEPT_PREFIX}{at}{'/' if at else ''}{f'minus_{off}/' if off else ''}{tensor}"


def kept_off(at: str, name: str) -> float | None:
    """The forget bias that had been subtracted from a kept tensor of a module; None for any other tensor.

    >>> kept_off("enc", "paramtool.kept/enc/minus_1.0/bias_ih_l0"), kept_off("enc", "enc.bias_ih_l0")
    (1.0, None)
    """
    if not name.startswith(KEPT_PREFIX) or not name.startswith(kept_name(at, "")):
        return None
    found = _KEPT_NAME.fullmatch(name.removeprefix(kept_name(at, "")))
    try:
        return float(found["off"] or 0) if found else None
    except ValueError:
        return None


@frozen
class Change:
    """What a conversion does besides moving bytes, for people and for the record."""

    kind: str
    """`summed`, `shifted`, `negated`, `split`, `made`, `dropped`, `kept`, `taken`, `stacked`, `shaped`; `needs` and
    `unproved` for facts that the user has to know."""
    what: str


@frozen
class Converted:
    """One network in its new layout."""

    source: Network
    """The network as it was found."""
    at: str
    """The module that it is in."""
    layout: Layout
    """Its new layout."""
    form: Form
    """The form of that layout that holds it."""
    spec: Spec
    """Its sizes and facts."""
    options: Mapping[str, str]
    """The options of the new layout."""
    targets: tuple[Target, ...]
    """Its tensors in the output."""
    tensors: Mapping[str, str]
    """{the layout's name of a tensor: its name in the output}."""
    kept: tuple[Target, ...] = ()
    """Tensors that hold what the conversion loses, with `keep_split`."""
    requires: tuple[Requirement, ...] = ()
    """What its bytes must show, such as zeros in a place that the new layout does not have."""
    changes: tuple[Change, ...] = ()
    """What is kept as a function and not as bytes, such as summed biases."""
    _members = (
        "at=source.at to_at=at from=source.layout.name to=layout.name spec exact=is_exact one_run=is_run "
        "tensors=made kept=names_kept changes options proof"
    )

    @property
    def made(self) -> list[str]:
        """The names of its tensors."""
        return [target.name for target in self.targets]

    @property
    def names_kept(self) -> list[str]:
        """The names of what is kept."""
        return [target.name for target in self.kept]

    @property
    def proof(self) -> tuple[str, ...]:
        """The evidence for its new layout."""
        return evidence(self.layout)

    @property
    def is_exact(self) -> bool:
        """Whether converting back gives the same bytes."""
        return not any(change.kind in ("summed", "shifted") for change in self.changes)

    @property
    def parent(self) -> View | None:
        """The run of the source that already is the new tensor, except for its tail; None if parts have to be moved.

        Parts that are adjacent windows of one storage need no copy: this window on the storage is their fused tensor.
        """
        live = [copy for target in self.targets for copy in target.copies if copy.terms]
        if len(self.targets) != 1 or len(live) != 1 or not live[0].is_plain or live[0].destination.offset:
            return None
        view = live[0].source
        return view if view.is_contiguous and live[0].destination.is_contiguous else None

    @property
    def is_run(self) -> bool:
        """Whether the parts are one run of bytes in the source, exactly as in the one new tensor."""
        return self.parent is not None


@frozen
class _CellSource:
    """The value of a cell: sign * window + shift."""

    sign: int
    view: View
    shape: Shape
    """The shape of the cell, row by row."""
    shift: float
    name: str
    """The tensor that the cell is a part of."""


@dataclass(slots=True)
class _Cells:
    """The cells of a source, and the conditions under which they may be read so."""

    where: str
    found: dict[Cell, _CellSource] = field(default_factory=dict)
    zero: set[Cell] = field(default_factory=set)
    """The other cells of a sum; the whole sum counts as the first cell, or with `into_second` as the second."""
    requires: list[Requirement] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    carry: SlotKind = "weight"
    """What the windows hold: the weights, or what an optimizer keeps for them."""
    into_second: bool = False
    """Whether a sum counts as its second cell."""

    def carried(self, place: Place) -> Place:
        """A place as it is for what is carried: moments have no shift, and those of squares no sign."""
        if self.carry == "weight":
            return place
        terms = place.terms if self.carry == "first" else tuple((1, cell) for _, cell in place.terms)
        return replace(place, terms=terms, shift=0.0)


def convert_if_held(
    network: Network,
    views: Views,
    layout: Layout,
    options: Mapping[str, str],
    *,
    at: str,
    into_second: bool = False,
) -> Converted | None:
    """Like `convert`, but None if the layout cannot hold the network."""
    try:
        return convert(network, views, layout, options, at=at, into_second=into_second)
    except LayoutError:
        return None


def convert(
    network: Network,
    views: Views,
    layout: Layout,
    options: Mapping[str, str],
    *,
    at: str,
    keep_split: bool = False,
    shapes: Shapes | None = None,
    carry: SlotKind = "weight",
    into_second: bool = False,
    swapped: tuple[int, int] | None = None,
) -> Converted:
    """A network in another layout.

    `views` holds the windows of the network's tensors, and of those that an earlier conversion kept, by their names in
    the checkpoint.  `shapes` holds the shapes of tensors that should have more or fewer axes of length 1 than the
    layout, by their names in the layout.  `carry` says what the windows hold: the weights, or one slot of an optimizer.
    Then a sum of two parameters has the slot of the first, which that of the second must equal, and both of the parts
    of a sum have its slot.  One bias becomes the first of two, and zeros the second; with `into_second` it is the other
    way round.  `swapped` are the sizes of two axes that are one in the inputs of the source, and change places.
    LayoutError if the layout cannot hold the network; conditions on the bytes are in `requires`.
    """
    options = layout.chosen(options)
    try:
        form = layout.form(network.spec, options)
    except LayoutError as error:
        error.hint = _holders(network.spec)
        raise (error.located(repr(network.at)) if network.at else error) from None
    cells = _Cells(repr(network.at) if network.at else "the network", carry=carry, into_second=into_second)
    _check_dtypes(network, views, cells.where)
    for name, place in network.places(views):
        _take(cells, cells.carried(place), name)
    if swapped:
        # Read the inputs of the first layer, which are of two axes, with these in the other order.
        for cell, source in cells.found.items():
            if cell.kind == "W" and cell.layer == 0:
                apart = reshaped(source.view, (source.shape[0], *swapped))
                if apart is None:
                    raise LayoutError(
                        f"{cells.where}: {source.name!r} is stored so that its inputs cannot be reordered"
                    )
                shape, strides = ((one[0], one[2], one[1]) for one in (apart.shape, apart.strides))
                view = apart.with_axes(shape, strides)
                cells.found[cell] = replace(source, view=view, shape=shape)
    _take_kept(cells, network, views)
    # Every cell has a place in the target, or may be dropped if it is zero
    for cell, source in cells.found.items():
        if form.has_place(cell) or cell in cells.zero:
            continue
        if cell.kind not in ZEROABLE:
            raise LayoutError(
                f"{cells.where}: layout {layout.name} has no place for the {cell}", _holders(network.spec)
            )
        holders = [
            one.name for one in layouts.all_layouts() if any(f.has_place(cell) for f in _forms_for(one, network.spec))
        ]
        message = f"{cells.where}: the {cell} is not zero, and layout {layout.name} has no place for it"
        hint = f"layouts that hold it: {', '.join(holders)}"
        cells.requires.append(Requirement(source.view, (), source.shift * -source.sign, message, hint))
        cells.changes.append(Change("dropped", f"{WORDS[cell.kind]} of zeros dropped"))
    tensors = stored(layout, form, network.spec, options)
    if not tensors:
        raise LayoutError(f"{network.at!r}: layout {layout.name} has no tensor for {network.spec}")
    separator = layout.separator if at else ""
    dtype = next(s.view.dtype for c, s in cells.found.items() if c.kind == "W")
    targets, lossy = [], set()
    for tensor in tensors:
        name = f"{at}{separator}{tensor.name}"
        target, lost = _target(name, tensor, cells, dtype)
        targets.append(_shaped(target, (shapes or {}).get(tensor.name, tensor.shape), cells.where))
        lossy |= lost
    if len(network.stacked) > 1:
        what = (
            f"its layers are {', '.join(map(repr, network.stacked))}; what the model does between them is not included"
        )
        cells.changes.append(Change("stacked", what))
    elif network.stacked:
        cells.changes.append(Change("stacked", f"a layer of {network.stacked[0]!r}"))
    cells.changes += _notes(layout, options, network.spec)
    for raw, name in network.raw.items():
        cells.changes.append(Change("taken", f"{raw!r} is read as {name!r}, which weight dropout makes from it"))
    if layout == network.layout:  # tensors that lose or gain axes of length 1
        for old, new in zip((network.tensors[tensor.name] for tensor in network.stored()), targets, strict=False):
            if (before := views[old].shape) != new.shape:
                what = f"{old!r} {list(before)} now has the layout's shape {list(new.shape)}"
                cells.changes.append(Change("shaped", what))
    kept = tuple(_kept(network, at, lossy, cells, dtype=dtype)) if keep_split and lossy else ()
    if kept:
        hold = "holds" if len(kept) == 1 else "hold"
        what = f"{plural(len(kept), 'tensor')} {KEPT_PREFIX}... {hold} the biases as they were"
        cells.changes.append(Change("kept", what))
    # The network as its new tensors show it: without cells of zeros for which the layout has no place
    spec, kinds = network.spec, form.kinds()
    peephole, initial_state = spec.peephole and "peep" in kinds, spec.initial_state and "h0" in kinds
    return Converted(
        source=network,
        at=at,
        layout=layout,
        form=form,
        spec=replace(spec, peephole=peephole, initial_state=initial_state),
        options=options,
        targets=tuple(targets),
        tensors={tensor.name: target.name for tensor, target in zip(tensors, targets, strict=True)},
        kept=kept,
        requires=tuple(cells.requires),
        changes=tuple(dict.fromkeys(cells.changes)),
    )


def _notes(layout: Layout, options: Mapping[str, str], spec: Spec) -> Iterator[Change]:
    """What a program that runs the network has to know, and what is not proved."""
    for option in layout.options:
        if not option.shown and spec.kind == "lstm":
            yield Change("needs", f"{option.name}={options[option.name]}: {option.what}")
    for fact in layout.required:
        said = word(fact, getattr(spec, fact))
        if spec.has(fact) and (fact == "cell_clip" or said != usual(fact)):  # BlockLSTM clips unless told otherwise
            yield Change("needs", f"{said}: no tensor shows it, so the program that runs the network has to set it")
    for known, doubt in layout.caveats.items():
        if known in spec.kinds() or getattr(spec, known, False):
            yield Change("unproved", doubt)


def _holders(spec: Spec) -> str:
    """The layouts that can hold a network."""
    names = [one.name for one in layouts.all_layouts() if _forms_for(one, spec)]
    return f"layouts that hold it: {', '.join(names)}" if names else "no layout that paramtool knows holds it"


def _forms_for(layout: Layout, spec: Spec) -> list[Form]:
    """The forms of a layout that can hold a network."""
    return [form for form in layout.forms if form.kind == spec.kind and not list(refusals(layout, form, spec))]


# --- the source -------------------------------------------------------------------------------------------------


def _check_dtypes(network: Network, views: Views, where: str) -> None:
    """Check that the tensors have one dtype; LayoutError names tensors that differ."""
    first: dict[str, tuple[str, str]] = {}
    for tensor in network.stored():
        name = network.tensors[tensor.name]
        kinds = {cell.kind for place in tensor.places() for _, cell in place.terms}
        mine = views[name].dtype.name
        if not views[name].dtype.is_floating:
            raise LayoutError(
                f"{where}: {name!r} is {mine}: only floating-point networks are converted",
                hint="dequantise the network first",
            )
        for kind in sorted(kinds):
            other, dtype = first.setdefault(kind, (name, mine))
            if dtype != mine:
                raise LayoutError(f"{where}: {other!r} is {dtype}, {name!r} is {mine}; expected one dtype")


_ABSENT = {
    "bW": ("biases", "bias"),
    "bR": ("biases", "bias"),
    "peep": ("peepholes", "peephole"),
    "h0": ("initial state", "initial_state"),
    "c0": ("initial state", "initial_state"),
}
"""Kinds of cells that a network may lack: what they are called, and the word of a spec for them."""


def _take(cells: _Cells, place: Place, name: str) -> None:
    """Read one place of a source: it holds its cells, or must be zero."""
    if not place.terms:
        if place.must_be_zero:
            what, fact = _ABSENT[place.must_be_zero]
            message = f"{name!r}: is not zero, but the spec says that the network has no {what}"
            cells.requires.append(Requirement(place.view, (), place.shift, message, f'add {fact}=yes to --spec "..."'))
            cells.changes.append(Change("dropped", f"{what} of zeros dropped"))
        return
    (sign, cell), *others = place.terms[::-1] if cells.into_second else place.terms
    source = _CellSource(sign, place.view, place.shape, -sign * place.shift, name)
    twin = cells.found.get(cell)
    if twin is not None:
        message = f"{name!r}: {cell} differs from its twin, which has the same meaning"
        for here, there in _aligned([(place.view, place.shape), (twin.view, twin.shape)]):
            terms, shift = ((sign * twin.sign, there),), sign * twin.shift + place.shift
            cells.requires.append(Requirement(here, terms, shift, message, "only one of the two was changed"))
        return
    cells.found[cell] = source
    cells.zero.update(other for _, other in others)
    if cells.carry != "weight":
        for other_sign, other in others:
            cells.found.setdefault(other, replace(source, sign=other_sign))


def _take_kept(cells: _Cells, network: Network, views: Views) -> None:
    """Take biases from where an earlier conversion kept them, provided that they still give the stored biases."""
    kept = _kept_cells(network, views)
    if not kept:
        return
    layers = {(cell.layer, cell.direction) for cell in kept}
    gone = {c for c in cells.found if c.kind in ("bW", "bR") and c not in kept and (c.layer, c.direction) in layers}
    for name, place in network.places(views):
        known = [(sign, kept[cell]) for sign, cell in place.terms if cell in kept]
        if known or any(cell in gone for _, cell in place.terms):
            message = f"{name!r}: differs from what {KEPT_PREFIX}... gives: {place.terms[0][1]}"
            hint = "it was trained further since: --drop-kept continues without the kept biases"
            terms = tuple((sign * source.sign, source.view) for sign, source in known)
            shift = place.shift + sum(sign * source.shift for sign, source in known)
            cells.requires.append(Requirement(place.view, terms, shift, message, hint))
    cells.found = omit(cells.found, gone) | kept
    cells.zero = (cells.zero | gone) - kept.keys()
    cells.changes.append(Change("kept", "biases taken from where an earlier conversion kept them"))


def _kept_form(spec: Spec) -> Form:
    """The form in which biases of such a network are kept; nothing else about the network matters."""
    return next(form for form in KEPT.forms if (form.kind, form.reset) == (spec.kind, spec.reset))


def _kept_cells(network: Network, views: Views) -> dict[Cell, _CellSource]:
    """The cells of the network that an earlier conversion kept."""
    form = _kept_form(network.spec)
    kept: dict[Cell, _CellSource] = {}
    for off in {off for name in views if (off := kept_off(network.at, name)) is not None}:
        for tensor in stored(KEPT, form, network.spec, {"forget_bias": str(off)}):
            name = kept_name(network.at, tensor.name, off)
            for place in tensor.places(views[name]) if name in views else ():
                kept[place.terms[0][1]] = _CellSource(1, place.view, place.shape, -place.shift, name)
    return kept


# --- the target -------------------------------------------------------------------------------------------------


def _target(name: str, tensor: LayoutTensor, cells: _Cells, default: DType) -> tuple[Target, set[Cell]]:
    """One tensor of the target, and the cells that converting back could not separate."""
    inside = (cell for place in tensor.places() for _, cell in place.terms)
    dtypes = {cells.found[cell].view.dtype for cell in inside if cell in cells.found}
    if len(dtypes) > 1:
        found = ", ".join(sorted(dtype.name for dtype in dtypes))
        raise LayoutError(f"{cells.where}: {name!r} would be assembled from tensors of {found}; expected one dtype")
    dtype = dtypes.pop() if dtypes else default
    if dtype.block_elements != 1:
        raise LayoutError(
            f"{cells.where}: its tensors are {dtype.name}; packed and quantised networks are not converted"
        )
    copies: list[Copy] = []
    lost: set[Cell] = set()
    for place in map(cells.carried, tensor.places(contiguous(name, dtype, tensor.shape))):
        made = list(_copies(place, cells))
        copies += made
        if made and (len(made[0].terms) > 1 or (made[0].shift and made[0].terms)):
            lost.update(cell for _, cell in place.terms)
    return Target(name, dtype, tensor.shape, tuple(coalesced(copies))), lost


def _shaped(target: Target, shape: Shape, where: str) -> Target:
    """A target with axes of length 1 inserted or removed."""
    if squeezed(shape) != squeezed(target.shape):
        raise LayoutError(
            f"{where}: {target.name!r}: shape {list(shape)} does not fit {list(target.shape)}, the shape in its layout"
        )
    return replace(target, shape=shape)


def _copies(place: Place, cells: _Cells) -> Iterator[Copy]:
    """Fill one place of the target from the cells that it names."""
    sources: list[tuple[int, _CellSource]] = []
    shift = place.shift
    for sign, cell in place.terms:
        source = cells.found.get(cell)
        if source is not None:
            sources.append((sign * source.sign, source))
            shift += sign * source.shift
        elif cell.kind not in ZEROABLE:
            raise LayoutError(f"{cells.where}: its {cell} is missing")
    _remember(place, sources, shift, cells)
    if cells.carry != "weight":  # the slot of a sum is that of its first term, which those of the others must equal
        for sign, source in sources[1:]:
            first_sign, first = sources[0]
            if source.view == first.view:
                continue
            message = f"{source.name!r} and {first.name!r} are summed, and differ by more than rounding"
            for here, there in _aligned([(first.view, first.shape), (source.view, source.shape)]):
                cells.requires.append(Requirement(here, ((first_sign * sign, there),), 0.0, message, rounding=ROUNDING))
        del sources[1:]
    if not sources:
        yield Copy(place.view, (), shift)
        return
    names = tuple(source.name for _, source in sources)
    for windows in _aligned([(place.view, place.shape), *((source.view, source.shape) for _, source in sources)]):
        destination, *views = windows
        terms = tuple((sign, view) for (sign, _), view in zip(sources, views, strict=True))
        yield Copy(destination, terms, shift, names)


def _remember(place: Place, sources: list[tuple[int, _CellSource]], shift: float, cells: _Cells) -> None:
    """Note what filling a place does besides moving bytes."""
    if len(sources) > 1:
        cells.changes.append(Change("summed", "function kept, bytes not: two biases summed"))
    if shift and sources:
        cells.changes.append(Change("shifted", f"function kept, bytes not: {shift:+g} on a bias"))
    if any(sign < 0 for sign, _ in sources):
        cells.changes.append(Change("negated", "one gate negated, exactly"))
    if sources or not (place.terms or place.must_be_zero):
        return
    if place.terms and all(cell in cells.zero for _, cell in place.terms):
        one, other = ("second", "first") if cells.into_second else ("first", "second")
        cells.changes.append(Change("split", f"one bias put into the {one} of two, zeros into the {other}"))
        return
    kinds = {cell.kind for _, cell in place.terms} or {place.must_be_zero}
    made = " and ".join(sorted({_ABSENT[kind][0] for kind in kinds}))
    cells.changes.append(Change("made", f"{made} of zeros written"))


Window = tuple[View, Shape]


def _aligned(windows: list[Window]) -> Iterator[list[View]]:
    """The same windows, cut into windows of equal shapes with their elements in the same order."""
    for _, shape in windows:
        same = [view if cut == shape else reshaped(view, shape) for view, cut in windows]
        if all(view is not None for view in same):
            yield [view for view in same if view is not None]
            return
    # Legacy Keras kernels against a transposed kernel: a row of one continues in the next row of the other.
    total = windows[0][0].numel
    cuts = sorted({k for view, _ in windows for k in range(0, total, view.shape[-1])} | {total})
    for start, stop in pairwise(cuts):
        yield [_run(view, start, stop) for view, _ in windows]


def _run(view: View, start: int, stop: int) -> View:
    """Elements `start` to `stop` in row-major order, all in one row of a window."""
    offset, rest = view.offset, start
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        rest, k = divmod(rest, size)
        offset += k * stride
    return view.with_axes((stop - start,), (view.strides[-1],), offset)


def _kept(network: Network, at: str, lossy: set[Cell], cells: _Cells, *, dtype: DType) -> Iterator[Target]:
    """Tensors that hold biases as they were, for each vector of which a gate would be lost."""
    form = _kept_form(network.spec)
    quiet = _Cells(cells.where, cells.found, cells.zero)
    off = max((source.shift for cell, source in cells.found.items() if cell.gate == "f"), default=0.0)
    for tensor in stored(KEPT, form, network.spec, {"forget_bias": str(off)}):
        name = kept_name(at, tensor.name, off)
        inside = {cell for place in tensor.places() for _, cell in place.terms}
        if inside & lossy and inside & cells.found.keys():
            yield _target(name, tensor, quiet, dtype)[0]


# --- Which fused blocks are the buffer of a recurrent network: windows of one storage, in cuDNN's order already ------


BUFFER = "cudnn"
"""The layout of the buffer, and the layout that the parts have before PyTorch flattens them."""
PARTS = "torch"


@frozen
class FusedNetwork:
    """A recurrent network whose tensors are in one storage in the order of a layout."""

    at: str
    layout: str
    spec: Spec
    proof: tuple[str, ...]
    """The evidence for the layout."""


def fused_networks(checkpoint: Checkpoint, graph: AliasGraph) -> dict[int, FusedNetwork]:
    """{storage: the network whose buffer it is}, of the graph's fused blocks."""
    parts = layouts.find(PARTS)
    blocks = {block.storage for block in graph.fused}
    views = {name: view for name, view in checkpoint.views().items() if view.storage in blocks}
    shapes = {name: view.shape for name, view in views.items()}
    names = Ordered(views)
    known: dict[Hashable, tuple[int, Spec] | None] = {}
    buffers: dict[int, tuple[str, Spec]] = {}
    for at in modules(parts, {}, shapes):
        inside = {name: views[name] for name in names.under(f"{at}." if at else "")}
        storages = list(dict.fromkeys(view.storage for view in inside.values()))
        # Where the tensors of a module are, without the module's name and the numbers of its storages.
        number = {storage: k for k, storage in enumerate(storages)}
        geometry = tuple(
            (name[len(at) :], view.dtype.name, view.shape, view.strides, view.offset, number[view.storage])
            for name, view in inside.items()
        )
        if geometry not in known:
            known[geometry] = _buffer(at, inside, storages)
        if (found := known[geometry]) is not None:  # otherwise the block is shown as windows
            buffers.setdefault(int(storages[found[0]]), (at, found[1]))
    proof = evidence(layouts.find(BUFFER)) if buffers else ()
    return {storage: FusedNetwork(at, BUFFER, spec, proof) for storage, (at, spec) in buffers.items()}


def _buffer(at: str, views: Views, storages: list[StorageId]) -> tuple[int, Spec] | None:
    """Which of the storages a network's tensors fill in the buffer's order, from its first byte on.

    None where they fill none.
    """
    one = network_if_any(layouts.find(PARTS), at, {name: view.shape for name, view in views.items()})
    made = convert_if_held(one, views, layouts.find(BUFFER), {}, at=at) if one else None
    if one is None or made is None or made.parent is None or made.parent.offset:
        return None
    return storages.index(made.parent.storage), one.spec
