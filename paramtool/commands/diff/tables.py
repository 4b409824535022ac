"""What tables say of two checkpoints: how a dialect or a layout makes the tensors of the second of those of the first.

A table only proposes.  What it proposes is a map only where every byte of the second checkpoint's tensor agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from paramtool import layouts
from paramtool.commands.diff.found import map_of, words
from paramtool.commands.rearrangement import config_beside, dialects_of, parts_source
from paramtool.errors import FormatError, LayoutError, UnknownSizesError, UsageError
from paramtool.layouts.layout import stored
from paramtool.layouts.networks import Network
from paramtool.layouts.spec import Spec, parse
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Target
from paramtool.model.view import Shapes, View, Views
from paramtool.parts.facts import NONE, Facts
from paramtool.passes.diff.names import NUMBER, short
from paramtool.passes.parts import copies
from paramtool.passes.rnn.convert import Converted, convert_if_held
from paramtool.passes.rnn.find import Found, NetworkRequest, find
from paramtool.passes.rnn.stacking import layers_of

FactsOf = Callable[[str], Facts]
"""The facts about the tensor of a name."""
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
    is_of_second: bool = False
    """Whether it puts one bias into the second of two: such proposals of a network hold together, or none does."""
    against: str = ""
    """What a config.json says of the sizes other than this map, in words."""


def of_dialects(a: Checkpoint, b: Checkpoint) -> Iterator[list[Proposal]]:
    """The tensors of the second as its dialect makes them of those of the first, by a config beside one of them."""
    configs = [config_beside(one.path) for one in (a, b)]
    mine, theirs = (config or other for config, other in (configs, configs[::-1]))
    others = list(_readings(b, theirs))
    for first, held_a in _readings(a, mine):
        for second, held_b in others:
            if found := _joined(a, b, (held_a, held_b), (first, second)):
                yield found


def facts_of(checkpoint: Checkpoint) -> FactsOf | None:
    """What the config.json beside a checkpoint says of the module of a name; None if there is no config.json."""
    from paramtool.parts.config_facts import KnownModel

    config = config_beside(checkpoint.path)
    if not config:
        return None
    model = KnownModel(config)

    def facts(name: str) -> Facts:
        try:
            return model.facts(name)
        except LayoutError:  # it contradicts itself
            return NONE

    return facts


def _readings(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """(dialect, what the tensors of a file hold as pieces of the hub's tensors), for each dialect that it can be of."""
    from paramtool import dialects
    from paramtool.parts.config_facts import KnownModel
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
    views, there = a.views(), b.views()
    known = [one for one in held[0] if one.name in views]
    try:
        sources = copies.sources(a.path, known, views)
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
        if not target.copies:  # no elements: no bytes prove a map
            continue
        rows, turns = map_of(target, there[one.name], views), ""
        if rows is not None and len(rows.lines) < len(rows.map.runs):  # whole rows of several tensors take turns
            turns = words(rows.map.runs, [*short(rows.olds).values()])
        found.append(Proposal(target, names[1], _words(one, target, names, turns)))
    return found


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


# --- Layouts of recurrent networks -----------------------------------------------------------------------------------


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
    for one, other in _like(b, theirs, mine):
        yield from _converted(other, one, views)
    for other, one in _like(a, mine, theirs):
        yield from _converted(other, one, views)


def _like(here: Checkpoint, found: Sequence[Found], others: Sequence[Found]) -> Iterator[tuple[Found, Found]]:
    """Networks among the other tensors of a checkpoint, each with the one of another checkpoint that it is like.

    They have the names and shapes of some layout for that network.  Only these tensors are looked at.
    """
    known = {name for one in found for name in one.network.tensors.values()}
    known |= {name for name, entry in here.entries.items() if entry.role == "optimizer"}
    shapes = {name: view.shape for name, view in here.views().items() if name not in known}
    for other in _with_layers(others):
        spec = other.network.spec
        for layout in layouts.all_layouts():
            for names in _places(_own_tensors(layout.name, spec), shapes):
                first = next(iter(names))
                at = names[first][: len(names[first]) - len(first)].rstrip("./_") if len(names) > 1 else names[first]
                alone = replace(here, entries={name: here.entries[name] for name in names.values()}, modules=())
                for place in dict.fromkeys([at, "*"]):
                    ats = (place,) if place else ()
                    if like := _asked(alone, NetworkRequest(layout.name, parse(str(spec)), ats, lenient=True)):
                        yield from ((one, other) for one in like)
                        break


@lru_cache(maxsize=1 << 10)
def _own_tensors(layout: str, spec: Spec) -> Shapes:
    """{name of a tensor in a layout: its shape}, for a network; nothing where the layout cannot hold it."""
    found = layouts.find(layout)
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
    yield list(_named(old, made, names))
    if any(change.kind == "split" for change in made.changes):
        other = convert_if_held(old, views, made.layout, made.options, at=made.at, into_second=True)
        if other is not None:
            moved = {names.get(one.name) for one in other.targets if one not in made.targets}
            yield [one._replace(is_of_second=one.target.name in moved) for one in _named(old, other, names)]


def _named(old: Network, made: Converted, names: Mapping[str, str]) -> Iterator[Proposal]:
    """The tensors of a converted network that the second has."""
    how = f"{old.layout.name} -> {made.layout.name}"
    # What a conversion leaves out, since the new layout lacks it, must be zero, or a forget bias.  And each term of a
    # sum of two biases: one that is zero leaves the other as it is, and a forget bias is added to it.
    lacking = [(one.view, one.shift) for one in made.requires if not one.terms]
    summed = [copy for target in made.targets for copy in target.copies if len(copy.terms) > 1]
    constants = (*lacking, *((view, 0.0) for copy in summed for _, view in copy.terms))
    for one in made.targets:
        if one.name in names:
            yield Proposal(replace(one, name=names[one.name]), made.layout.name, how, constants=constants)
