"""What the layouts of recurrent networks say of two checkpoints: those of the second, made of those of the first.

A layout only proposes.  What it proposes is a map only where every byte of the second checkpoint's tensor agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from paramtool.commands.diff.tables import REFUSED, Proposal
from paramtool.errors import LayoutError
from paramtool.layouts.spec import Spec, parse
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.view import Shapes, View, Views
from paramtool.passes.rnn.find import Found, NetworkRequest
from paramtool.passes.rnn.stacking import layers_of

if TYPE_CHECKING:
    from paramtool.layouts.networks import Network
    from paramtool.passes.rnn.convert import Converted

ABSENT_IS_ZERO = ("bias", "peephole", "initial_state")
"""What a network without it computes as one in which it is zero."""
MIN_VECTOR = 64
"""Shorter vectors are biases and norms, not whole networks."""


def of_networks(
    a: Checkpoint, b: Checkpoint, found: tuple[Sequence[Found], Sequence[Found]]
) -> Iterator[list[Proposal]]:
    """The networks of the second as their layouts make them of networks of the first that compute the same.

    `found` are the networks of both, as `networks_of` finds them.
    """
    mine, theirs = found
    views = a.views()
    for one in _with_layers(theirs, mine):
        for other in sorted(_with_layers(mine, theirs), key=lambda found: found.network.at != one.network.at):
            yield from _converted(other, one, views)
    rest_a, rest_b = _shapes_of_others(a, mine), _shapes_of_others(b, theirs)
    for other in _with_layers(mine):
        for made, names in _written(other, views, rest_b):
            yield from _proposed(other.network, made, names, views)
    for one in _with_layers(theirs):
        for made, names in _written(one, b.views(), rest_a):
            yield from _read_as(made, names, one, a)


def _shapes_of_others(checkpoint: Checkpoint, found: Sequence[Found]) -> Shapes:
    """The shapes of tensors that are in no network that was found, without those of optimizers."""
    known = {name for one in found for name in one.network.tensors.values()}
    known |= {name for name, entry in checkpoint.entries.items() if entry.role == "optimizer"}
    return {name: view.shape for name, view in checkpoint.views().items() if name not in known}


def _written(mine: Found, views: Views, shapes: Shapes) -> Iterator[tuple[Converted, Mapping[str, str]]]:
    """A network in every layout whose names and shapes another checkpoint has, and these names: {own: theirs}."""
    from paramtool.layouts import all_layouts
    from paramtool.passes.rnn.convert import convert_if_held

    for layout in all_layouts():
        places = list(_places(_own_tensors(layout.name, mine.network.spec), shapes))
        made = convert_if_held(mine.network, views, layout, {}, at="") if places else None
        if made is not None:
            yield from ((made, names) for names in places)


@lru_cache(maxsize=1 << 10)
def _own_tensors(layout: str, spec: Spec) -> Shapes:
    """{name of a tensor in a layout: its shape}, for a network; nothing where the layout cannot hold it."""
    from paramtool.layouts import find
    from paramtool.layouts.layout import stored

    found = find(layout)
    try:
        options = found.chosen({})
        return {one.name: one.shape for one in stored(found, found.form(spec, options), spec, options)}
    except LayoutError:
        return {}


def _places(own: Shapes, shapes: Shapes) -> Iterator[Mapping[str, str]]:
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
    """A network of the second, made of tensors of the first that have the names of another layout.

    Only these tensors are looked at: what else the first has is no part of it.
    """
    first = next(iter(names))
    at = names[first][: len(names[first]) - len(first)].rstrip("./_") if len(names) > 1 else names[first]
    alone = replace(a, entries={name: a.entries[name] for name in names.values()}, modules=())
    for place in dict.fromkeys([at, "*"]):
        facts = parse(str(theirs.network.spec))
        request = NetworkRequest(made.layout.name, facts, (place,) if place else (), lenient=True)
        if found := _asked(alone, request):
            for one in found:
                yield from _converted(one, theirs, a.views())
            return


def networks_of(checkpoint: Checkpoint) -> list[Found]:
    """The recurrent networks of a file, in any layout that its own words, or names and shapes, show.

    Several readings of the same tensors are given where names and shapes do not decide.
    """
    from paramtool.guessing.names import by_names

    shapes = {name: view.shape for name, view in checkpoint.views().items() if checkpoint.entries[name].role == "model"}
    found = list(_described(checkpoint))
    known = {(one.network.layout.name, one.network.at) for one in found}
    for guess in by_names(shapes):
        for layout in (guess.layout, *guess.alike):
            if (layout, guess.at) not in known:
                found += _asked(checkpoint, NetworkRequest(layout, parse(guess.spec), (guess.at,), lenient=True))
    return found


def _described(checkpoint: Checkpoint) -> list[Found]:
    """The networks that a file describes, or that have PyTorch's names."""
    from paramtool.commands.networks import networks

    try:
        could_be = checkpoint.modules or any("weight_hh" in name for name in checkpoint.entries)
        layouts = dict.fromkeys([*([None] if could_be else []), *(one.layout for one in networks(checkpoint))])
    except REFUSED:
        return []
    every = (_asked(checkpoint, NetworkRequest(layout, {}, (), lenient=True)) for layout in layouts)
    return next(filter(None, every), [])


def _asked(checkpoint: Checkpoint, request: NetworkRequest) -> list[Found]:
    """The networks that are asked for; none where one is refused."""
    from paramtool.passes.rnn.find import find

    try:
        return find(checkpoint, request)
    except REFUSED:
        return []


def _with_layers(found: Sequence[Found], others: Sequence[Found] = ()) -> Iterator[Found]:
    """Networks, and each layer of those of more layers than one of another checkpoint: ONNX has a node for a layer."""
    yield from found
    fewest = min((one.network.spec.layers for one in others), default=1)
    for one in found:
        if one.network.spec.layers > fewest == 1:
            yield from (replace(one, network=layer) for layer in layers_of(one.network))


def _converted(mine: Found, theirs: Found, views: Views) -> Iterator[list[Proposal]]:
    """A network of the first in the layout of one of the second; nothing where that cannot hold it."""
    from paramtool.passes.rnn.convert import convert_if_held

    old, new = mine.network, theirs.network
    if old.spec.kind == "rnn" and not (old.spec.activation and new.spec.activation):  # torch's tensors do not show it
        old = replace(old, spec=replace(old.spec, activation=new.spec.activation))
    common = {name: getattr(old.spec, name) and getattr(new.spec, name) for name in ABSENT_IS_ZERO}
    old = replace(old, spec=replace(old.spec, **common))
    is_one = old.spec == replace(new.spec, **common)
    made = convert_if_held(old, views, new.layout, new.options, at=new.at) if is_one else None
    if made is not None:
        names = {tensor: new.tensors[own] for own, tensor in made.tensors.items() if own in new.tensors}
        yield from _proposed(old, made, names, views)


def _proposed(old: Network, made: Converted, names: Mapping[str, str], views: Views) -> Iterator[list[Proposal]]:
    """A converted network by the names of the second; then with its one bias as the second of two, where it has one.

    `names` is {name in the conversion: that in the second}.
    """
    from paramtool.passes.rnn.convert import convert_if_held

    yield list(_named(old, made, names))
    if any(change.kind == "split" for change in made.changes):
        other = convert_if_held(old, views, made.layout, made.options, at=made.at, into_second=True)
        if other is not None:
            moved = {names.get(one.name) for one in other.targets if one not in made.targets}
            yield [one._replace(is_of_second=one.target.name in moved) for one in _named(old, other, names)]


def _named(old: Network, made: Converted, names: Mapping[str, str]) -> Iterator[Proposal]:
    """The tensors of a converted network that the second has."""
    how, constants = f"{old.layout.name} -> {made.layout.name}", _constants(made)
    for one in made.targets:
        if one.name in names:
            yield Proposal(replace(one, name=names[one.name]), made.layout.name, how, constants=constants)


def _constants(made: Converted) -> tuple[tuple[View, float], ...]:
    """What a conversion leaves out, since the new layout lacks it: it must be zero, or a forget bias.

    And each term of a sum of two biases: one that is zero leaves the other as it is, and a forget bias is added to it.
    """
    lacking = tuple((one.view, one.shift) for one in made.requires if not one.terms)
    summed = [copy for target in made.targets for copy in target.copies if len(copy.terms) > 1]
    return (*lacking, *((view, 0.0) for copy in summed for _, view in copy.terms))
