"""What the tables say of two checkpoints: how the tensors of the second are made of those of the first.

A table only proposes.  What it proposes is a map only where every byte of the second checkpoint's tensor agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.commands._diff_beside import runs_of
from paramtool.commands._diff_words import words
from paramtool.engine.compare.runs import LineRun, Runs
from paramtool.errors import FormatError, LayoutError, UnknownSizesError, UsageError
from paramtool.layouts.spec import Spec, parse
from paramtool.model.checkpoint import GRAPH, Checkpoint
from paramtool.model.plan import Target
from paramtool.model.view import View
from paramtool.passes.diff.names import NUMBER, short
from paramtool.passes.rnn.find import Found, NetworkRequest
from paramtool.passes.rnn.stacking import layers_of

if TYPE_CHECKING:
    from paramtool.passes.rnn.convert import Converted

Views = Mapping[str, View]
REFUSED = (FormatError, LayoutError, UnknownSizesError, UsageError)
"""What a table says where it does not fit."""


class Proposal(NamedTuple):
    """One tensor of the second checkpoint, as a table makes it of the first."""

    target: Target
    layout: str
    """The layout or dialect of the second."""
    how: str
    """The map in words."""
    repeats: tuple[Target, ...] = ()
    """The same tensor, as the first checkpoint holds it once more: a gate that is repeated for each element."""
    constants: tuple[tuple[View, float], ...] = ()
    """What the first has and the second's layout lacks, which computes the same if it is this number: biases."""


def proposals(a: Checkpoint, b: Checkpoint) -> Iterator[list[Proposal]]:
    """Sets of proposals: those of one set belong together, and others may be for the same tensors."""
    yield from _of_dialects(a, b)
    yield from of_networks(a, b)


# --- Attention, gated MLPs, experts -----------------------------------------------------------------------------------


def _of_dialects(a: Checkpoint, b: Checkpoint) -> Iterator[list[Proposal]]:
    """The tensors of the second as its dialect makes them of those of the first, by a config beside one of them."""
    from paramtool.commands._parts_source import config_beside

    configs = []
    for one in (a, b):
        try:
            configs.append(config_beside(one.files[0].path))
        except REFUSED:
            configs.append({})
    mine, theirs = (config or other for config, other in (configs, configs[::-1]))
    others = list(_readings(b, theirs))
    for first, held_a in _readings(a, mine):
        for second, held_b in others:
            if found := _joined(a, b, (held_a, held_b), (first, second)):
                yield found


def _readings(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """(dialect, what the tensors of a file hold as pieces of the hub's tensors), for each dialect that it can be of."""
    from paramtool import dialects
    from paramtool.commands._parts_source import dialects_of, parts_source
    from paramtool.parts.known_model import KnownModel
    from paramtool.passes.parts import following
    from paramtool.passes.parts.dialect_change import views_of
    from paramtool.passes.parts.recorded import put_together, with_parts

    if not config:
        return
    model = KnownModel(config)
    try:
        source = parts_source(checkpoint)
        names = dialects_of(source, model) or [dialects.HUB]
    except REFUSED:
        return
    for name in names:
        try:
            shapes, joints = with_parts(source.shapes, source.record, name, model, views=views_of(checkpoint))
            opened = dialects.opened(name, config, model.facts, source.record.prefix)
            held = opened.read(following.told_apart(shapes, model.packing).weights)
            yield name, put_together(held, joints)
        except REFUSED:
            continue


def _joined(
    a: Checkpoint, b: Checkpoint, held: tuple[Sequence[Any], Sequence[Any]], names: tuple[str, str]
) -> list[Proposal]:
    """Each tensor of the second that can be made of those of the first."""
    from paramtool.passes.parts import copies

    views, there = a.views(), b.views()
    known = [one for one in held[0] if one.name in views]
    try:
        sources = copies.sources(a.files[0].path, known, views)
    except REFUSED:
        return []
    found = []
    for one in held[1]:
        if one.name not in there:
            continue
        try:
            target = copies.target(one, sources)
        except REFUSED:
            continue
        found.append(Proposal(target, names[1], _words(one, target, names, _turns(target, there[one.name], views))))
    return found


def _turns(target: Target, there: View, views: Views) -> str:
    """The order of whole rows of several tensors, where they take turns; "" elsewhere."""
    runs = runs_of(target, there, views)
    olds = list(dict.fromkeys(run.old for run in runs))
    if not len(olds) < len(runs):
        return ""
    known = short(olds)
    rows = (LineRun(olds.index(run.old), run.start, run.length, run.to) for run in runs)
    return words(Runs.of(rows), [known[old] for old in olds])


def _words(stored: Any, target: Target, names: tuple[str, str], turns: str) -> str:
    """Which parts a tensor is made of, from where their names differ, and between which dialects."""
    which = names[1] if names[0] == names[1] else f"{names[0]} -> {names[1]}"
    if turns:
        return f"{turns}, {which}"
    parts = short(stored.parts)
    seen = list(dict.fromkeys(NUMBER.sub("*", one) for one in parts.values()))
    if len(parts) == 1:
        return f"a part of {target.copies[0].names[0]!r}, {which}" if target.copies[0].names else which
    return f"[{'; '.join(seen[:4])}{'; ...' if len(seen) > 4 else ''}], {which}"


# --- Recurrent networks -----------------------------------------------------------------------------------------------


def of_networks(a: Checkpoint, b: Checkpoint) -> Iterator[list[Proposal]]:
    """The networks of the second as their layouts make them of networks of the first that compute the same."""
    mine, theirs = _networks(a), _networks(b)
    views = a.views()
    for one in _with_layers(theirs, mine):
        for other in sorted(_with_layers(mine, theirs), key=lambda found: found.network.at != one.network.at):
            yield _converted(other, one, views)
    for other in _with_layers(mine):
        for made, names in _written(other, views, b):
            how = f"{other.network.layout.name} -> {made.layout.name}"
            constants = _constants(made)
            yield [
                Proposal(replace(one, name=names[one.name]), made.layout.name, how, constants=constants)
                for one in made.targets
            ]
    for one in _with_layers(theirs):
        for made, names in _written(one, b.views(), a):
            yield from _read_as(made, names, one, a)


def _written(mine: Found, views: Views, there: Checkpoint) -> Iterator[tuple[Converted, Mapping[str, str]]]:
    """A network in every layout whose names and shapes another checkpoint has, and these names: {own: theirs}."""
    from paramtool.layouts import all_layouts
    from paramtool.passes.rnn.convert import convert_if_held

    shapes = {name: view.shape for name, view in there.views().items()}
    for layout in all_layouts():
        places = list(_places(_own_tensors(layout.name, mine.network.spec), shapes))
        made = convert_if_held(mine.network, views, layout, {}, at="") if places else None
        if made is not None:
            yield from ((made, names) for names in places)


@lru_cache(maxsize=1 << 10)
def _own_tensors(layout: str, spec: Spec) -> Mapping[str, tuple[int, ...]]:
    """{name of a tensor in a layout: its shape}, for a network; nothing where the layout cannot hold it."""
    from paramtool.layouts import find
    from paramtool.layouts.layout import stored

    found = find(layout)
    try:
        options = found.chosen({})
        return {one.name: one.shape for one in stored(found, found.form(spec, options), spec, options)}
    except LayoutError:
        return {}


def _places(own: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Mapping[str, str]]:
    """{own: theirs} for names of a checkpoint that are those of a network's tensors behind one prefix, in their shapes.

    A flat vector may have any name.
    """
    first = max(own, key=len, default="")
    if len(own) == 1 and len([size for size in own[first] if size > 1]) == 1:
        numel = prod(own[first])
        same = [name for name, shape in shapes.items() if len(shape) == 1 and prod(shape) == numel >= MIN_VECTOR]
        yield from ({first: name} for name in same)
        return
    for name in shapes if own else ():
        if name.endswith(first):
            at = name[: len(name) - len(first)]
            if all(shapes.get(f"{at}{other}") == shape for other, shape in own.items()):
                yield {other: f"{at}{other}" for other in own}


def _read_as(made: Converted, names: Mapping[str, str], theirs: Found, a: Checkpoint) -> Iterator[list[Proposal]]:
    """A network of the second, made of tensors of the first that have the names of another layout."""
    from paramtool.passes.rnn.find import find

    first = next(iter(names))
    at = names[first][: len(names[first]) - len(first)].rstrip("./_") if len(names) > 1 else names[first]
    for place in dict.fromkeys([at, "*"]):
        try:
            request = NetworkRequest(
                made.layout.name, parse(str(theirs.network.spec)), (place,) if place else (), lenient=True
            )
            found = find(a, request)
        except REFUSED:
            continue
        yield from (_converted(one, theirs, a.views()) for one in found)
        return


def _networks(checkpoint: Checkpoint) -> list[Found]:
    """The recurrent networks of a file, in any layout that its own words or its names show."""
    from paramtool.commands.networks import networks
    from paramtool.passes.rnn.find import find

    try:
        could_be = checkpoint.modules or any("weight_hh" in name for name in checkpoint.entries)
        layouts = dict.fromkeys([*([None] if could_be else []), *(one.layout for one in networks(checkpoint))])
    except REFUSED:
        return []
    for layout in layouts:
        try:
            found = find(checkpoint, NetworkRequest(layout, {}, (), lenient=True))
        except REFUSED:
            continue
        return [_without_zero_states(one, checkpoint) for one in found]
    return []


def _without_zero_states(found: Found, checkpoint: Checkpoint) -> Found:
    """A network without first states that are constants of the graph: the node takes zeros without them, too."""
    network = found.network
    entries = checkpoint.entries
    states = [own for own, name in network.tensors.items() if name in entries and entries[name].role == GRAPH]
    if not network.spec.initial_state or not states:
        return found
    spec = replace(network.spec, initial_state=False)
    try:
        form = network.layout.form(spec, network.options)
    except LayoutError:
        return found
    tensors = {own: name for own, name in network.tensors.items() if own not in states}
    return replace(found, network=replace(network, spec=spec, form=form, tensors=tensors))


def _with_layers(found: Sequence[Found], others: Sequence[Found] = ()) -> Iterator[Found]:
    """Networks, and each layer of those of more layers than one of another checkpoint: ONNX has a node for a layer."""
    yield from found
    fewest = min((one.network.spec.layers for one in others), default=1)
    for one in found:
        if one.network.spec.layers > fewest == 1:
            yield from (replace(one, network=layer) for layer in layers_of(one.network))


def _converted(mine: Found, theirs: Found, views: Views) -> list[Proposal]:
    """A network of the first in the layout of one of the second; nothing where that cannot hold it."""
    from paramtool.passes.rnn.convert import convert_if_held

    old, new = mine.network, theirs.network
    if old.spec.kind == "rnn" and not (old.spec.activation and new.spec.activation):  # torch's tensors do not show it
        old = replace(old, spec=replace(old.spec, activation=new.spec.activation))
    made = convert_if_held(old, views, new.layout, new.options, at=new.at) if old.spec == new.spec else None
    if made is None:
        return []
    names = {tensor: new.tensors[own] for own, tensor in made.tensors.items() if own in new.tensors}
    how = f"{old.layout.name} -> {new.layout.name}"
    constants = _constants(made)
    return [
        Proposal(replace(one, name=names[one.name]), new.layout.name, how, constants=constants)
        for one in made.targets
        if one.name in names
    ]


def _constants(made: Converted) -> tuple[tuple[View, float], ...]:
    """What a conversion leaves out, since the new layout lacks it: it must be zero, or a forget bias.

    And each term of a sum of two biases: one that is zero leaves the other as it is.
    """
    lacking = tuple((one.view, one.shift) for one in made.requires if not one.terms)
    summed = [copy for target in made.targets for copy in target.copies if len(copy.terms) > 1 and not copy.shift]
    return (*lacking, *((view, 0.0) for copy in summed for _, view in copy.terms))


MIN_VECTOR = 64
"""Shorter vectors are biases and norms, not whole networks."""
