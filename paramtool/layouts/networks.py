"""Find recurrent networks among named tensors, and derive their specs from names and shapes.

Names give the module, the layer, the direction and the gate; shapes give the sizes.  The file or the user must give
what neither shows (an activation, a forget bias, the sizes of a flat vector): nothing is guessed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from math import prod
from typing import Any

from paramtool.errors import LayoutError, UnknownSizesError, UsageError, plural
from paramtool.layouts import names, pattern
from paramtool.layouts.layout import Form, Layout, LayoutTensor, Place, TensorRule, refusals, stored
from paramtool.layouts.spec import MERGES, Facts, Spec, text, usual
from paramtool.lazy_dataclass import dataclass, frozen
from paramtool.model.view import Shape, Shapes, Views

# --- The length of a network's flat vector, as numbers and in the words of messages ----------------------------------


def flat_lengths(layout: Layout, form: Form, options: Mapping[str, str], facts: Facts) -> tuple[int, int]:
    """The elements of one layer in a flat layout, and of each further layer; `facts` must have kind and sizes."""
    known = {field.name for field in fields(Spec)}
    said: dict[str, Any] = {name: value for name, value in facts.items() if name in known}
    said |= {"reset": form.reset, "bias": facts.get("bias", bool(form.kinds() & {"bW", "bR"}))}
    if form.kind == "rnn" and len(form.activations) == 1:
        said["activation"] = form.activations[0]
    one, two = (
        sum(prod(tensor.shape) for tensor in stored(layout, form, Spec(**{**said, "layers": layers}), options))
        for layers in (1, 2)
    )
    return one, two - one


def arithmetic(layout: Layout, options: Mapping[str, str], facts: Facts) -> str:
    """The number of elements of a flat network with these facts, in words; empty if they do not determine it."""
    if not {"kind", "input", "hidden"} <= facts.keys():
        return ""
    both = facts.get("bidirectional")
    found = []
    layers = int(str(facts.get("layers", 1)))
    try:
        chosen = layout.chosen(options)
        form = next(layout.forms_of(facts["kind"], chosen))
        for directions in (False, True) if both is None else (both,):
            first, further = flat_lengths(layout, form, chosen, {**facts, "bidirectional": directions})
            sizes = f"{facts['kind']} input={facts['input']} hidden={facts['hidden']}"
            sizes += " in both directions" if directions else ""
            total = f"{first + (layers - 1) * further:,} elements"
            more = f", {first:,} for the first and {further:,} for each further layer" if layers > 1 else ""
            found.append(
                f"{total}: {plural(layers, 'layer')} of {sizes}{more}"
                if "layers" in facts
                else f"{total}: 1 layer of {sizes}, {further:,} more for each further layer"
            )
    except (LayoutError, UsageError, StopIteration):
        return ""
    return f"expected {', or '.join(found)}"


@frozen
class Network:
    """A recurrent network in a checkpoint, in one layout."""

    at: str
    """The name of its module; empty if its tensors are at the top level."""
    layout: Layout
    form: Form
    spec: Spec
    options: Mapping[str, str]
    tensors: Mapping[str, str]
    """{the layout's name of a tensor: its name in the checkpoint}."""
    raw: Mapping[str, str] = field(default_factory=dict)
    """{one of its tensors: the tensor that is read instead}, because the checkpoint's value of the first is stale."""
    stacked: tuple[str, ...] = ()
    """The modules of the checkpoint that it was stacked from, or that it is a layer of; `at` is not among them."""
    assumed: tuple[tuple[str, str], ...] = ()
    """(fact, the option that gives another value), for each fact that was not given and has its default."""
    lacking: tuple[str, ...] = ()
    """Facts that were not given and are never assumed."""

    def stored(self) -> list[LayoutTensor]:
        """Its tensors, as the layout describes them."""
        return [t for t in stored(self.layout, self.form, self.spec, self.options) if t.name in self.tensors]

    def places(self, views: Views) -> Iterator[tuple[str, Place]]:
        """(tensor in the checkpoint, place in its window)"""
        return ((name, one) for t in self.stored() for name in [self.tensors[t.name]] for one in t.places(views[name]))


@dataclass(slots=True)
class _NamesOfForm:
    """Names of one module that look like tensors of one form."""

    at: str
    form: Form
    rows: dict[tuple[int, int, int, str], str]
    """(row, layer, direction, gate) -> name."""
    cells: dict[tuple[int, int, str], str]
    """(row, cell, gate) -> name, where names count cells."""


def modules(layout: Layout, options: Mapping[str, str], shapes: Shapes) -> list[str]:
    """The modules whose tensors look like networks of the layout, in order: they have input and recurrent weights."""
    first: dict[str, int] = {}
    order = {name: k for k, name in enumerate(shapes)}
    for form in layout.forms_of(None, options):
        for group in _groups(layout, form, shapes):
            kinds: set[str] = set()
            for row in [*(k for k, *_ in group.rows), *(k for k, *_ in group.cells)]:
                kinds |= form.tensors[row].kinds()
            if {"W", "R"} <= kinds:
                here = min(order[name] for name in (*group.rows.values(), *group.cells.values()))
                first[group.at] = min(here, first.get(group.at, here))
    return sorted(first, key=lambda at: first[at])


def named(layout: Layout, name: str) -> set[str]:
    """The modules to which a tensor of this name could belong, by the layout's templates."""
    found: set[str] = set()
    for row in layout.rows():
        for gates in {form.gates for form in layout.forms}:
            said = names.found(row, row.directions or layout.directions, gates, layout.separator, name=name)
            if said:
                found |= {said.get("at") or "", names.front(row, said, name) or said.get("at") or ""}
    return found


def _groups(layout: Layout, form: Form, shapes: Iterable[str]) -> list[_NamesOfForm]:
    """The names that match a form's templates, grouped by module."""
    groups: dict[str, _NamesOfForm] = {}
    fronts: dict[str, set[str]] = {}
    for name in shapes:
        readings = [
            (said.get("at") or "", k, said)
            for k, row in enumerate(form.tensors)
            if (said := names.found(row, row.directions or layout.directions, form.gates, layout.separator, name=name))
        ]
        if not readings:
            continue
        at, k, said = min(readings, key=lambda reading: len(reading[0]))  # `projection/kernel` is not a `kernel`
        row, group = form.tensors[k], groups.setdefault(at, _NamesOfForm(at, form, {}, {}))
        fronts.setdefault(at, set()).add(names.front(row, said, name))
        written = {label: gate for gate, label in names.labels(row, form.gates).items()}
        gate = written[said["gate"]] if said.get("gate") is not None else ""
        if said.get("cell") is not None:
            group.cells[k, int(said["cell"]), gate] = name
        else:
            sides = row.directions or layout.directions
            direction = sides.index(said["dir"]) if said.get("dir") is not None else 0
            group.rows[k, int(said.get("layer") or 0), direction, gate] = name
    return [_alone(group, fronts[at]) for at, group in groups.items()]


def _alone(group: _NamesOfForm, fronts: set[str]) -> _NamesOfForm:
    """The group; if it is a single numbered layer (`layers.0.weight_ih`), its module includes the number.

    In a layout's own names, a network of one layer has no number.
    """
    if len(fronts) > 1 or "" in fronts:
        return group
    rows = {(k, 0, direction, gate): name for (k, _, direction, gate), name in group.rows.items()}
    return _NamesOfForm(min(fronts), group.form, rows, group.cells)


def network_if_any(layout: Layout, at: str, shapes: Shapes) -> Network | None:
    """The network in a module, from names and shapes alone; None if the module does not hold one of this layout."""
    try:
        return network(layout, {}, at, shapes, facts={})
    except LayoutError:
        return None


def network(
    layout: Layout,
    options: Mapping[str, str],
    at: str,
    shapes: Shapes,
    *,
    facts: Facts,
    tensors: Mapping[str, str] | None = None,
) -> Network:
    """The network of one module; LayoutError says what is missing, or that several networks fit.

    `shapes` are the shapes of the whole checkpoint, `facts` what the file and the user say about the network, and
    `tensors` the names of its tensors if they do not follow the layout.
    """
    chosen = layout.chosen(options)
    readings: list[Network] = []
    why: list[str] = []
    unsized: dict[str, None] = {}
    most = 0  # a reading that leaves names unmatched which another form matches is discarded
    for form in layout.forms_of(facts.get("kind"), chosen):
        for group in _candidates(layout, form, at, shapes, tensors=tensors):
            most = max(most, len(group.rows) + len(group.cells))
            try:
                readings += _read(layout, form, chosen, group, shapes=shapes, facts=facts)
            except (LayoutError, UsageError) as error:
                why.append(f"{form.kind}{f' reset={form.reset}' if form.reset else ''}: {error.message}")
                unsized |= dict.fromkeys(error.names if isinstance(error, UnknownSizesError) else ())
    distinct = {(r.spec, tuple(r.tensors)): r for r in reversed(readings) if len(r.tensors) == most}
    if len(distinct) == 1:
        found = next(iter(distinct.values()))
        # LayoutError if a flat vector only fits a network of both directions and `facts` does not say bidirectional.
        if (
            found.spec.bidirectional
            and "bidirectional" not in facts
            and any(_is_flat(row) for row in found.form.tensors)
        ):
            raise LayoutError(
                f"{found.at!r}: only fits a network of both directions, which was not given: {text(found.spec)}",
                hint="add the word bidirectional to --spec if the network has both directions",
            )
        # What no tensor shows and was not given is assumed, but for what is required of this network.  Of two
        # directions, names show which is which; the first is assumed to run forward.
        spec = found.spec
        open_facts = [one for one in (*layout.assumed, *layout.required) if one not in facts and spec.has(one)]
        lacking = [
            one for one in open_facts if one in layout.required and not (one == "backward" and spec.bidirectional)
        ]
        assumed = [
            (f"{option.name}={option.default}", f"--from {layout.name}:{option.name}=...")
            for option in layout.options
            if option.name not in options and not option.shown and spec.kind == "lstm"
        ]
        assumed += [(usual(one), f'--spec "{one}=..."') for one in open_facts if one not in lacking]
        return replace(found, assumed=tuple(assumed), lacking=tuple(lacking))
    where = repr(at) if at else "the top-level names"
    if not distinct:
        lines = "; ".join(dict.fromkeys(why)) or "no name there matches one of its tensors"
        message = f"{where}: not a network of layout {layout.name}: {lines}"
        raise UnknownSizesError(message, tuple(unsized)) if unsized else LayoutError(message)
    hint = "choose one: " + "   or   ".join(f'--spec "{text(spec)}"' for spec, _ in sorted(distinct, key=str))
    raise LayoutError(f"{where}: fits {len(distinct)} networks of layout {layout.name}", hint=hint)


def refuse_unsaid(found: Network) -> None:
    """LayoutError for the facts that no tensor shows, that were not given, and that must not be assumed."""
    if missing := to_be_said(found):
        whats, hows = (
            " and ".join(what for what, _ in missing),
            ", and in the same text ".join(how for _, how in missing),
        )
        alone = f"; add --at {found.at} to apply it to this network only" if found.at else ""
        raise LayoutError(
            f"{found.at!r}: no tensor of layout {found.layout.name} shows {whats}", hint=f"give it: {hows}{alone}"
        )


def to_be_said(found: Network) -> list[tuple[str, str]]:
    """[(a fact in words, the option that gives it)] for every required fact that was not given."""
    return [_REQUIRED_FACTS[fact] for fact in found.lacking]


_REQUIRED_FACTS = {
    "cell_clip": (
        "its cell clip, and such cells usually have one",
        '--spec "cell_clip=3.0", or --spec "cell_clip=0" for none',
    ),
    "backward": (
        "its direction in time",
        '--spec "backward=no" if it runs forward, --spec "backward=yes" if it has go_backwards',
    ),
    "gate_activation": (
        "the activation of its gates",
        '--spec "gate_activation=hard_sigmoid(0.2,0.5)", the default of Keras 1, or "gate_activation=sigmoid"',
    ),
    "merge": (
        "how the outputs of its two directions are merged",
        f'--spec "merge=concat" if they are concatenated, else one of {", ".join(list(MERGES)[1:])}',
    ),
}
"""{a fact of `Layout.required`: (what it is, the option that gives it)}."""


def _candidates(
    layout: Layout, form: Form, at: str, shapes: Shapes, *, tensors: Mapping[str, str] | None
) -> Iterator[_NamesOfForm]:
    """The names of the module that match the form; those of `tensors` if it is given."""
    if tensors:
        for group in _groups(layout, form, tensors):
            if not group.at:
                rows = {key: tensors[own] for key, own in group.rows.items()}
                cells = {key: tensors[own] for key, own in group.cells.items()}
                yield _NamesOfForm(at, form, rows, cells)
        return
    for group in _groups(layout, form, (name for name in shapes if name.startswith(at))):
        if group.at == at:
            yield group


def _read(
    layout: Layout, form: Form, options: Mapping[str, str], group: _NamesOfForm, *, shapes: Shapes, facts: Facts
) -> Iterator[Network]:
    """The networks that a group of names can be; LayoutError if there is none."""
    failed: LayoutError | UsageError | None = None
    done = False
    for rows, directions in _unfolded(group):
        try:
            for said in _counted(layout, form, options, rows, directions=directions, shapes=shapes, facts=facts):
                yield _network(
                    layout, form, options, group.at, rows=rows, directions=directions, shapes=shapes, facts=said
                )
                done = True
        except (LayoutError, UsageError) as error:
            failed = failed or error
    if failed and not done:
        raise failed


Rows = Mapping[tuple[int, int, int, str], str]


def _unfolded(group: _NamesOfForm) -> Iterator[tuple[Rows, int]]:
    """Rows by layer and direction; names that count cells are read with one direction and with two."""
    if not group.cells:
        seen = 1 + max(direction for _, _, direction, _ in group.rows)
        inside = any("dir" in pattern.words(pattern.parse(group.form.tensors[k].content)) for k, *_ in group.rows)
        for directions in (1, 2) if inside and seen == 1 else (seen,):
            yield group.rows, directions
        return
    for directions in (1, 2):
        yield {(k, *divmod(c, directions), gate): name for (k, c, gate), name in group.cells.items()}, directions


def _counted(
    layout: Layout, form: Form, options: Mapping[str, str], rows: Rows, *, directions: int, shapes: Shapes, facts: Facts
) -> Iterator[Facts]:
    """The facts, with the number of layers derived from the length of a flat vector; LayoutError if no number fits.

    Yields nothing if `facts` gives another number of directions: one direction is never assumed.
    """
    flat = [name for (k, *_), name in rows.items() if _is_flat(form.tensors[k])]
    if not flat:
        yield facts
    elif facts.get("bidirectional", directions == 2) == (directions == 2):
        said = {**facts, "kind": form.kind, "bidirectional": directions == 2}
        if "layers" in facts or not {"hidden", "input"} <= facts.keys():
            yield said
            return
        first, further = flat_lengths(layout, form, options, said)
        total = sum(prod(shapes[name]) for name in flat)
        layers, rest = divmod(total - first, further)
        if rest or not 0 <= layers < names.MAX_LAYERS:
            words = arithmetic(layout, options, {**facts, "kind": form.kind})
            raise LayoutError(f"{flat[0]!r} has {_elements(total)}, {words}")
        yield {**said, "layers": layers + 1}


def _network(
    layout: Layout, form: Form, options: Mapping[str, str], at: str, *, rows: Rows, directions: int, shapes: Shapes,
    facts: Facts,
) -> Network:  # fmt: skip
    """One reading, checked against every shape."""
    sizes = _sizes(form, rows, directions, shapes, facts=facts)
    named = {field.name for field in fields(Spec)}
    found: dict[str, Any] = {"kind": form.kind, "reset": form.reset, "bidirectional": directions == 2, **sizes}
    present = {kind for k, *_ in rows for kind in form.tensors[k].kinds()}
    flat = any(_is_flat(form.tensors[k]) for k, *_ in rows)
    if form.kind == "rnn" and len(form.activations) == 1:
        found["activation"] = form.activations[0]  # the library has no other
    found["layers"] = 1 + max(layer for _, layer, _, _ in rows)
    if flat:
        for name in ("layers", "bidirectional"):
            found[name] = facts.get(name, found[name])
        if int(str(found["layers"])) > names.MAX_LAYERS:
            raise LayoutError(f"layers={found['layers']} is too large; expected at most {names.MAX_LAYERS}")
    has: dict[str, object] = {
        "bias": bool(present & {"bW", "bR"}),
        "peephole": "peep" in present,
        "initial_state": bool(present & {"h0", "c0"}),
    }
    for name, value in has.items():
        found[name] = facts.get(name, value) if flat or (name == "bias" and value) else value
    for name, fact in facts.items():
        unsure = name in has and fact is False  # tensors that are always stored may be zeros without a meaning
        if name in found and found[name] != fact and not unsure:
            raise LayoutError(f"{name}={fact} was given, but names and shapes show {found[name]}")
        found[name] = fact
    for name, kind in (("peephole", "peep"), ("initial_state", "h0")):
        if found[name] and kind not in form.kinds():
            raise LayoutError(f"{name} was given, but layout {layout.name} has no place for it")
    spec = Spec(**{name: value for name, value in found.items() if name in named})
    # The network, if every tensor that the layout needs is present with its shape, and no tensor is left over
    if reasons := list(refusals(layout, form, spec)):
        raise LayoutError("; ".join(reasons))
    tensors: dict[str, str] = {}
    wrong: list[str] = []
    by_name = {}
    for (k, layer, direction, gate), name in rows.items():
        binding = {"layer": layer, "dir": direction} | ({"gate": gate} if gate else {})
        row = form.tensors[k]
        by_name[names.render(row, row.directions or layout.directions, spec, binding)] = name
    for tensor in stored(layout, form, spec, options):
        actual = by_name.pop(tensor.name, None)
        if actual is None:
            if not tensor.row.optional:
                wrong.append(f"{tensor.name!r} {list(tensor.shape)} is missing")
        elif squeezed(shapes[actual]) != squeezed(tensor.shape):
            there = shapes[actual]
            if _is_flat(tensor.row) and len(form.tensors) == 1:  # the lengths that would fit
                words = arithmetic(layout, options, {field.name: getattr(spec, field.name) for field in fields(Spec)})
                wrong.append(f"{actual!r} has {_elements(prod(there))}, {words}")
            else:
                wrong.append(f"{actual!r} is {list(there)}, expected {list(tensor.shape)}")
        else:
            tensors[tensor.name] = actual
    wrong += [f"{name!r} has no place in it" for name in by_name.values()]
    if wrong:
        raise LayoutError(f"read as {text(spec)}: {', '.join(wrong[:4])}{' ...' if len(wrong) > 4 else ''}")
    return Network(at, layout, form, spec, options, tensors)


def _is_flat(row: TensorRule) -> bool:
    """Whether a row holds the whole network in one vector."""
    return any(isinstance(item, pattern.Repeated) for item in pattern.parse(row.content))


def _elements(count: int) -> str:
    return f"{count:,} element{'s' if count != 1 else ''}"


def squeezed(shape: Shape) -> Shape:
    """A shape without its axes of length 1: old files have biases of [1, 400]."""
    return tuple(size for size in shape if size != 1)


def _sizes(form: Form, rows: Rows, directions: int, shapes: Shapes, *, facts: Facts) -> dict[str, int]:
    """hidden, input and projection from the shapes: each axis of each tensor is an equation, linear in one size."""
    said = {name: int(str(facts[name])) for name in ("hidden", "input", "projection") if name in facts}
    whole = [(form.tensors[k], layer, gate, name) for (k, layer, _, gate), name in rows.items()]
    solvable = [one for one in sorted(whole, key=lambda one: one[1]) if one[1] == 0 and not _is_flat(one[0])]
    projected = bool(said.get("projection")) or any("P" in row.kinds() and not _is_flat(row) for row, *_ in whole)
    known = {"dir": directions, "layer": 1}
    for word, name in {"hidden": "hidden", "in": "input", **({"proj": "projection"} if projected else {})}.items():
        known |= {word: said[name]} if name in said else {}
    for row, _, gate, name in solvable * 4:
        found = [block for block in row.blocks() if not gate or not block.gates or gate in block.gates]
        axes, shape = found[0].axes, shapes[name]
        if len(shape) != len(axes):
            # A shape with axes of length 1 inserted or removed, so that it has one axis for each axis of the pattern.
            rest = [size for size in shape if size != 1]
            fitted = [1 if group == ("1",) else rest.pop(0) if rest else 1 for group in axes]
            if rest:
                continue
            shape = tuple(fitted)
        for axis, total in enumerate(shape):
            open_words: dict[str, int] = {}
            for block in found if axis == row.along else found[:1]:
                numbers = {"gate": len(block.gates or form.gates), **known}
                words = [(("proj" if projected else "hidden") if word == "rec" else word) for word in block.axes[axis]]
                unknown = " ".join(word for word in words if not word.isdigit() and word not in numbers)
                factor = prod(numbers.get(word, 1) if not word.isdigit() else int(word) for word in words)
                if unknown:
                    open_words[unknown] = open_words.get(unknown, 0) + factor
                else:
                    total -= factor
            if len(open_words) == 1:
                ((word, factor),) = open_words.items()
                if " " not in word and total > 0 and total % factor == 0:
                    known[word] = total // factor
    first = {kind for row, layer, *_ in whole if layer == 0 for kind in row.kinds()}
    if "in" not in known and "W" not in first:
        raise LayoutError("the input weights of the first layer are missing")
    if lacking := [name for name in ("hidden", "in") if name not in known]:
        words = ["input" if name == "in" else name for name in lacking]
        raise UnknownSizesError(
            f'the shapes do not show its {" and ".join(words)}: give it, --spec "{form.kind} hidden=... input=..."',
            tuple(name for *_, name in sorted(whole, key=lambda one: one[1])),
        )
    return {"hidden": known["hidden"], "input": known["in"], "projection": known.get("proj", 0) if projected else 0}
